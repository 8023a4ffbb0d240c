"""What the topic stream reads next as Kafka's answers change: no record twice, and no silent loss."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Self

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType

from zkrebalancer.pipeline import topic
from zkrebalancer.pipeline.source.kafka import END, FIRST, KafkaReadError, client_settings
from zkrebalancer.pipeline.source.offsets import Document, Range
from zkrebalancer.pipeline.source.stream import RangesPartition
from zkrebalancer.pipeline.topic import EventTopic, EventTopicError, EventTopicReader, Place
from zkrebalancer.protocol.fields import TopicPartition

NO_LIMIT = ReadMaxRows(1_000)
DAY_MS = 86_400_000


class FakeKafka:
    """The logs of topic t by partition, as (begin, end); None while no broker answers."""

    def __init__(self) -> None:
        self.logs: dict[int, tuple[int, int]] | None = {0: (5, 10), 1: (0, 0)}
        self.is_mute = False  # `ends` has no answer, `offsets` still has
        self.silent = set[int]()  # partitions of which nothing is said

    def __call__(self, _options: object) -> FakeKafka:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def partitions(self, _topics: object) -> list[TopicPartition]:
        if self.logs is None:
            raise KafkaReadError("no broker answers")
        return [("t", number) for number in self.logs]

    def offsets(self, partitions: Iterable[TopicPartition], moment: int) -> dict[TopicPartition, int]:
        found = self._said(partitions, moment)
        if self.silent:
            raise KafkaReadError("no answer about some partitions")
        return found

    def ends(self, partitions: Iterable[TopicPartition], moment: int = END) -> dict[TopicPartition, int]:
        said = self._said(partitions, moment)
        return {} if self.is_mute else {tp: at for tp, at in said.items() if tp[1] not in self.silent}

    def _said(self, partitions: Iterable[TopicPartition], moment: int) -> dict[TopicPartition, int]:
        assert self.logs is not None
        return {(name, number): self.logs[number][0 if moment == FIRST else 1] for name, number in partitions}


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> FakeKafka:
    kafka = FakeKafka()
    monkeypatch.setattr(topic, "Logs", kafka)
    return kafka


def new_reader() -> EventTopicReader:
    return EventTopicReader(Place({"bootstrap.servers": "localhost:9092"}, "t").reading())


def test_settings_of_librdkafka_reach_the_clients() -> None:
    place = Place({"bootstrap.servers": "localhost:9092", "security.protocol": "ssl"}, "t")
    reader = EventTopic(place.as_options()).streamReader(StructType())
    assert isinstance(reader, EventTopicReader)
    settings = client_settings(reader._options)
    assert (settings["bootstrap.servers"], settings["security.protocol"]) == ("localhost:9092", "ssl")


def tasks(start: Document, end: Document) -> list[Range]:
    """Return the ranges that a fresh reader's tasks read in a batch."""
    parts = new_reader().partitions(start, end)
    return sorted(each for part in parts if isinstance(part, RangesPartition) for each in part.ranges)


def lengths(ranges: Iterable[Range]) -> dict[int, int]:
    found: dict[int, int] = {}
    for each in ranges:
        found[each.partition] = found.get(each.partition, 0) + each.end - each.begin
    return found


def reading_ms(end: Document) -> int:
    return max(each.generation or 0 for each in tasks({}, end))


