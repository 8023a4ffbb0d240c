"""One command, from reading it to its acknowledgement. Pure.

A start reads the stored offsets (and asks Kafka where there are none) before its ack, and emits only after it.
A stop ends the emission, waits for the application if that holds unfinished records, and writes the final offsets with
its ack. Either may turn out to be cancelled by the coordinator: then the ack finds the command gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from consumer_agent.outbox import Outbox, Purpose
from consumer_agent.signals import (
    AskRevoke,
    Forget,
    Position,
    ReadProgress,
    Record,
    ResolveOffsets,
    ResumeFetching,
    StartFetching,
    StopEmitting,
    TellAssigned,
    Warn,
)
from consumer_agent.writes import Ack, Outcome, WriteLane
from zkrebalancer.protocol import cluster_nodes, command, paths
from zkrebalancer.protocol.calls import Content, Get, Refusal, Refused, Reply
from zkrebalancer.protocol.command import Command, StartFetcher
from zkrebalancer.protocol.errors import CommandError, NodeContentError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.ownership import OwnersRecord

MAX_OFFSET_READS = 1_000  # under way at once
RESOLVE_RETRY_MS = 2_000


class Stage(Enum):
    """Where a command stands."""

    READING = auto()  # the command itself
    READING_OFFSETS = auto()  # start: what is stored
    RESOLVING = auto()  # start: asking Kafka where partitions without a stored offset begin
    RESOLVING_LATER = auto()  # start: Kafka gave no answer, waits for `retry_at_ms`
    STOPPING = auto()  # stop: emission ends
    REVOKING = auto()  # stop: waits for the application
    MEASURING = auto()  # stop: reads what the application has finished
    READY = auto()  # waits for the write lane
    ACKING = auto()
    DONE = auto()  # acknowledged, cancelled or gone
    REFUSED = auto()  # cannot be decoded


@dataclass(slots=True)
class Work:
    """The command in hand and what is known for it."""

    outbox: Outbox
    lane: WriteLane
    group: str
    consumer: str
    name: str
    ask_application: bool  # on_revoke is set
    stage: Stage = Stage.READING
    content: bytes = b""
    refusal: str = ""
    command: Command | None = None
    partitions: frozenset[TopicPartition] = frozenset()  # those that the command changes
    unread: list[TopicPartition] = field(default_factory=list)
    reading: set[TopicPartition] = field(default_factory=set)
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    positions: dict[TopicPartition, Position] = field(default_factory=dict)
    token: int = 0
    asked_application: bool = False
    retry_at_ms: int | None = None

    # ---- reading

    def read(self) -> None:
        """Read the command; again after the connection broke."""
        path = f"{paths.channel(self.group, self.consumer)}/{self.name}"
        self.outbox.request(Purpose.READ_COMMAND, Get(path), self.name)

    def handle_connected(self) -> None:
        """Go on with what the broken connection has interrupted; the lane looks after acks."""
        if self.stage is Stage.READING:
            self.read()
        elif self.stage is Stage.READING_OFFSETS:
            self._read_offsets()

    def handle_command(self, reply: Reply, connected: bool) -> None:
        """Take in the command's content; an interrupted read is made again."""
        if self.stage is not Stage.READING:
            return
        if isinstance(reply, Refused) and reply.outcome_unknown:
            if connected:
                self.read()
            return
        if isinstance(reply, Refused):
            self.stage = Stage.DONE if reply.refusal is Refusal.NO_NODE else Stage.REFUSED
            self.refusal = f"the command cannot be read: {reply.refusal.value}"
            return
        assert isinstance(reply, Content)
        self.content = reply.content
        try:
            self.command = command.decode(reply.content)
        except CommandError as error:
            self.stage, self.refusal = Stage.REFUSED, str(error)
            return
        owned = self.lane.record.partitions
        if isinstance(self.command, StartFetcher):
            self.partitions = frozenset(self.command.partitions) - frozenset(owned)
            self.unread = sorted(self.partitions, reverse=True)
            self.stage = Stage.READING_OFFSETS
            self._read_offsets()
            return
        named = self.command.partitions
        self.partitions = frozenset(owned if named is None else named & frozenset(owned))
        if self.partitions:
            self.stage, self.token = Stage.STOPPING, self.outbox.token()
            self.outbox.add(StopEmitting(self.token, self.partitions))
        else:
            self.stage = Stage.READY

    # ---- start

    def _read_offsets(self) -> None:
        while self.unread and len(self.reading) < MAX_OFFSET_READS:
            partition = self.unread.pop()
            self.reading.add(partition)
            self.outbox.request(Purpose.READ_OFFSET, Get(paths.offsets(self.group, *partition)), partition)
        if not self.reading and not self.unread:
            self._resolve()

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
            try:
                self.starts[partition] = cluster_nodes.decode_counter("offset", reply.content)
            except NodeContentError as error:
                self.outbox.add(Warn(f"{partition[0]}/{partition[1]}: {error}; it starts as if none were stored"))
                self.lane.book.nodes.add(partition)
            else:
                self.lane.book.note_read(partition, self.starts[partition])
        else:
            self.lane.book.note_read(partition, None)
        self._read_offsets()

    def _resolve(self) -> None:
        unknown = self.partitions - self.starts.keys()
        if unknown:
            self.stage, self.token = Stage.RESOLVING, self.outbox.token()
            self.outbox.add(ResolveOffsets(self.token, unknown))
        else:
            self.stage = Stage.READY

    def handle_resolved(self, token: int, offsets: Mapping[TopicPartition, int | None], now_ms: int) -> None:
        """Take in where partitions without a stored offset begin."""
        if self.stage is not Stage.RESOLVING or token != self.token:
            return
        self.starts.update({partition: offset for partition, offset in offsets.items() if offset is not None})
        if self.partitions <= self.starts.keys():
            self.stage = Stage.READY
        else:
            missing = sorted(self.partitions - self.starts.keys())[0]
            self.outbox.add(Warn(f"{missing[0]}/{missing[1]}: Kafka does not say where it begins; asking again"))
            self.stage, self.retry_at_ms = Stage.RESOLVING_LATER, now_ms + RESOLVE_RETRY_MS

    def handle_tick(self, now_ms: int) -> None:
        """Ask Kafka again when it is time."""
        if self.stage is Stage.RESOLVING_LATER and self.retry_at_ms is not None and now_ms >= self.retry_at_ms:
            self.retry_at_ms = None
            self._resolve()

    # ---- stop

    def handle_progress(self, token: int, positions: Mapping[TopicPartition, Position]) -> None:
        """Emission has ended (or the application has let go): decide whether the ack may be written."""
        if token != self.token or self.stage not in {Stage.STOPPING, Stage.MEASURING}:
            return
        self.positions = {partition: positions[partition] for partition in self.partitions if partition in positions}
        unfinished = any(position.finished < position.returned for position in self.positions.values())
        if self.stage is Stage.STOPPING and (unfinished or self.ask_application):
            self.stage, self.token = Stage.REVOKING, self.outbox.token()
            self.asked_application = True
            self.outbox.add(AskRevoke(self.token, self.partitions))
        else:
            self.stage = Stage.READY

    def handle_revoked(self, token: int) -> None:
        """The application has let go."""
        if self.stage is Stage.REVOKING and token == self.token:
            self.stage, self.token = Stage.MEASURING, self.outbox.token()
            self.outbox.add(ReadProgress(self.token))

    # ---- the ack

    def begin_ack(self) -> None:
        """Write final offsets and the ack; the lane is free."""
        assert self.command is not None
        self.stage = Stage.ACKING
        owned = command.applied(self.lane.record.partitions, self.command)
        record = OwnersRecord(self.command.generation, self.command.command_id, owned)
        ack = Ack(self.name, record)
        if isinstance(self.command, StartFetcher):
            self.lane.begin({}, ack, "ack")
            return
        if self.positions:
            self._record("fetcher_stopped", {tp: position.returned for tp, position in self.positions.items()}, "revoked")
        finished = {partition: position.finished for partition, position in self.positions.items()}
        self.lane.begin(self.lane.book.changed(finished), ack, "stop-ack")

    def handle_acked(self) -> None:
        """The ack is written: a start begins to emit, a stop has let go."""
        self.stage = Stage.DONE
        if not self.partitions:
            return
        if isinstance(self.command, StartFetcher):
            self._record("fetcher_started", self.starts)
            self.outbox.add(TellAssigned(self.partitions), StartFetching(dict(self.starts), self.command.generation))
        else:
            self.outbox.add(Forget(self.partitions))
            self.lane.book.forget(self.partitions)

    def handle_cancelled(self) -> None:
        """The coordinator has taken the command back: a start never was, a stop goes on where the application is."""
        stage, self.stage = self.stage, Stage.DONE
        if isinstance(self.command, StartFetcher):
            self.lane.book.forget(self.partitions)
            return
        if not self.partitions:
            return
        if stage is Stage.ACKING and self.positions:
            self._record("fetcher_started", {tp: position.returned for tp, position in self.positions.items()})
        if self.asked_application:
            self.outbox.add(TellAssigned(self.partitions))
        self.outbox.add(ResumeFetching(self.partitions))

    def handle_outcome(self, outcome: Outcome) -> None:
        """Take in how the lane has ended the ack."""
        if outcome is Outcome.STORED:
            self.handle_acked()
        elif outcome is Outcome.CANCELLED:
            self.handle_cancelled()

    def _record(self, kind: str, positions: Mapping[TopicPartition, int], reason: str | None = None) -> None:
        assert self.command is not None
        generation, cause_id = self.command.generation, self.command.cause.id
        self.outbox.add(Record(kind, self.consumer, generation, cause_id, dict(positions), reason))
