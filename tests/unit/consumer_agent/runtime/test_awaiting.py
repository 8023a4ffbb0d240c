"""Who finds no records relies on the fetcher, which waits for them, or wakes who has to fetch from now on."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from consumer_agent.runtime.record_buffer import BufferSettings
from tests.unit.consumer_agent.messages import messages
from tests.unit.consumer_agent.runtime.test_draw import MANY, OTHER, PARTITION, Setting, news


@pytest.mark.parametrize("has_record", [False, True])
def test_a_round_full_of_news_ends_no_wait_for_records_unless_it_wakes_who_waits(*, has_record: bool) -> None:
    """In `Fetcher._fetch`, end it after any full round: a thread of `run` with 500 quiet partitions waited for ever.

    It waits for the fetcher without a limit, and the fetcher for somebody who finds no records.
    """
    setting = Setting()
    setting.draw()
    setting.client.waiting = [news(KafkaError._PARTITION_EOF)]
    setting.client.ready = [news(KafkaError._PARTITION_EOF), *messages(OTHER, [0] * has_record)]
    changes = setting.shared.changed.changes
    assert setting.fetcher._fetch(2 + has_record)
    assert setting.shared.is_awaited is not has_record
    assert setting.shared.changed.changes == changes + has_record


def test_a_thread_that_waits_for_the_fetcher_is_not_left_alone_when_another_has_made_room() -> None:
    """In `SharedState.take`, wake nobody: it waited until the other thread's handler returned, perhaps for minutes."""
    setting = Setting(BufferSettings(limit=2, max_records=8, max_bytes=1_000_000))
    setting.draw()  # in a thread that finds nothing, and waits
    setting.client.ready = messages(PARTITION, range(2))
    setting.draw()  # in another one: now there is no room, and the fetcher rests
    woken = setting.woken
    with setting.shared.lock:
        assert setting.shared.take(MANY, lambda *_: None, {PARTITION})
    assert setting.woken == woken + 1
