"""Lines 2 and 8 of the source: the queue between the event thread and the application, and what is recorded when.

The client is never connected: the test plays the event thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import confluent_kafka
import pytest

from consumer_agent.errors import ConsumerError
from consumer_agent.region import ForcedRegion, classic_source
from consumer_agent.region.classic_source import ClassicSource
from tests.support.deadlines import WITHIN_S
from zkrebalancer.protocol.errors import ConfigurationError
from zkrebalancer.region.documents import UNKNOWN
from zkrebalancer.region.limits import queue_limit

BATCH = 4


@dataclass
class Message:
    number: int
    place: int

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return self.number

    def offset(self) -> int:
        return self.place

    def __len__(self) -> int:
        return 0

    failure: confluent_kafka.KafkaError | None = None

    def error(self) -> confluent_kafka.KafkaError | None:
        return self.failure


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a source that holds t/0 and t/1, and whose thread does not run."""
    monkeypatch.setattr(classic_source, "COMMITTED_TIMEOUT_S", 0.0)  # there is no Kafka to ask
    client = confluent_kafka.Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0})
    source = ClassicSource(client, ["t"], BATCH)
    source._is_started = True  # the test plays the thread
    source._positions = {("t", 0): UNKNOWN, ("t", 1): UNKNOWN}
    yield source
    client.close()


def test_an_offset_is_recorded_after_the_record_was_submitted_and_as_the_next_one(source: Any) -> None:
    source._enqueue([Message(0, 7), Message(0, 8), Message(1, 3)])
    batch = source.poll(0.1)
    assert source.first_offsets(batch) == {("t", 0): 7, ("t", 1): 3}
    assert source.held() == {("t", 0): UNKNOWN, ("t", 1): UNKNOWN}
    source.finish()
    assert source.held() == {("t", 0): 9, ("t", 1): 4}


def test_a_batch_has_at_most_the_records_of_one_poll(source: Any) -> None:
    source._enqueue([Message(0, number) for number in range(BATCH + 1)])
    assert [len(source.poll(0.1)) for _ in range(3)] == [BATCH, 1, 0]


def test_the_queue_holds_a_hundred_polls() -> None:
    assert queue_limit(BATCH) == 100 * BATCH


