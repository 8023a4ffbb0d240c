"""Kafka's offset store in virtual time, and an agent's connection to it.

A commit may arrive as late as its sender's time limit, even if the sender is suspended or dead; its answer may be lost.
A later commit is rejected, because the sender has closed the connection by then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from random import Random

from consumer_agent.kafka.offset_store import Committed, Found
from consumer_agent.membership.offset_books import Storage
from tests.simulation.host import Host
from tests.simulation.kafka import Brokers
from zkrebalancer.protocol.fields import TopicPartition

WAY_US = (150, 6_000)
DELAYED_PROBABILITY = 0.05
LOST_PROBABILITY = 0.03
UNREAD_PROBABILITY = 0.03  # of a partition, in an answer about many
READ_TIMEOUT_US = 500_000

# The settings of a group's agents: one store throughout, or a migration between the two.
CHOICES: tuple[tuple[Storage, ...], ...] = (
    (Storage.ZOOKEEPER,),
    (Storage.ZOOKEEPER,),
    (Storage.KAFKA,),
    (Storage.KAFKA,),
    (Storage.DUAL,),
    (Storage.ZOOKEEPER, Storage.DUAL),
    (Storage.DUAL, Storage.KAFKA),
)


@dataclass(frozen=True, slots=True)
class Commit:
    """One offset that arrives at the brokers."""

    group: str
    consumer: str  # its sender at that time
    partition: TopicPartition
    before: tuple[int, str] | None
    after: tuple[int, str]


class SimulatedStore:
    """Replaces `KafkaOffsetStore` for one agent."""

    def __init__(
        self, brokers: Brokers, host: Host, group: str, consumer: Callable[[], str | None], *, is_reliable: bool
    ) -> None:
        self._brokers = brokers
        self._is_reliable = is_reliable
        self._host = host
        self._group = group
        self._consumer = consumer
        self._random = Random(f"{host.name}/store")
        self._unread = Random(f"{host.name}/store/unread")

    def close(self) -> None:
        """Do nothing: commits in flight still arrive."""

    def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]], timeout_s: float, answer: Committed) -> None:
        timeout_us = int(timeout_s * 1_000_000)
        way_us = self._random.randrange(*WAY_US)
        if self._happens(DELAYED_PROBABILITY):
            way_us = self._random.randrange(2 * timeout_us + 1)
        consumer, left_us = self._consumer() or "", timeout_us - way_us
        self._brokers.schedule.after(way_us, self._arrive, consumer, dict(offsets), left_us, answer)

    def _happens(self, probability: float) -> bool:
        return not self._is_reliable and self._random.random() < probability

    def _arrive(
        self, consumer: str, offsets: dict[TopicPartition, tuple[int, str]], left_us: int, answer: Committed
    ) -> None:
        if left_us < 0 or not self._brokers.is_up:
            self._host.after(max(0, left_us), lambda: answer(dict.fromkeys(offsets, "timed out"), is_hopeless=False))
            return
        refused = {partition: "unknown" for partition in offsets if partition not in self._brokers.logs}
        for partition, after in offsets.items():
            if partition not in refused:
                before = self._brokers.offsets.get((self._group, partition))
                self._brokers.offsets[self._group, partition] = after
                self._brokers.tell_commit(self._host, Commit(self._group, consumer, partition, before, after))
        if self._happens(LOST_PROBABILITY):
            self._host.after(left_us, lambda: answer(dict.fromkeys(offsets, "timed out"), is_hopeless=False))
        else:
            self._host.after(self._random.randrange(*WAY_US), lambda: answer(refused, is_hopeless=False))

    def read(self, partitions: Collection[TopicPartition], answer: Found) -> None:
        self._host.after(self._random.randrange(*WAY_US), self._read, sorted(partitions), answer)

    def _read(self, partitions: list[TopicPartition], answer: Found) -> None:
        if not self._brokers.is_up or self._happens(LOST_PROBABILITY):
            self._host.after(READ_TIMEOUT_US, answer, None)
            return
        known = self._brokers.offsets
        found = {tp: known.get((self._group, tp)) for tp in partitions if (self._group, tp) in known}
        if not self._is_reliable:
            found |= {tp: None for tp in partitions if self._unread.random() < UNREAD_PROBABILITY}
        self._host.after(self._random.randrange(*WAY_US), answer, found)
