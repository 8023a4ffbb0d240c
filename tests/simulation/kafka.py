"""Kafka's brokers in virtual time: growing logs, and librdkafka's view of them for the fetcher."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # it is its public name

from tests.simulation.schedule import Schedule

MAX_MESSAGES = 50  # for one poll of the fetcher


@dataclass(slots=True)
class Log:
    """One partition of one incarnation of a topic; grows until the producers stop."""

    incarnation: str
    created_us: int
    interval_us: int  # between two records


class Brokers:
    """All topics as the brokers have them."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.logs: dict[tuple[str, int], Log] = {}
        self.stopped_us: int | None = None  # end of the producers
        self.down_until_us = 0
        self.offsets: dict[tuple[str, tuple[str, int]], tuple[int, str]] = {}  # group, partition -> offset, text
        self.tell_commit: Callable[..., None] = lambda _host, _commit: None  # called when a commit arrives

    def end(self, partition: tuple[str, int]) -> int:
        """Return the offset after the last record; the log begins at 0."""
        log = self.logs[partition]
        until_us = self.schedule.now_us if self.stopped_us is None else self.stopped_us
        return max(0, until_us - log.created_us) // log.interval_us

    def next_record_us(self, partition: tuple[str, int]) -> int | None:
        """Return when the next record is produced, None if never."""
        log = self.logs.get(partition)
        if log is None or self.stopped_us is not None:
            return None
        return log.created_us + (self.end(partition) + 1) * log.interval_us

    @property
    def is_up(self) -> bool:
        return self.schedule.now_us >= self.down_until_us

    def set_topic(self, topic: str, partitions: int, incarnation: str, interval_us: int) -> None:
        for number in range(partitions):
            known = self.logs.get((topic, number))
            if known is None or known.incarnation != incarnation:
                self.logs[topic, number] = Log(incarnation, self.schedule.now_us, interval_us)

    def delete_topic(self, topic: str) -> None:
        self.logs = {partition: log for partition, log in self.logs.items() if partition[0] != topic}
        self.offsets = {key: stored for key, stored in self.offsets.items() if key[1][0] != topic}


class Client:
    """Replaces librdkafka's consumer: assigned partitions and fetched records."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self.positions: dict[tuple[str, int], int] = {}
        self._stopped: set[tuple[str, int]] = set()  # out of range, until assigned again
        self._paused: set[tuple[str, int]] = set()
        self._fetched: list[Message] = []

    def incremental_assign(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self.positions[partition.topic, partition.partition] = partition.offset
            self._stopped.discard((partition.topic, partition.partition))

    def incremental_unassign(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            del self.positions[partition.topic, partition.partition]

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._paused.update((partition.topic, partition.partition) for partition in partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._paused.difference_update((partition.topic, partition.partition) for partition in partitions)

    def fetch(self, room: int) -> bool:
        """Fetch available records, as during a poll; return whether there are any."""
        room = min(room, MAX_MESSAGES)
        for partition, position in self.positions.items() if self._brokers.is_up else ():
            log = self._brokers.logs.get(partition)
            if log is None or partition in self._stopped | self._paused:
                continue
            end = self._brokers.end(partition)
            if position > end:
                error = KafkaError(KafkaError._AUTO_OFFSET_RESET)
                self._fetched.append(Message(topic=partition[0], partition=partition[1], error=error))
                self._stopped.add(partition)
            count = max(0, min(room - len(self._fetched), end - position))
            value = log.incarnation.encode()
            topic, number = partition
            self._fetched += [
                Message(topic=topic, partition=number, offset=position + n, value=value) for n in range(count)
            ]
            self.positions[partition] = position + count
        return bool(self._fetched)

    def next_fetch_us(self) -> int | None:
        """Return when the next record can be fetched."""
        now_us, times = self._brokers.schedule.now_us, []
        for partition, position in self.positions.items():
            if partition in self._brokers.logs and partition not in self._stopped | self._paused:
                end = self._brokers.end(partition)
                times.append(now_us if position != end else self._brokers.next_record_us(partition))
        soonest_us = min((at_us for at_us in times if at_us is not None), default=None)
        return None if soonest_us is None else max(soonest_us, self._brokers.down_until_us)

    def poll(self, _timeout_s: float) -> Message | None:
        return self._fetched.pop(0) if self._fetched else None

    def consume(self, count: int, **_timeout: float) -> list[Message]:
        taken, self._fetched = self._fetched[:count], self._fetched[count:]
        return taken

    def list_topics(self, topic: str, **_timeout: float) -> Description:
        if not self._brokers.is_up:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return Description({topic: Described(sum(1 for name, _number in self._brokers.logs if name == topic))})


class Admin:
    """Replaces librdkafka's admin client: answers a moment later, without blocking the caller."""

    def __init__(self, brokers: Brokers, later: Callable[[Callable[[], None]], object]) -> None:
        self._brokers = brokers
        self._later = later

    def list_offsets(
        self, asked: Mapping[TopicPartition, OffsetSpec], **_: object
    ) -> dict[TopicPartition, Future[Any]]:
        futures: dict[TopicPartition, Future[Any]] = {wanted: Future() for wanted in asked}

        def answer() -> None:
            for wanted, future in futures.items():
                partition = wanted.topic, wanted.partition
                if self._brokers.is_up and partition in self._brokers.logs:
                    is_end = asked[wanted] is OffsetSpec.latest()  # type: ignore[no-untyped-call]
                    future.set_result(TopicPartition(*partition, self._brokers.end(partition) if is_end else 0))
                else:
                    future.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))

        self._later(answer)
        return futures

    def describe_topics(self, *_: object, **__: object) -> None: ...


@dataclass(frozen=True, slots=True)
class Led:
    """A partition with a leader."""

    leader: int = 1


class Described:
    """A topic as the metadata describes it."""

    def __init__(self, count: int) -> None:
        self.partitions = {number: Led() for number in range(count)}


@dataclass(frozen=True, slots=True)
class Description:
    """The metadata of some topics."""

    topics: dict[str, Described]