def test_the_queue_is_bounded_by_bytes_too(source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `ClassicSource._round`, count records only: with large ones, a slow application would fill the memory."""
    monkeypatch.setattr(classic_source, "MAX_QUEUED_BYTES", 3 * classic_source.MESSAGE_OVERHEAD_BYTES)
    source._flows, source._client = True, mock.Mock()
    source._client.poll.return_value = None
    source._client.consume.side_effect = [[Message(0, 1)], [Message(0, 2)], [Message(0, 3)]]
    for _ in range(5):
        source._round()
    assert source._client.consume.call_count == 3
    assert len(source.poll(0.1)) == 3
    source._client.consume.side_effect = [[Message(0, 4)]]
    source._round()
    assert [message.offset() for message in source.poll(0.1)] == [4]


def test_records_of_partitions_that_are_gone_or_not_placed_yet_are_dropped(source: Any) -> None:
    source.arrived = {("t", 1)}
    source._enqueue([Message(0, 1), Message(1, 1), Message(5, 1)])
    assert [message.partition() for message in source.poll(0.1)] == [0]


def test_a_revocation_clears_the_queue_also_before_the_first_record(source: Any) -> None:
    """Line 6: the rest of it is ignored then, but the queue is cleared all the same."""
    source._enqueue([Message(0, 1)])
    source._revoked(source._client, [])
    assert (source.held(), source.poll(0.0), source.was_revoked) == ({}, [], True)


@pytest.mark.parametrize(("move", "flag"), [("_revoked", "was_revoked"), ("_lost", "has_lost")])
def test_partitions_are_missing_only_after_a_flag_says_so(source: Any, move: str, flag: str) -> None:
    """As it was: a member could answer a checkpoint without partitions that its state had records of."""
    flags: list[bool] = []
    source._positions = Watched(source._positions, lambda: flags.append(source.has_given_up))
    getattr(source, move)(source._client, [])
    assert flags == [True]
    assert getattr(source, flag)
    assert source.has_given_up


class Watched(dict[Any, int]):
    """Positions that tell when they are cleared."""

    def __init__(self, positions: Any, tell: Callable[[], None]) -> None:
        super().__init__(positions)
        self._tell = tell

    def clear(self) -> None:
        self._tell()
        super().clear()


@pytest.mark.parametrize("do", ["place", "seek"])
def test_what_was_meant_for_a_former_assignment_is_neither_placed_nor_sought(source: Any, do: str) -> None:
    """As it was: partitions that came between began where the group's offsets were, behind records of no checkpoint."""
    source.held()

    def move_before(task: Callable[[], None]) -> None:
        partitions = [confluent_kafka.TopicPartition("t", number) for number in (0, 7)]
        source._assigned(source._client, partitions)
        task()

    source._require_done = move_before
    getattr(source, do)({("t", 0): 3, ("t", 1): 4})
    assert source.arrived == {("t", 0), ("t", 7)}
    assert set(source.held().values()) == {UNKNOWN}
    source._require_done = lambda task: task()
    source.place({("t", 0): 3})
    assert (source.arrived, source.held()) == (set(), {("t", 0): 3, ("t", 7): UNKNOWN})


def test_a_batch_before_a_seek_is_not_processed(source: Any) -> None:
    """In `ClassicSource.seek`, keep it: after a reset, records count as processed that are in no state."""
    source._client = mock.Mock()
    source._require_done = lambda task: task()
    source._enqueue([Message(0, 7)])
    assert len(source.poll(0.1)) == 1
    source.seek({("t", 0): 3, ("t", 1): 4})
    source.finish()
    assert source.held() == {("t", 0): 3, ("t", 1): 4}


def test_a_seek_keeps_the_place_of_a_partition_whose_first_record_is_queued(source: Any) -> None:
    """In `ClassicSource._assign_at`, do not look at the queue: a client that begins with the latest skips it."""
    source._client = mock.Mock()
    source._require_done = lambda task: task()
    source._enqueue([Message(1, 100), Message(1, 101)])
    source.arrived = {("t", 0)}
    for _ in range(2):  # it is not fetched again before the second one
        source.seek({("t", 0): 5})
        (assigned,) = source._client.assign.call_args.args
        assert [(one.partition, one.offset) for one in assigned] == [(0, 5), (1, 100)]
    assert source.held() == {("t", 0): 5, ("t", 1): 100}
    assert source.arrived == set(), "else nothing is read any more"


def test_a_source_reads_on_after_a_revocation(source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `ClassicSource._clear`, keep what is paused, which the client would refuse to resume; or the queue's size."""
    monkeypatch.setattr(classic_source, "MAX_QUEUED_BYTES", classic_source.MESSAGE_OVERHEAD_BYTES)
    source._flows, source._client = True, mock.Mock()
    source._client.poll.return_value = None
    source._client.consume.side_effect = [[Message(0, 1)], []]
    for _ in range(2):
        source._round()
    source._client.pause.assert_called_once()  # there is no room
    source._revoked(source._client, [])
    source._round()
    assert source._client.consume.call_count == 2
    source._client.resume.assert_not_called()


def test_where_nothing_is_stored_a_partition_begins_with_its_earliest_record(
    source: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """In `ClassicSource._begins`, leave it to the client: with `latest`, each assignment skips what has come."""
    stored, earliest = confluent_kafka.OFFSET_STORED, confluent_kafka.OFFSET_BEGINNING
    found = [confluent_kafka.TopicPartition("t", 0, 7), confluent_kafka.TopicPartition("t", 1)]
    late = confluent_kafka.KafkaException(confluent_kafka.KafkaError(confluent_kafka.KafkaError._TIMED_OUT))
    source._client = mock.Mock()
    source._client.committed.side_effect = [found, late]
    for begins, lines in (({0: stored, 1: earliest}, 0), ({0: stored, 1: stored}, 1)):
        source._assign_at({})
        (assigned,) = source._client.assign.call_args.args
        assert {one.partition: one.offset for one in assigned} == begins
        assert len(caplog.messages) == lines


def test_only_clients_of_confluent_kafka_are_taken() -> None:
    with pytest.raises(ConfigurationError, match=r"a confluent_kafka\.Consumer is expected, not str"):
        ForcedRegion(
            "client",  # type: ignore[arg-type]
            ["t"],
            zookeeper="z:1",
            group="g",
            name="r",
            member="m",
            on_checkpoint=print,
            on_reset=print,
        )


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"every_s": 0}, "every_s must be a number of seconds, 0.01 to 86400, not 0"),
        ({"every_s": 0.0005}, "every_s must be a number of seconds"),
        ({"every_s": 100_000}, "every_s must be a number of seconds"),
        ({"every_s": "10"}, "every_s must be a number of seconds"),
        ({"topics": "orders"}, "topics must be a list of names, not 'orders'"),
        ({"topics": []}, "topics must be a list of names"),
        ({"topics": [7]}, "topics must be a list of names"),
        ({"max_poll_records": 0}, "max_poll_records: must be 1 to 100000, not 0"),
        ({"session_timeout_ms": 0}, "session_timeout_ms: must be 100 to"),
    ],
)
def test_what_would_spoil_the_region_for_all_its_members_is_refused(wrong: dict[str, Any], text: str) -> None:
    """The first member stores `every_s`, and nobody could read it; a text as topics would be read letter by letter."""
    client = confluent_kafka.Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0})
    given: dict[str, Any] = {"topics": ["t"], "on_checkpoint": print, "on_reset": print, **wrong}
    try:
        with pytest.raises(ConfigurationError, match=text):
            ForcedRegion(client, **given, zookeeper="z:1", group="g", name="r", member="m")
    finally:
        client.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_cause_is_told_if_the_event_thread_ends(source: Any) -> None:
    """Otherwise the loop over the region would wait for ever, without a word."""
    client, source._client, source._is_started = source._client, mock.Mock(), False
    source._client.subscribe.side_effect = RuntimeError("a bug")
    source._start()
    source._thread.join(WITHIN_S)
    for _ in range(2):
        with pytest.raises(ConsumerError, match="event thread has stopped: RuntimeError: a bug"):
            source.poll(0.0)
    source._client = client


