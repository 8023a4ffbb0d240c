"""A stop-fetcher, from the command to its ack. Pure.

Ends the emission at once, waits for the application if it has unfinished records or an `on_revoke`, and writes the
final offsets with the ack. A stop that the coordinator cancels continues at the application's position.
"""

from __future__ import annotations

from dataclasses import dataclass

from consumer_agent.membership.effects import Forget, ResumeFetching, TellAssigned
from consumer_agent.membership.fenced_writes import Outcome
from consumer_agent.membership.release import Release
from consumer_agent.membership.stages import Stage
from zkrebalancer.protocol.command import INSTANCE_FENCED, StopFetcher
from zkrebalancer.protocol.fields import TopicPartition


@dataclass(slots=True)
class Stop(Release):
    """One stop-fetcher being handled."""

    name: str
    command: StopFetcher
    has_asked: bool = False

    @property
    def is_fencing(self) -> bool:
        """Whether a younger consumer with the same instance id gets everything; this one leaves after the ack."""
        return self.command.cause.kind == INSTANCE_FENCED

    def begin(self) -> None:
        """End the emission of what is owned."""
        owned = frozenset(self.lane.record.partitions)
        stopping = owned if self.command.partitions is None else owned & self.command.partitions
        if stopping:
            self.end_emission(stopping)
        else:
            self.stage = Stage.READY

    def to_ask(self) -> frozenset[TopicPartition]:
        """Ask about all partitions if there are unfinished records or an `on_revoke`."""
        unfinished = any(position.is_unfinished for position in self.positions.values())
        self.has_asked = unfinished or self.ask_application
        return self.partitions if self.has_asked else frozenset()

    def begin_ack(self) -> None:
        """Write the final offsets and the ack, once the lane is free."""
        self.stage = Stage.WRITING
        self._record("fetcher_stopped", "revoked")
        self.lane.acknowledge(self, self.name, self.command, self.finished(), "stop-ack")

    def handle_outcome(self, outcome: Outcome) -> None:
        """Forget the partitions if the ack is written; resume them if the coordinator cancelled the stop first."""
        if outcome is Outcome.CANCELLED:
            self.handle_cancelled()
            return
        self.stage = Stage.OVER
        if self.partitions:
            self.effects.add(Forget(self.partitions))

    def handle_cancelled(self) -> None:
        """Emit again from the application's position, with `on_assign` if its `on_revoke` was queued."""
        was_acking, self.stage = self.stage is Stage.WRITING, Stage.OVER
        if not self.partitions:
            return
        if was_acking:
            self._record("fetcher_started", None, self.lane.learned_late_ms())
        if self.has_asked:
            self.effects.add(TellAssigned(self.partitions))
        self.effects.add(ResumeFetching(self.partitions))

    def _record(self, kind: str, reason: str | None, late_ms: int = 0) -> None:
        command = self.command
        self.record(kind, command.generation, command.cause.id, reason, late_ms, command.command_id)
