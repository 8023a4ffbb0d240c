"""A stop-fetcher, from the command to its ack. Pure.

Ends the emission at once, waits for the application if it has unfinished records or an `on_revoke`, and writes the
final offsets with the ack. A stop that the coordinator cancels continues at the application's position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from consumer_agent.membership.effects import (
    AskRevoke,
    EffectQueue,
    Forget,
    ReadProgress,
    RecordFetcher,
    ResumeFetching,
    StopEmitting,
    TellAssigned,
)
from consumer_agent.membership.events import Position
from consumer_agent.membership.fenced_writes import Ack, Outcome, WriteLane
from zkrebalancer.protocol import command
from zkrebalancer.protocol.command import StopFetcher
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.ownership import OwnersRecord


class Stopping(Enum):
    """Where a stop stands."""

    ENDING = auto()  # emission ends
    REVOKING = auto()  # waits for the application
    MEASURING = auto()  # reads what the application has finished
    READY = auto()  # waits for the write lane
    ACKING = auto()
    OVER = auto()  # acknowledged or cancelled


@dataclass(slots=True)
class Stop:
    """One stop-fetcher being handled."""

    effects: EffectQueue
    lane: WriteLane
    consumer: str
    name: str
    command: StopFetcher
    ask_application: bool  # on_revoke is set
    stage: Stopping = Stopping.ENDING
    partitions: frozenset[TopicPartition] = frozenset()  # those of the command that are owned
    positions: dict[TopicPartition, Position] = field(default_factory=dict)
    token: int = 0
    has_asked: bool = False

    @property
    def is_fencing(self) -> bool:
        """Whether a younger consumer with the same instance id takes everything over: after the ack this one leaves."""
        return self.command.cause.kind == command.INSTANCE_FENCED

    @property
    def is_ready(self) -> bool:
        """Whether the ack may be written."""
        return self.stage is Stopping.READY

    @property
    def is_acking(self) -> bool:
        """Whether the ack is being written."""
        return self.stage is Stopping.ACKING

    @property
    def is_over(self) -> bool:
        """Whether the next command may begin."""
        return self.stage is Stopping.OVER

    @property
    def waits_for_application(self) -> bool:
        """Whether an `AskRevoke` is not answered yet."""
        return self.stage is Stopping.REVOKING

    def begin(self) -> None:
        """End the emission."""
        owned = frozenset(self.lane.record.partitions)
        self.partitions = owned if self.command.partitions is None else owned & self.command.partitions
        if self.partitions:
            self.token = self.effects.token()
            self.effects.add(StopEmitting(self.token, self.partitions))
        else:
            self.stage = Stopping.READY

    def handle_progress(self, token: int, positions: Mapping[TopicPartition, Position]) -> None:
        """Emission has ended, or `on_revoke` is over: decide whether the ack may be written."""
        if token != self.token or self.stage not in {Stopping.ENDING, Stopping.MEASURING}:
            return
        self.positions = {partition: positions[partition] for partition in self.partitions if partition in positions}
        unfinished = any(position.finished < position.returned for position in self.positions.values())
        if self.stage is Stopping.ENDING and (unfinished or self.ask_application):
            self.stage, self.token, self.has_asked = Stopping.REVOKING, self.effects.token(), True
            self.effects.add(AskRevoke(self.token, self.partitions))
        else:
            self.stage = Stopping.READY

    def handle_revoked(self, token: int) -> None:
        """Read the final positions: the application's `on_revoke` is over."""
        if self.stage is Stopping.REVOKING and token == self.token:
            self.stage, self.token = Stopping.MEASURING, self.effects.token()
            self.effects.add(ReadProgress(self.token))

    def begin_ack(self) -> None:
        """Write the final offsets and the ack; the lane is free."""
        self.stage = Stopping.ACKING
        owned = command.applied(self.lane.record.partitions, self.command)
        record = OwnersRecord(self.command.generation, self.command.command_id, owned)
        self._record("fetcher_stopped", "revoked")
        finished = {partition: position.finished for partition, position in self.positions.items()}
        self.lane.begin(self.lane.changed(finished), Ack(self.name, record), "stop-ack")

    def handle_outcome(self, outcome: Outcome) -> None:
        """Forget the partitions, as the ack is written; or resume them, as the coordinator cancelled the stop first."""
        if outcome is Outcome.CANCELLED:
            self.handle_cancelled()
            return
        self.stage = Stopping.OVER
        if self.partitions:
            self.effects.add(Forget(self.partitions))

    def handle_cancelled(self) -> None:
        """Emit again from the application's position, with `on_assign` if its `on_revoke` was queued."""
        was_acking, self.stage = self.is_acking, Stopping.OVER
        if not self.partitions:
            return
        if was_acking:
            self._record("fetcher_started", None, self.lane.learned_late_ms())
        if self.has_asked:
            self.effects.add(TellAssigned(self.partitions))
        self.effects.add(ResumeFetching(self.partitions))

    def _record(self, kind: str, reason: str | None, late_ms: int = 0) -> None:
        returned = {partition: position.returned for partition, position in self.positions.items()}
        if returned:
            generation, cause_id = self.command.generation, self.command.cause.id
            self.effects.add(RecordFetcher(kind, self.consumer, generation, cause_id, returned, reason, late_ms))
