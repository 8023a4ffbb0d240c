"""A partition that no client can read does not cost the others their clients, nor the consumer its membership."""

from __future__ import annotations

from unittest import mock

import pytest

from consumer_agent.kafka.unreadable import FIRST_PAUSE_S, Unreadable
from consumer_agent.kafka.watchdog import WatchedFetcher
from consumer_agent.runtime.record_buffer import RecordBuffer
from consumer_agent.runtime.shared_state import SharedState
from tests.unit.consumer_agent.messages import ROOMY

PARTITION = ("orders", 0)
DAY_S = 86_400


def test_a_damaged_log_of_one_partition_ends_no_membership(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each new client gets stuck at the same offset: after 20 replacements, the consumer left its group."""
    now_s, made = 0.0, 0
    monkeypatch.setattr("consumer_agent.kafka.watchdog.time.monotonic", lambda: now_s)

    def new_fetcher(*, reports: bool) -> mock.Mock:  # as of the watchdog
        nonlocal made
        made += 1
        client = mock.Mock(failure=None, stuck=[PARTITION], progress=made)
        client.queries.is_overdue.return_value = False
        return client

    shared = SharedState(RecordBuffer(ROOMY), lambda: 0)
    shared.admit(PARTITION, 1, 5)
    watched = WatchedFetcher(new_fetcher, shared)
    while now_s < DAY_S:
        now_s += 30.0
        watched.look_after()
    assert shared.breakdown is None
    assert 3 < made < 20
    told = [record.getMessage() for record in caplog.records if "damaged" in record.getMessage()]
    assert told == ["orders/0: no client gets Kafka's records from offset 5 on: is its log damaged?"]


def test_a_partition_that_went_on_meanwhile_gets_a_new_client_at_once() -> None:
    unreadable = Unreadable()
    assert unreadable.due({PARTITION: 5}, 0.0) == [PARTITION]
    unreadable.tried({PARTITION: 5}, 0.0)
    assert unreadable.due({PARTITION: 5}, 1.0) == []
    assert unreadable.due({PARTITION: 6}, 2.0) == [PARTITION]
    unreadable.tried({PARTITION: 6}, 2.0)
    assert unreadable.due({PARTITION: 6}, 2.0 + FIRST_PAUSE_S) == [PARTITION]