def test_the_time_of_reading_never_goes_back(kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `EventTopicReader._reading_ms`, return the wall clock, or do not look at what was stored.

    Spark would drop all lines until the clock has caught up with its watermark.
    """
    wall_ms, passed_s = 10**12, 0.0
    monkeypatch.setattr(time, "time_ns", lambda: wall_ms * 1_000_000)
    monkeypatch.setattr(time, "monotonic", lambda: passed_s)
    reader, found, end = new_reader(), list[int](), Document()
    for jump_ms, restarts in (
        (0, False),
        (DAY_MS, False),
        (0, False),
        (-DAY_MS, True),
        (-2 * DAY_MS, False),
        (0, True),
    ):
        wall_ms, passed_s = 10**12 + jump_ms, passed_s + 1
        if restarts:
            reader = new_reader()
        kafka.logs = {0: (0, len(found) + 1)}
        end = reader.latestOffset(end, NO_LIMIT)
        found.append(reading_ms(end))
    assert found == [10**12, 10**12 + 1_000, 10**12 + 2_000, 10**12 + 2_000, 10**12 + 3_000, 10**12 + 3_000]
    wall_ms += DAY_MS
    kafka.logs = {0: (0, 100)}
    assert reading_ms(new_reader().latestOffset(end, NO_LIMIT)) == 10**12 + DAY_MS


def test_each_offset_is_read_once_also_in_new_partitions(kafka: FakeKafka) -> None:
    reader = new_reader()
    first = reader.latestOffset(reader.initialOffset(), NO_LIMIT)
    assert lengths(tasks({}, first)) == {0: 5}
    assert min(each.begin for each in tasks({}, first)) == 5
    assert reader.latestOffset(first, NO_LIMIT) == first
    assert tasks(first, first) == []
    kafka.logs = {0: (5, 12), 1: (0, 3), 2: (0, 4)}
    second = new_reader().latestOffset(first, NO_LIMIT)  # a restarted reader
    assert lengths(tasks(first, second)) == {0: 2, 1: 3, 2: 4}
    assert min(each.begin for each in tasks(first, second) if each.partition == 0) == 10


def test_a_batch_keeps_its_limit(kafka: FakeKafka) -> None:
    kafka.logs = {0: (0, 100), 1: (0, 7)}
    reader = new_reader()
    offset: Document = {}
    batches: list[dict[int, int]] = []
    while (end := reader.latestOffset(offset, ReadMaxRows(20))) != offset:
        batches.append(lengths(tasks(offset, end)))
        offset = end
    assert all(sum(batch.values()) <= 20 for batch in batches)
    assert sum(sum(batch.values()) for batch in batches) == 107


def test_available_now_ends_at_the_present_ends(kafka: FakeKafka) -> None:
    reader = new_reader()
    reader.prepareForTriggerAvailableNow()
    kafka.logs = {0: (5, 50), 1: (0, 50), 2: (0, 50)}
    end = reader.latestOffset({}, NO_LIMIT)
    assert lengths(tasks({}, end)) == {0: 5}
    assert reader.latestOffset(end, NO_LIMIT) == end


def test_available_now_does_not_end_as_if_all_was_read(kafka: FakeKafka) -> None:
    """In `latestOffset`, return `start` while a broker is away: the query ends as a success, and its tables lack lines.

    Without targets it goes on; and once they are reached, no broker needs to answer.
    """
    kafka.logs = {0: (5, 10), 1: (0, 3)}
    reader = new_reader()
    reader.prepareForTriggerAvailableNow()
    first = reader.latestOffset({}, ReadMaxRows(2))
    kafka.silent = {0}
    second = reader.latestOffset(first, NO_LIMIT)
    assert set(lengths(tasks(first, second))) == {1}
    with pytest.raises(KafkaReadError, match="Kafka does not say what is left of t/0"):
        reader.latestOffset(second, NO_LIMIT)
    kafka.logs = None
    with pytest.raises(KafkaReadError, match="no broker answers"):
        reader.latestOffset(second, NO_LIMIT)
    assert new_reader().latestOffset(second, NO_LIMIT) == second
    kafka.logs, kafka.silent = {0: (5, 10), 1: (0, 3)}, set()
    third = reader.latestOffset(second, NO_LIMIT)
    kafka.logs = None
    assert reader.latestOffset(third, NO_LIMIT) == third


def test_available_now_needs_no_answer_from_ends(kafka: FakeKafka) -> None:
    reader = new_reader()
    kafka.is_mute = True
    reader.prepareForTriggerAvailableNow()
    kafka.is_mute = False
    assert lengths(tasks({}, reader.latestOffset({}, NO_LIMIT))) == {0: 5}


def test_only_the_first_batch_fails_without_a_broker(kafka: FakeKafka) -> None:
    end = new_reader().latestOffset({}, NO_LIMIT)
    kafka.logs = None
    assert new_reader().latestOffset(end, NO_LIMIT) == end
    with pytest.raises(KafkaReadError, match="no broker answers"):
        new_reader().latestOffset({}, NO_LIMIT)


def test_partitions_of_which_nothing_is_said_keep_their_places_and_no_other_one_waits(kafka: FakeKafka) -> None:
    """In `latestOffset`, ask for all beginnings at once, or leave such partitions out: they would be read again."""
    first = new_reader().latestOffset({}, NO_LIMIT)
    kafka.logs, kafka.silent = {0: (5, 20), 1: (0, 3), 2: (0, 4)}, {0, 2}
    second = new_reader().latestOffset(first, NO_LIMIT)
    assert lengths(tasks(first, second)) == {1: 3}
    kafka.silent = set()
    third = new_reader().latestOffset(second, NO_LIMIT)
    assert lengths(tasks(second, third)) == {0: 10, 2: 4}
    assert min(each.begin for each in tasks(second, third) if each.partition == 0) == 10


@pytest.mark.parametrize(
    ("logs", "message"),
    [
        ({0: (11, 20), 1: (0, 0)}, "t/0 was read up to offset 10, and Kafka now has 11 to 20"),  # retention
        ({0: (0, 9), 1: (0, 0)}, "t/0 was read up to offset 10, and Kafka now has 0 to 9"),  # deleted and created again
        ({0: (5, 10)}, "t/1 was read before and is gone"),
    ],
)
def test_lost_records_are_an_error(kafka: FakeKafka, logs: dict[int, tuple[int, int]], message: str) -> None:
    end = new_reader().latestOffset({}, NO_LIMIT)
    kafka.logs = logs
    with pytest.raises(EventTopicError, match=message):
        new_reader().latestOffset(end, NO_LIMIT)


def test_the_checkpoint_of_another_topic_is_an_error(kafka: FakeKafka) -> None:
    of_another = {"other": {"0": {"from": 0, "to": 1, "generation": 0}}}
    with pytest.raises(EventTopicError, match="other/0 was read before and is gone"):
        new_reader().latestOffset(of_another, NO_LIMIT)