@pytest.mark.parametrize("flows", [True, False])
def test_a_fatal_error_ends_the_region_and_what_stalls_it_is_told_once(
    source: Any, flows: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As it was: the region waited for ever, without a word."""
    client, source._client, source._flows = source._client, mock.Mock(), flows
    errors = confluent_kafka.KafkaError

    def bring(error: confluent_kafka.KafkaError) -> None:
        source._client.poll.return_value = message = Message(0, 0, error)
        source._client.consume.return_value = [message]
        source._round()

    for code in (errors._TRANSPORT, errors.TOPIC_AUTHORIZATION_FAILED, errors._AUTO_OFFSET_RESET) * 2:
        bring(errors(code, "why"))
    assert ["gets no records of t: " in line for line in caplog.messages] == [True, True]
    assert not source._queue
    for error in (errors(errors._FATAL), errors(errors.FENCED_INSTANCE_ID, "why", fatal=True)):
        with pytest.raises(confluent_kafka.KafkaException):
            bring(error)
    source._client = client


def test_a_move_that_the_client_does_not_make_in_time_ends_the_region(
    source: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the queue's records would follow a restored state, and the move, made later, would repeat records.

    A commit for tools may be late.
    """
    monkeypatch.setattr(classic_source, "TASK_TIMEOUT_S", 0.0)
    source._positions = {("t", 0): 5}
    source.drained()
    assert caplog.messages == ["the offsets of a checkpoint are not committed yet, so tools show more lag"]
    source._enqueue([Message(0, 7)])
    with pytest.raises(ConsumerError, match="the client of Kafka has not returned from a call for 0 s"):
        source.seek({("t", 0): 2})
    with pytest.raises(ConsumerError, match="has not returned"):
        source.poll(0.0)


def test_lost_partitions_always_reset_the_region(source: Any) -> None:
    """A revocation resets it only after a record."""
    source._enqueue([Message(0, 1)])
    source._lost(source._client, [])
    assert (source.held(), source.poll(0.0)) == ({}, [])
    assert (source.has_lost, source.was_revoked) == (True, False)


def test_a_signals_handler_may_ask_what_is_held_at_any_point(source: Any) -> None:
    """It interrupts its own thread, which may hold the lock."""
    with source._changed.lock:
        assert source._changed.lock.acquire(blocking=False)
        source._changed.lock.release()
        assert source.held().keys() == {("t", 0), ("t", 1)}
