"""A start-fetcher, from the command to its ack. Pure.

Reads the stored offsets, asks Kafka where there are none, and acknowledges. Nothing is emitted before the ack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from consumer_agent.outbox import Outbox, Purpose
from consumer_agent.signals import RecordFetcher, ResolveOffsets, StartFetching, TellAssigned, Warn
from consumer_agent.writes import Ack, Outcome, WriteLane
from zkrebalancer.protocol import cluster_nodes, command, paths
from zkrebalancer.protocol.calls import Content, Get, Refused, Reply
from zkrebalancer.protocol.command import StartFetcher
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.ownership import OwnersRecord

MAX_OFFSET_READS = 1_000  # under way at once
MIN_RESOLVE_RETRY_MS = 50  # a topic stands in ZooKeeper a moment before the brokers know it
MAX_RESOLVE_RETRY_MS = 2_000


class Starting(Enum):
    """Where a start stands."""

    READING = auto()  # the stored offsets
    RESOLVING = auto()  # asks Kafka where partitions without a stored offset begin
    WAITING = auto()  # Kafka gave no answer; asks again at `retry_at_ms`
    READY = auto()  # waits for the write lane
    ACKING = auto()
    OVER = auto()  # acknowledged or cancelled


@dataclass(slots=True)
class Start:
    """One start-fetcher in hand."""

    outbox: Outbox
    lane: WriteLane
    group: str
    consumer: str
    name: str
    command: StartFetcher
    stage: Starting = Starting.READING
    partitions: frozenset[TopicPartition] = frozenset()  # those that are not owned already
    unread: list[TopicPartition] = field(default_factory=list)
    reading: set[TopicPartition] = field(default_factory=set)
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    token: int = 0
    retry_at_ms: int | None = None
    retry_delay_ms: int = MIN_RESOLVE_RETRY_MS

    @property
    def is_ready(self) -> bool:
        """Whether the ack may be written."""
        return self.stage is Starting.READY

    @property
    def is_acking(self) -> bool:
        """Whether the ack is being written."""
        return self.stage is Starting.ACKING

    @property
    def is_over(self) -> bool:
        """Whether the next command may begin."""
        return self.stage is Starting.OVER

    def begin(self) -> None:
        """Read the stored offsets of what is new."""
        self.partitions = frozenset(self.command.partitions) - frozenset(self.lane.record.partitions)
        self.unread = sorted(self.partitions, reverse=True)
        self._read()

    def handle_connected(self) -> None:
        """Go on with the reads that the broken connection has interrupted; the lane looks after the ack."""
        if self.stage is Starting.READING:
            self._read()

    def handle_offset(self, partition: TopicPartition, reply: Reply, connected: bool) -> None:
        """Take in a stored offset; an interrupted read is made again."""
        if partition not in self.reading:
            return
        self.reading.discard(partition)
        if isinstance(reply, Refused) and reply.outcome_unknown:
            self.unread.append(partition)
            if not connected:
                return
        elif isinstance(reply, Content):
            self._take_offset(partition, reply.content)
        else:
            self.lane.book.note_read(partition, None)
        self._read()

    def handle_resolved(self, token: int, offsets: Mapping[TopicPartition, int | None], now_ms: int) -> None:
        """Take in where partitions without a stored offset begin."""
        if self.stage is not Starting.RESOLVING or token != self.token:
            return
        self.offsets.update({partition: offset for partition, offset in offsets.items() if offset is not None})
        missing = self.partitions - self.offsets.keys()
        if missing:
            if self.retry_delay_ms == MAX_RESOLVE_RETRY_MS:
                topic, number = min(missing)
                self.outbox.add(Warn(f"{topic}/{number}: Kafka does not say where it begins; asking again"))
            self.stage, self.retry_at_ms = Starting.WAITING, now_ms + self.retry_delay_ms
            self.retry_delay_ms = min(2 * self.retry_delay_ms, MAX_RESOLVE_RETRY_MS)
        else:
            self.stage = Starting.READY

    def handle_tick(self, now_ms: int) -> None:
        """Ask Kafka again when it is time."""
        if self.stage is Starting.WAITING and self.retry_at_ms is not None and now_ms >= self.retry_at_ms:
            self.retry_at_ms = None
            self._resolve()

    def begin_ack(self) -> None:
        """Write the ack; the lane is free."""
        self.stage = Starting.ACKING
        owned = command.applied(self.lane.record.partitions, self.command)
        record = OwnersRecord(self.command.generation, self.command.command_id, owned)
        self.lane.begin({}, Ack(self.name, record), "ack")

    def handle_outcome(self, outcome: Outcome) -> None:
        """Begin to emit: the ack is written; or drop it: the coordinator was faster."""
        if outcome is Outcome.CANCELLED:
            self.handle_cancelled()
            return
        self.stage = Starting.OVER
        if self.partitions:
            self.outbox.add(
                RecordFetcher(
                    "fetcher_started",
                    self.consumer,
                    self.command.generation,
                    self.command.cause.id,
                    dict(self.offsets),
                    late_ms=self.lane.learned_late_ms(),
                ),
                TellAssigned(self.partitions),
                StartFetching(dict(self.offsets), self.command.generation),
            )

    def handle_cancelled(self) -> None:
        """Drop the start."""
        self.stage = Starting.OVER

    def _read(self) -> None:
        while self.unread and len(self.reading) < MAX_OFFSET_READS:
            partition = self.unread.pop()
            self.reading.add(partition)
            self.outbox.request(Purpose.READ_OFFSET, Get(paths.offsets(self.group, *partition)), partition)
        if not self.reading and not self.unread:
            self._resolve()

    def _take_offset(self, partition: TopicPartition, content: bytes) -> None:
        try:
            offset = cluster_nodes.decode_counter("offset", content)
        except NodeContentError as error:
            self.outbox.add(Warn(f"{partition[0]}/{partition[1]}: {error}; it starts as if none were stored"))
            self.lane.book.note_unreadable(partition)
        else:
            self.offsets[partition] = offset
            self.lane.book.note_read(partition, offset)

    def _resolve(self) -> None:
        unknown = self.partitions - self.offsets.keys()
        if unknown:
            self.stage, self.token = Starting.RESOLVING, self.outbox.token()
            self.outbox.add(ResolveOffsets(self.token, unknown))
        else:
            self.stage = Starting.READY
