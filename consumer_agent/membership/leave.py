"""Leaving the group: stop emitting, let the application finish, write final offsets, delete the nodes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from consumer_agent.membership.command_channel import Channel
from consumer_agent.membership.effects import (
    AskRevoke,
    EffectQueue,
    Purpose,
    ReadProgress,
    RecordFetcher,
    StopEmitting,
    Warn,
)
from consumer_agent.membership.events import Position
from consumer_agent.membership.fenced_writes import WriteLane
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Children, Delete, Done, ListChildren, Multi, Refusal, Refused, Reply
from zkrebalancer.protocol.fields import TopicPartition

MAX_TRIES = 3  # to delete the nodes; each failed one means that a command came in between


class Leaving(Enum):
    """The stage of leaving."""

    WAITING = auto()  # a write is under way
    STOPPING = auto()
    REVOKING = auto()
    MEASURING = auto()
    READY = auto()  # final offsets are known, waits for the write lane
    COMMITTING = auto()
    DELETING = auto()
    GONE = auto()


@dataclass(slots=True)
class Leave:
    """The steps of one consumer out of its group."""

    effects: EffectQueue
    lane: WriteLane
    channel: Channel
    group: str
    consumer: str
    reason: str  # for the event of the fetchers' end
    ask_application: bool  # on_revoke is set, or an AskRevoke is still unanswered
    stage: Leaving = Leaving.WAITING
    token: int = 0
    tries: int = 0
    known: list[str] = field(default_factory=list)
    positions: dict[TopicPartition, Position] = field(default_factory=dict)

    def begin(self) -> None:
        """End the emission; the lane is free."""
        self.stage, self.token = Leaving.STOPPING, self.effects.token()
        self.effects.add(StopEmitting(self.token, frozenset(self.lane.record.partitions)))

    def handle_progress(self, token: int, positions: Mapping[TopicPartition, Position]) -> None:
        """Emission has ended, or `on_revoke` is over."""
        if token != self.token or self.stage not in {Leaving.STOPPING, Leaving.MEASURING}:
            return
        owned = {partition: positions[partition] for partition in self.lane.record.partitions if partition in positions}
        if self.stage is Leaving.STOPPING and owned and self.ask_application:
            self.stage, self.token = Leaving.REVOKING, self.effects.token()
            self.effects.add(AskRevoke(self.token, frozenset(owned)))
            return
        self.stage, self.positions = Leaving.READY, owned

    def commit(self) -> None:
        """Write the final offsets; the lane is free."""
        if self.positions:
            returned = {partition: position.returned for partition, position in self.positions.items()}
            generation = self.lane.record.generation
            self.effects.add(RecordFetcher("fetcher_stopped", self.consumer, generation, None, returned, self.reason))
        finished = {partition: position.finished for partition, position in self.positions.items()}
        changed = self.lane.changed(finished)
        if changed:
            self.stage = Leaving.COMMITTING
            self.lane.begin(changed)
        else:
            self.delete()

    def handle_revoked(self, token: int) -> None:
        """The application's `on_revoke` is over."""
        if self.stage is Leaving.REVOKING and token == self.token:
            self.stage, self.token = Leaving.MEASURING, self.effects.token()
            self.effects.add(ReadProgress(self.token))

    def stop_asking(self) -> None:
        """Go on without the application's `on_revoke`."""
        self.ask_application = False
        self.handle_revoked(self.token)

    def handle_connected(self) -> None:
        """List the nodes again after the connection broke."""
        if self.stage is Leaving.DELETING:
            self._list()

    def delete(self) -> None:
        """Delete all nodes of the consumer in one transaction; a channel that is too full is left to the leader."""
        self.stage = Leaving.DELETING
        channel = paths.channel(self.group, self.consumer)
        operations = [Delete(paths.ids(self.group, self.consumer)), Delete(paths.owners(self.group, self.consumer))]
        operations += [Delete(f"{channel}/{name}") for name in (self.known or self.channel.known())]
        operations.append(Delete(channel))
        fitting = self.lane.request_limit.fitting(operations)
        self.tries += 1
        self.effects.request(Purpose.LEAVE, Multi(tuple(operations[:fitting])))

    def handle_reply(self, purpose: Purpose, reply: Reply, connected: bool) -> None:
        """Handle an answer."""
        if isinstance(reply, Refused) and reply.outcome_unknown:
            if connected:
                self._list()
        elif purpose is Purpose.LIST_BEFORE_LEAVING and isinstance(reply, Children):
            self.known = list(reply.names)
            self.delete()
        elif purpose is Purpose.LEAVE and isinstance(reply, Refused) and self._came_in_between(reply):
            self._list()
        else:
            if purpose is Purpose.LEAVE and not isinstance(reply, Done):
                self.effects.add(Warn(f"{self.consumer}: its nodes stay until its session ends"))
            self.stage = Leaving.GONE

    def _came_in_between(self, reply: Refused) -> bool:
        ids_or_owners = reply.index is None or reply.index < 2
        return not ids_or_owners and self.tries < MAX_TRIES and reply.refusal in {Refusal.NOT_EMPTY, Refusal.NO_NODE}

    def _list(self) -> None:
        listing = ListChildren(paths.channel(self.group, self.consumer))
        self.effects.request(Purpose.LIST_BEFORE_LEAVING, listing)
