"""Offsets out of range: the consumer continues at an end of the partition, if Kafka confirms that they are missing."""

from __future__ import annotations

import itertools
import logging
from unittest import mock

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition

from consumer_agent.config import ConsumerConfig
from consumer_agent.errors import NoOffsetError
from consumer_agent.kafka.fetcher import LOOK_INTERVAL_MS, Fetcher
from consumer_agent.runtime.out_of_range import OutOfRange
from consumer_agent.runtime.record_buffer import RecordBuffer
from consumer_agent.runtime.shared_state import SharedState
from tests.unit.consumer_agent.admin import NO_ANSWER, Admin
from tests.unit.consumer_agent.messages import ROOMY, messages

PARTITION = ("t", 0)
EARLIEST, LATEST = 100, 200


# What librdkafka hands over when an offset is out of range; it does not say of which start.
REFUSAL = Message(topic="t", partition=0, error=KafkaError(KafkaError._AUTO_OFFSET_RESET))
CUT_AT = 120
CUT = Message(  # what it hands over when a new leader has less than what was read
    topic="t",
    partition=0,
    error=KafkaError(
        KafkaError._AUTO_OFFSET_RESET,
        f"Partition log truncation detected at offset 150 (leader epoch 4): broker end offset is {CUT_AT} "
        "(offset leader epoch 3). Reset to INVALID.: Local: Partition log truncated (broker 1)",
    ),
)


class Client:
    """librdkafka's consumer above a log from EARLIEST to LATEST."""

    def __init__(self) -> None:
        self.assigned_at: list[int] = []
        self.is_cut_off = False
        self.refusal = REFUSAL
        self.admin = Admin(self._answer)

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned_at += [partition.offset for partition in partitions]

    def incremental_unassign(self, _partitions: list[TopicPartition]) -> None: ...

    def list_topics(self, *_: str, **__: float) -> mock.Mock:
        return mock.Mock(topics={"t": mock.Mock(partitions={0: mock.Mock(leader=1)})})

    def _answer(self, _partition: tuple[str, int], where: str | int) -> int:
        if self.is_cut_off:
            raise NO_ANSWER
        return {"earliest": EARLIEST, "latest": LATEST}[str(where)]

    def poll(self, _timeout_s: float) -> Message:
        return self.refusal

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        return partitions

    def consume(self, *_: int, **__: float) -> list[Message]:
        return []


class Setting:
    """A fetcher in whose place the test does the rounds, with one partition that is started at `position`."""

    def __init__(self, position: int, auto_offset_reset: str = "earliest") -> None:
        self.client = Client()
        self.recorded: list[OutOfRange] = []
        self.shared = SharedState(RecordBuffer(ROOMY), lambda: 0, self.recorded.append)
        config = ConsumerConfig(zookeeper="z:1", bootstrap="b:1", group="g", auto_offset_reset=auto_offset_reset)
        with (
            mock.patch("consumer_agent.kafka.fetcher.KafkaConsumer", return_value=self.client),
            mock.patch("consumer_agent.kafka.offset_queries.AdminClient", return_value=self.client.admin),
        ):
            self.fetcher = Fetcher(config, ["t"], self.shared)
        self.shared.admit(PARTITION, 1, position)
        self.fetcher.change(lambda: {PARTITION: position})

    def round(self) -> None:
        """Do a round, in which Kafka is asked, and begin the next one, in which its answers are handled."""
        self.fetcher._fetch(self.fetcher._begin_round())
        self.fetcher._begin_round()

    def put(self, offsets: range) -> None:
        """Put what was fetched before."""
        with self.shared.lock:
            self.shared.buffer.put(PARTITION, messages(PARTITION, offsets), 0)

    def take(self, count: int | None = None) -> list[int]:
        """Return the offsets of what the application gets."""
        with self.shared.lock:
            runs = self.shared.buffer.take(count)
        return [message.offset() for run in runs for message in run.messages]

    @property
    def returned(self) -> int:
        return self.shared.positions()[PARTITION].returned


@pytest.mark.parametrize("position", [EARLIEST - 1, LATEST + 1])
@pytest.mark.parametrize(("end", "offset"), [("earliest", EARLIEST), ("latest", LATEST)])
def test_it_goes_on_at_the_configured_end(position: int, end: str, offset: int) -> None:
    setting = Setting(position, end)
    setting.round()
    assert setting.client.assigned_at == [position, offset]
    assert setting.returned == offset
    assert setting.recorded == [OutOfRange(PARTITION, position, EARLIEST, LATEST, offset)]
    assert setting.shared.metrics()["offsets_out_of_range_total"] == 1


