"""Results in topics of Kafka: one for each group, whose partitions are those of the input."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.exactly_once.judging import Judgement, Log, judge

READ_TIMEOUT_S = 30.0  # without a record
ASK_TIMEOUT_S = 2.0
TURN_S = 0.1  # for one turn of reading
MESSAGES_AT_ONCE = 10_000
READINGS = 5  # the markers of the last transactions reach the topic some time after the offsets do
PAUSE_S = 1.0


def topic_of(group: str) -> str:
    """Return the topic that has a group's results."""
    return f"results-{group}"


def encoded(offset: int, number: int) -> bytes:
    """Return a result."""
    return b"%d %d" % (offset, number)


@dataclass(frozen=True, slots=True)
class KafkaResults:
    """The topics of results of a broker, and the progress that sinks have stored there."""

    bootstrap: str
    topic: str  # of the input
    partitions: int  # that it may have at most

    @property
    def address(self) -> str:
        """Nothing more than every worker is told."""
        return "kafka:"

    def next_offsets(self, group: str) -> dict[int, int]:
        """Return the next offset of each partition, as transactions have stored it."""
        reader = self._reader(f"{group}.region", "read_uncommitted")  # else it would wait for open transactions
        try:
            wanted = [TopicPartition(self.topic, number) for number in range(self.partitions)]
            known = reader.committed(wanted, timeout=ASK_TIMEOUT_S)
        except KafkaException:  # the broker is away
            return {}
        finally:
            reader.close()
        return {one.partition: one.offset for one in known if one.error is None and one.offset >= 0}

    def has_doubles(self, group: str) -> bool:
        """Whether a record has two results."""
        try:
            found = self._read(group, ASK_TIMEOUT_S)
        except KafkaException:  # the broker is away
            return False
        return any(len(set(offsets)) < len(offsets) for offsets, _numbers in found.values())

    def judge(self, group: str, log: Log) -> Judgement:
        """Compare the committed results with the log; the last ones may become visible a little later."""
        found, left = judge(log, self.rows(group)), READINGS
        while found.lost and left:
            time.sleep(PAUSE_S)
            found, left = judge(log, self.rows(group)), left - 1
        return found

    def rows(self, group: str) -> Iterator[tuple[int, int, int]]:
        """Yield partition, offset and number of each committed result, in the order of each partition."""
        for partition, (offsets, numbers) in self._read(group, READ_TIMEOUT_S).items():
            yield from zip([partition] * len(offsets), offsets, numbers, strict=True)

    def _read(self, group: str, timeout_s: float) -> dict[int, tuple[array[int], array[int]]]:
        found = {number: (array("q"), array("q")) for number in range(self.partitions)}
        reader = self._reader("results", "read_committed")
        give_up_at_s = time.monotonic() + timeout_s
        try:
            reader.assign([TopicPartition(topic_of(group), number, 0) for number in found])
            left = set(found)
            while left:
                messages = reader.consume(MESSAGES_AT_ONCE, timeout=TURN_S)
                if messages:
                    give_up_at_s = time.monotonic() + timeout_s
                elif time.monotonic() > give_up_at_s:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
                for message in messages:
                    error, partition = message.error(), message.partition() or 0
                    if error is not None and error.code() == KafkaError._PARTITION_EOF:
                        left.discard(partition)
                    elif error is None:
                        offset, number = (message.value() or b"-1 -1").split()
                        found[partition][0].append(int(offset))
                        found[partition][1].append(int(number))
        finally:
            reader.close()
        return found

    def _reader(self, group: str, isolation: str) -> Consumer:
        settings = {"bootstrap.servers": self.bootstrap, "group.id": group, "enable.auto.commit": False}
        return Consumer({**settings, "isolation.level": isolation, "enable.partition.eof": True})
