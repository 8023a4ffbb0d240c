"""What stopping and leaving have in common: end the emission, let the application finish, read its positions. Pure.

The application is asked before its positions are read for the last time, so that its `on_revoke` may still commit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from consumer_agent.membership.effects import AskRevoke, EffectQueue, ReadProgress, RecordFetcher, StopEmitting
from consumer_agent.membership.events import Position
from consumer_agent.membership.fenced_writes import WriteLane
from consumer_agent.membership.stages import Stage
from zkrebalancer.protocol.fields import TopicPartition


@dataclass(slots=True)
class Release(ABC):
    """Partitions that leave this consumer."""

    effects: EffectQueue
    lane: WriteLane
    consumer: str
    ask_application: bool
    stage: Stage = field(default=Stage.WAITING, init=False)
    token: int = field(default=0, init=False)
    partitions: frozenset[TopicPartition] = field(default=frozenset(), init=False)
    positions: dict[TopicPartition, Position] = field(default_factory=dict, init=False)

    def end_emission(self, partitions: frozenset[TopicPartition]) -> None:
        """Return no more records of these partitions."""
        self.stage, self.token, self.partitions = Stage.ENDING, self.effects.token(), partitions
        self.effects.add(StopEmitting(self.token, partitions))

    @abstractmethod
    def to_ask(self) -> frozenset[TopicPartition]:
        """Return the partitions for which to run `on_revoke`."""

    def handle_progress(self, token: int, positions: Mapping[TopicPartition, Position]) -> None:
        """After emission has ended, or `on_revoke` is over, ask the application, or continue with the write."""
        if token != self.token or self.stage not in {Stage.ENDING, Stage.MEASURING}:
            return
        self.positions = {partition: positions[partition] for partition in self.partitions if partition in positions}
        asked = self.to_ask() if self.stage is Stage.ENDING else None
        if asked:
            self.stage, self.token = Stage.REVOKING, self.effects.token()
            self.effects.add(AskRevoke(self.token, asked))
        else:
            self.stage = Stage.READY

    def handle_revoked(self, token: int) -> None:
        """Read the final positions after the application's `on_revoke`."""
        if self.stage is Stage.REVOKING and token == self.token:
            self.stage, self.token = Stage.MEASURING, self.effects.token()
            self.effects.add(ReadProgress(self.token))

    def finished(self) -> dict[TopicPartition, int]:
        """Return the final offsets to store."""
        return self.lane.changed({partition: position.finished for partition, position in self.positions.items()})

    def record(
        self,
        kind: str,
        generation: int,
        cause_id: str | None,
        reason: str | None = None,
        late_ms: int = 0,
        command_id: str | None = None,
    ) -> None:
        """Write the event that fetching has ended, or continues."""
        unfinished = {tp: position.finished for tp, position in self.positions.items() if position.is_unfinished}
        if unfinished and reason not in {None, "lost"}:  # who gets these partitions next gets the records again
            again = RecordFetcher("repositioned", self.consumer, generation, cause_id, unfinished, "unfinished")
            self.effects.add(again)
        returned = {partition: position.returned for partition, position in self.positions.items()}
        if returned:
            self.effects.add(
                RecordFetcher(kind, self.consumer, generation, cause_id, returned, reason, late_ms, command_id)
            )
