"""Leaving the group: stop emitting, let the application finish, write final offsets, delete the nodes. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from consumer_agent.membership.command_channel import Channel
from consumer_agent.membership.effects import Warn
from consumer_agent.membership.fenced_writes import Outcome
from consumer_agent.membership.release import Release
from consumer_agent.membership.stages import Stage
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Children, Delete, Done, ListChildren, Multi, Refusal, Refused, Reply, SetContent
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.registration import LEFT

MAX_TRIES = 3  # to delete the nodes; each failed try means that a command arrived in between


@dataclass(slots=True)
class Leave(Release):
    """The steps of one consumer out of its group; it asks the application even if an AskRevoke is unanswered."""

    channel: Channel
    group: str
    reason: str  # for the event of the fetchers' end
    tries: int = 0
    known: list[str] = field(default_factory=list)

    def begin(self) -> None:
        """End the emission, once the lane is free."""
        self.end_emission(frozenset(self.lane.record.partitions))

    @property
    def is_measured(self) -> bool:
        """Whether the final offsets are known: what the application finishes later is not stored."""
        return self.stage in {Stage.READY, Stage.WRITING, Stage.DELETING, Stage.OVER}

    def to_ask(self) -> frozenset[TopicPartition]:
        """Ask about the partitions of which the application may have records."""
        return frozenset(self.positions) if self.ask_application else frozenset()

    def commit(self) -> None:
        """Write the final offsets, once the lane is free."""
        self.record("fetcher_stopped", self.lane.record.generation, None, self.reason)
        changed = self.finished()
        if changed:
            self.stage = Stage.WRITING
            self.lane.begin(self, changed)
        else:
            self.delete()

    def handle_outcome(self, _outcome: Outcome) -> None:
        """Continue after the final offsets are written."""
        self.delete()

    def stop_asking(self) -> None:
        """Continue without the application's `on_revoke`."""
        self.ask_application = False
        self.handle_revoked(self.token)

    def handle_connected(self) -> None:
        """List the nodes again after the connection broke."""
        if self.stage is Stage.DELETING:
            self._list()

    def delete(self) -> None:
        """Delete all nodes of the consumer in one transaction; leave a channel that is too full to the leader."""
        self.stage = Stage.DELETING
        channel = paths.channel(self.group, self.consumer)
        operations = [Delete(paths.ids(self.group, self.consumer)), Delete(paths.owners(self.group, self.consumer))]
        operations += [Delete(f"{channel}/{name}") for name in (self.known or self.channel.known())]
        operations.append(Delete(channel))
        fitting = self.lane.request_limit.fitting(operations)
        self.tries += 1
        self.effects.request(Multi(tuple(operations[:fitting])), self._deleted)

    def _deleted(self, reply: Reply) -> None:
        if isinstance(reply, Refused) and reply.outcome_unknown:
            self._list_again()
        elif isinstance(reply, Refused) and self._came_in_between(reply):
            self._list()
        elif isinstance(reply, Refused) and reply.refusal is Refusal.NO_AUTH:
            self.effects.request(Multi((SetContent(paths.channel(self.group, self.consumer), LEFT),)), self._marked)
        else:
            self._end(is_clean=isinstance(reply, Done))

    def _marked(self, reply: Reply) -> None:
        """End the session, which deletes the nodes in a secured tree, whether or not the mark was written."""
        self._end(is_clean=isinstance(reply, Done))

    def _end(self, *, is_clean: bool) -> None:
        if not is_clean:
            self.effects.add(Warn(f"{self.consumer}: its nodes stay until its session ends"))
        self.stage = Stage.OVER

    def _came_in_between(self, reply: Refused) -> bool:
        ids_or_owners = reply.index is None or reply.index < 2
        return not ids_or_owners and self.tries < MAX_TRIES and reply.refusal in {Refusal.NOT_EMPTY, Refusal.NO_NODE}

    def _list(self) -> None:
        self.effects.request(ListChildren(paths.channel(self.group, self.consumer)), self._listed)

    def _listed(self, reply: Reply) -> None:
        if isinstance(reply, Refused) and reply.outcome_unknown:
            self._list_again()
        elif isinstance(reply, Children):
            self.known = list(reply.names)
            self.delete()
        else:
            self.stage = Stage.OVER

    def _list_again(self) -> None:
        if self.lane.connected:
            self._list()