def test_with_none_the_application_is_told_what_it_needs_to_say_where() -> None:
    setting = Setting(LATEST + 1, "none")
    setting.round()
    assert setting.client.assigned_at == [LATEST + 1]
    assert setting.recorded == [OutOfRange(PARTITION, LATEST + 1, EARLIEST, LATEST, None)]
    metrics = setting.shared.metrics()
    assert (metrics["offsets_out_of_range_total"], metrics["unpositioned_partitions"]) == (1, 1)
    error = setting.shared.take_failure()
    assert isinstance(error, NoOffsetError)
    assert (error.partition, error.offset) == (PARTITION, LATEST + 1)
    assert (error.earliest, error.latest) == (EARLIEST, LATEST)


def test_a_fetcher_that_was_replaced_drops_nothing_of_a_log_that_was_cut() -> None:
    """In `Fetcher._ask_for_ends`, forget that another one fetches: behind what this drops, which nobody read then."""
    setting = Setting(CUT_AT)
    setting.client.refusal = CUT
    room = setting.fetcher._begin_round()
    setting.put(range(CUT_AT, 150))
    setting.fetcher.stop()
    setting.fetcher._fetch(room)
    assert setting.take() == list(range(CUT_AT, 150))


@pytest.mark.parametrize("is_cut_off", [False, True])
@pytest.mark.parametrize("position", [150, LATEST + 1])
@pytest.mark.parametrize("end", ["earliest", "latest"])
def test_where_a_log_was_cut_it_goes_on_there(position: int, end: str, *, is_cut_off: bool) -> None:
    """Also if new records have taken the offset that is wanted, and if Kafka does not answer about its ends."""
    setting = Setting(position, end)
    setting.client.refusal, setting.client.is_cut_off = CUT, is_cut_off
    setting.round()
    assert setting.client.assigned_at == [position, CUT_AT]
    assert setting.returned == CUT_AT
    earliest = CUT_AT if is_cut_off else EARLIEST
    assert setting.recorded == [OutOfRange(PARTITION, position, earliest, CUT_AT, CUT_AT, is_cut=True)]


def test_with_none_the_application_is_told_where_a_log_was_cut() -> None:
    setting = Setting(150, "none")
    setting.client.refusal = CUT
    setting.round()
    assert setting.client.assigned_at == [150]
    error = setting.shared.take_failure()
    assert isinstance(error, NoOffsetError)
    assert str(error) == "t/0: Kafka has lost 30 offsets that were read, from 120 on; auto_offset_reset is none"
    assert (error.offset, error.latest) == (150, CUT_AT)
    assert not setting.fetcher._assigned  # nothing of it can come, so its silence is no stall


def test_a_log_that_was_cut_above_the_position_is_read_on() -> None:
    """The report belonged to an earlier start."""
    setting = Setting(CUT_AT)
    setting.client.refusal = CUT
    setting.round()
    assert setting.client.assigned_at == [CUT_AT, CUT_AT]
    assert setting.recorded == []


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (OutOfRange(PARTITION, 90, 100, 200, 100), "not 90; continuing at 100, which skips 10 offsets"),
        (OutOfRange(PARTITION, 90, 100, 200, 200), "not 90; continuing at 200, which skips 110 offsets"),
        (OutOfRange(PARTITION, 250, 100, 200, 100), "not 250; continuing at 100, which reads 100 offsets again"),
        (OutOfRange(PARTITION, 250, 100, 200, 200), "not 250; continuing at 200"),
    ],
)
def test_the_warning_says_what_it_costs(found: OutOfRange, text: str) -> None:
    assert str(found) == f"t/0: Kafka has offsets 100 to 200, {text}"


@pytest.mark.parametrize("position", [EARLIEST, 150, LATEST])
@pytest.mark.parametrize("end", ["earliest", "latest"])
def test_a_refusal_of_an_earlier_start_neither_repeats_nor_skips_records(position: int, end: str) -> None:
    setting = Setting(position, end)
    setting.round()
    assert setting.client.assigned_at == [position, position]
    assert setting.returned == position
    assert setting.recorded == []


def test_records_that_come_before_the_answer_are_neither_repeated_nor_skipped() -> None:
    """The log has grown since Kafka was asked. In `Fetcher._reset`, do not compare the position with that of then."""
    setting = Setting(LATEST)
    setting.fetcher._fetch(setting.fetcher._begin_round())
    with setting.shared.lock:
        setting.shared.buffer.put(PARTITION, [Message(topic="t", partition=0, offset=LATEST, value=b"")], 0)
    setting.fetcher._begin_round()
    assert setting.client.assigned_at == [LATEST]
    assert setting.recorded == []


