"""The handler of a signal raises at any point of a round of an unmodified client's region: see `test_round_interrupts`.

The source is real; the test plays its event thread, and Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Message, TopicPartition

from consumer_agent.region import ForcedRegion
from consumer_agent.region.classic_source import ClassicSource
from consumer_agent.region.own_state import Handlers
from consumer_agent.region.rounds import Rounds
from consumer_agent.runtime import threads
from tests.unit.consumer_agent.messages import messages
from tests.unit.consumer_agent.region import test_round_interrupts as rounds
from tests.unit.consumer_agent.region.test_region_interrupts import STRIDES
from tests.unit.consumer_agent.region.test_round_interrupts import BATCH, LedSetting, Session
from tests.unit.consumer_agent.runtime.interrupts import COUNT, PARTITION, uninterrupted
from zkrebalancer.region.documents import Settings

_time_that_passes = rounds._time_that_passes_with_each_look


class KafkaClient:
    """A client of confluent-kafka with one partition of COUNT records, whose group has no offset."""

    def __init__(self) -> None:
        self.next: int | None = None
        self.is_closed = False

    def consume(self, count: int, _timeout_s: float) -> list[Message]:
        if self.next is None:
            return []
        offsets = range(self.next, min(COUNT, self.next + count))
        self.next = offsets.stop
        return messages(PARTITION, offsets)

    def poll(self, _timeout_s: float) -> None: ...

    def pause(self, _partitions: Sequence[TopicPartition]) -> None: ...

    def resume(self, _partitions: Sequence[TopicPartition]) -> None: ...

    def commit(self, **_: object) -> None: ...

    def committed(self, partitions: Sequence[TopicPartition], **_: float) -> list[TopicPartition]:
        return list(partitions)

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self.next = max(0, partitions[0].offset) if partitions else None

    def unassign(self) -> None:
        self.next = None

    def close(self) -> None:
        self.is_closed = True


class ForcedSetting(LedSetting):
    """A member of a forced region; `shared` is what the instrument looks at after each call."""

    def __init__(self) -> None:
        self.state, self.copies = [], {}
        self.client, self.session = KafkaClient(), Session()  # type: ignore[assignment]
        client: Any = self.client
        self.source = ClassicSource(client, [PARTITION[0]], BATCH)
        self.source._is_started = True  # the test plays the thread
        changed: Any = self.source._changed
        changed.wait_for_change = self._wait
        handlers, session = Handlers(self.store, self.restore), self.session
        settings = Settings("r", "forced", 3_600_000, 60_000)
        self.rounds = Rounds("g", "m", settings, self.source, handlers, session, 10_000)  # type: ignore[arg-type]
        self.region = ForcedRegion.__new__(ForcedRegion)  # type: ignore[assignment]
        self.region._rounds = self.rounds  # type: ignore[attr-defined]
        self.shared = SimpleNamespace(changed=self.source._changed)  # type: ignore[assignment]
        self.give()

    def check_counts(self) -> None: ...

    def give(self) -> None:
        """Assign the partition."""
        client: Any = self.client
        self.source._assigned(client, [TopicPartition(*PARTITION)])

    def lose(self, _at: int = 0, /) -> None:
        """Take the partition away and bring it back; in the meantime, another member had it."""
        client: Any = self.client
        self.source._revoked(client, [])
        self.give()

    def _wait(self, _changes: int, _timeout_s: float | None) -> None:
        uninterrupted(self.in_own_thread, self.source._round)
        uninterrupted(self.session.pass_time)

    def process(self, batch: Any) -> None:
        self.state += [message.offset() for message in batch or ()]


@pytest.fixture(autouse=True)
def _waits_in_this_time(_time_that_passes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "time", _time_that_passes)


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("again_after", [0, 3, 20])
@pytest.mark.parametrize("prepare", rounds.PREPARED)
def test_each_record_is_in_the_state_once_after_an_interrupt_of_a_round(
    prepare: Callable[[Any], None], again_after: int, stride: int
) -> None:
    rounds.check_next_batch(ForcedSetting, prepare, again_after, stride)


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize(("call", "is_lost"), rounds.LEAVING)
@pytest.mark.parametrize("again_after", [0, 20])
def test_a_member_that_leaves_has_no_checkpoint_of_anything_else_than_its_state(
    again_after: int, call: str, is_lost: bool, stride: int
) -> None:
    for setting, _ in rounds.closed(ForcedSetting, again_after, stride, call=call, is_lost=is_lost):
        assert setting.client.is_closed  # type: ignore[attr-defined]