def test_what_was_fetched_before_its_log_began_later_is_returned_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `due`, wait for nothing: what the application did not have yet was dropped."""
    setting = Setting(EARLIEST - 10)
    setting.put(range(EARLIEST - 10, EARLIEST - 5))
    setting.round()
    assert setting.client.assigned_at == [EARLIEST - 10]
    waits: list[float | None] = []
    monkeypatch.setattr(setting.shared.fetcher_wake, "wait", waits.append)
    setting.shared.is_awaited = False
    setting.fetcher._wait_for_work()
    assert waits == [None]
    assert setting.take() == list(range(EARLIEST - 10, EARLIEST - 5))
    setting.fetcher._wait_for_work()
    assert len(waits) == 1
    setting.round()
    assert setting.client.assigned_at == [EARLIEST - 10, EARLIEST]
    assert setting.returned == EARLIEST
    assert setting.recorded == [OutOfRange(PARTITION, EARLIEST - 5, EARLIEST, LATEST, EARLIEST)]


def test_where_a_log_was_cut_what_was_fetched_below_is_fetched_again() -> None:
    """In `take_due`, drop nothing: records that Kafka had kept, and the application did not have yet, were skipped."""
    setting = Setting(EARLIEST)
    setting.put(range(EARLIEST, 150))
    assert setting.take(5) == list(range(EARLIEST, EARLIEST + 5))
    setting.client.refusal = CUT
    setting.round()
    assert setting.client.assigned_at == [EARLIEST, EARLIEST + 5]
    assert (setting.returned, setting.take(), setting.recorded) == (EARLIEST + 5, [], [])


def test_the_report_of_a_start_that_is_over_is_dropped() -> None:
    """In `Fetcher._change_assignment`, keep it: it would be taken for one about where the application has sought."""
    setting = Setting(EARLIEST - 10)
    setting.put(range(EARLIEST - 10, EARLIEST - 5))
    setting.round()
    with setting.shared.lock:
        setting.shared.buffer.seek({PARTITION: LATEST}, is_finished=True)
    setting.fetcher.change(lambda: {PARTITION: LATEST})
    setting.fetcher._begin_round()
    setting.fetcher._begin_round()
    assert setting.client.assigned_at == [EARLIEST - 10, LATEST]
    assert not setting.fetcher._out_of_range


def test_without_an_answer_the_same_place_is_tried_again() -> None:
    setting = Setting(LATEST + 1)
    setting.client.is_cut_off = True
    setting.round()
    setting.client.is_cut_off = False
    setting.round()
    assert setting.client.assigned_at == [LATEST + 1, LATEST + 1, EARLIEST]


def test_a_partition_that_was_stopped_is_left_alone() -> None:
    setting = Setting(LATEST + 1)
    room = setting.fetcher._begin_round()
    setting.shared.stop([PARTITION])
    setting.fetcher._fetch(room)
    assert setting.client.assigned_at == [LATEST + 1]


def test_a_log_handler_may_ask_for_metrics_when_an_offset_is_missing() -> None:
    """It would wait for ever for the lock, if that were held while this is logged or recorded."""
    setting = Setting(EARLIEST - 1)
    asked: list[float] = []

    class Handler(logging.Handler):
        def emit(self, _record: logging.LogRecord) -> None:
            ask()

    def ask() -> None:
        assert not setting.shared.changed.is_held, "the lock is held while foreign code runs"
        with setting.shared.lock:
            asked.append(setting.shared.metrics()["offsets_out_of_range_total"])

    logger, handler = logging.getLogger("consumer_agent"), Handler()
    logger.addHandler(handler)
    with mock.patch.object(setting.shared, "_record_reset", side_effect=lambda _: ask()):
        setting.round()
    logger.removeHandler(handler)
    assert asked == [1, 1]


def test_an_application_that_works_on_what_was_fetched_is_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Fetcher._look_for_stalls`, ask about it: Kafka has more, and the client was replaced though it is well."""
    setting = Setting(90)
    fetched = [*messages(PARTITION, range(90, 95)), REFUSAL]  # as one call of the client returns them
    now_ms, answers = 0, iter(fetched)
    monkeypatch.setattr(setting.shared, "now_ms", lambda: now_ms)
    monkeypatch.setattr(setting.client, "poll", lambda _timeout_s: next(answers, None))
    monkeypatch.setattr(setting.client, "consume", lambda *_, **__: [*answers])
    for _ in range(6):
        setting.round()
        now_ms += LOOK_INTERVAL_MS
        assert not setting.fetcher.stuck
    assert setting.take() == [*range(90, 95)]
    setting.round()
    assert setting.returned == EARLIEST


def test_a_partition_whose_fetches_fail_is_not_taken_for_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that cannot be unpacked stays where it is: no other client would do better, nor any other consumer."""
    setting = Setting(EARLIEST)
    error = Message(topic="t", partition=0, error=KafkaError(KafkaError._BAD_COMPRESSION))
    now_ms, answers = 0, itertools.cycle([error, None])
    monkeypatch.setattr(setting.shared, "now_ms", lambda: now_ms)
    monkeypatch.setattr(setting.client, "poll", lambda _timeout_s: next(answers))
    for _ in range(30):
        now_ms += LOOK_INTERVAL_MS // 4
        setting.round()
        assert not setting.fetcher.stuck
    monkeypatch.setattr(setting.client, "poll", lambda _timeout_s: None)  # it has forgotten the partition after all
    while not setting.fetcher.stuck:
        now_ms += LOOK_INTERVAL_MS
        setting.round()
