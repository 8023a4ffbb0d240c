"""How a consumer's partitions become free without its acknowledgement: its session ends, or it is evicted.

A session that ended needs no wait: the lease is over before ZooKeeper gives a session up. An evicted consumer may still
emit until its lease runs out, so its tombstone holds its partitions for one whole lease after a leader first saw it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from zkrebalancer.protocol import ownership, paths
from zkrebalancer.protocol.calls import (
    Children,
    Create,
    Delete,
    Done,
    ListChildren,
    Operation,
    Refusal,
    Refused,
    Reply,
)
from zkrebalancer.protocol.ownership import EvictionRecord
from zkrebalancer.protocol.registration import lease_ms
from zkrebalancer.rebalance.states import GroupState
from zkrebalancer.rebalance.view import ALL_TOPICS, Member, PendingCommand

if TYPE_CHECKING:
    from zkrebalancer.rebalance.group import Group

MAX_TRIES = 5  # at removing nodes that change meanwhile, before the group is read anew
MAX_DELETES_PER_TRANSACTION = 500
UNKNOWN_SESSION_TIMEOUT_MS = 60_000  # of a consumer whose registration cannot be read
CLOCK_DRIFT_ALLOWANCE = 100  # a lease is waited for 1/100 longer: clocks of two hosts may differ by so much in speed


class Departures:
    """Ends of membership in one group, and the nodes they leave behind."""

    def __init__(self, group: Group) -> None:
        """Know of no dead channel yet."""
        self._group = group
        self._dead_channels: frozenset[str] = frozenset()

    def note_dead_channels(self, consumers: Iterable[str]) -> None:
        """Channels that were found without a registration: they are removed once the group is loaded."""
        self._dead_channels = frozenset(consumers)

    def adopt(self) -> None:
        """After loading: remove what the dead left, and wait for the leases of the evicted."""
        for consumer in sorted(self._dead_channels):
            self._tell_ended(consumer, "expired")  # it may have died while nobody led
            self.sweep(consumer)
        self._dead_channels = frozenset()
        for consumer, tombstone in self._group.view.tombstones.items():
            self._await_lease(consumer, tombstone)
        for consumer, member in self._group.view.members.items():
            if not member.registered:
                self.evict(consumer, "its registration was removed")

    # The session ended ----------------------------------------------------------------------------------------------

    def gone(self, consumer: str) -> None:
        """The consumer's session is over, and with it what it owned: free at once."""
        group = self._group
        member = group.view.members[consumer]
        if member.registration is not None:
            group.leadership.subscriptions.remove(group.name, member.registration)
        self._leave_plan(consumer)
        self._tell_ended(consumer, "expired")
        group.static_members.left(member)
        released = group.view.remove(consumer)
        self.sweep(consumer, announce=True)
        group.moving.released(released)
        group.request("member-left")
        group.moving.advance(())
        group.maybe_finish()

    def _tell_ended(self, consumer: str, reason: str) -> None:
        generation = self._group.view.generation
        self._group.desk.emit("ownership_ended", self._group.name, generation, None, member=consumer, reason=reason)

    def _leave_plan(self, consumer: str) -> None:
        group = self._group
        group.moving.outstanding.discard(consumer)
        for name in ("command", "unreadable"):
            group.desk.cancel_wake(group.name, (name, consumer))
        if group.plan is not None:
            group.plan.drop_member(consumer)
            group.moving.barrier_may_be_down()

    def sweep(self, consumer: str, tries: int = MAX_TRIES, *, announce: bool = False) -> None:
        """Remove the channel of the dead; a channel that is gone tells that the consumer closed in good order."""
        group = self._group
        listing = ListChildren(paths.channel(group.name, consumer))
        group.desk.ask(group.name, listing, self._dead_channel_listed, consumer, tries, announce)

    def _dead_channel_listed(self, reply: Reply, consumer: str, tries: int, announce: bool) -> None:
        group = self._group
        if isinstance(reply, Refused) and reply.outcome_unknown:
            return
        if announce:
            reason = "expired" if isinstance(reply, Children) else "closed"
            group.desk.emit("member_left", group.name, group.view.generation, None, member=consumer, reason=reason)
        if not isinstance(reply, Children):
            return
        channel = paths.channel(group.name, consumer)
        deletes = [Delete(f"{channel}/{name}") for name in reply.names[:MAX_DELETES_PER_TRANSACTION]]
        if len(reply.names) <= MAX_DELETES_PER_TRANSACTION:
            deletes.append(Delete(channel))
        group.desk.ask(group.name, group.leadership.fenced(*deletes), self._swept, consumer, tries, deletes[-1].path)

    def _swept(self, reply: Reply, consumer: str, tries: int, last: str) -> None:
        group = self._group
        if group.leadership.is_deposed(reply) or (isinstance(reply, Refused) and reply.outcome_unknown):
            return
        if isinstance(reply, Refused) and tries == 0:
            group.desk.warn(f"group {group.name}: the channel of {consumer} could not be removed")
        elif isinstance(reply, Refused) or last != paths.channel(group.name, consumer):
            self.sweep(consumer, tries - isinstance(reply, Refused))

    # Eviction -------------------------------------------------------------------------------------------------------

    def evict(self, consumer: str, reason: str, unanswered: PendingCommand | None = None) -> None:
        """Take a consumer's membership away: it did not answer a command, or cannot be understood."""
        member = self._group.view.members.get(consumer)
        if member is None or member.evicting:
            return
        member.evicting = True
        self._group.view.touch(consumer)
        self._group.desk.warn(f"group {self._group.name}: evicting {consumer}: {reason}")
        self._evict(consumer, MAX_TRIES, unanswered)

    def _evict(self, consumer: str, tries: int, unanswered: PendingCommand | None) -> None:
        group = self._group
        listing = ListChildren(paths.channel(group.name, consumer))
        group.desk.ask(group.name, listing, self._channel_listed, consumer, tries, unanswered)

    def _channel_listed(self, reply: Reply, consumer: str, tries: int, unanswered: PendingCommand | None) -> None:
        """Take everything away at once; an acknowledgement that comes first changes `owners` and defeats it."""
        group = self._group
        member = group.view.members.get(consumer)
        if member is None or (isinstance(reply, Refused) and reply.outcome_unknown):
            return
        if unanswered is not None and unanswered not in member.pending:
            self._call_off(member)
            return
        name, operations = group.name, list[Operation]()
        if member.registered:
            operations.append(Delete(paths.ids(name, consumer)))
        if isinstance(reply, Children):
            channel = paths.channel(name, consumer)
            operations += [Delete(f"{channel}/{node}") for node in reply.names]
            operations.append(Delete(channel))
        operations.append(Delete(paths.owners(name, consumer), member.owners_version))
        owners_index = len(operations)
        tombstone = self._tombstone(member)
        operations.append(Create(paths.evicted(name, consumer), ownership.encode_eviction(tombstone)))
        eviction = group.leadership.fenced(*operations)
        group.desk.ask(name, eviction, self._evicted, consumer, tombstone, owners_index, tries, unanswered)

    def _call_off(self, member: Member) -> None:
        """Its acknowledgement, or the end of its session, was quicker."""
        member.evicting = False
        self._group.view.touch(member.consumer)
        self._group.moving.limit(member)
        self._group.request("retry")  # plans that were made meanwhile have left it out

    def _tombstone(self, member: Member) -> EvictionRecord:
        group = self._group
        known = member.registration
        topics = member.blocked_topics()
        if ALL_TOPICS in topics:
            # Also of a topic that was deleted: whoever holds some of it may still be reading when it is there again.
            topics = tuple(sorted(group.topics.keys() | group.view.incarnations.keys()))
        return EvictionRecord(
            generation=group.view.generation,
            partitions=member.held(),
            evicted_at_ms=group.desk.now.epoch_ms,
            lease_ms=known.lease_ms if known else lease_ms(UNKNOWN_SESSION_TIMEOUT_MS),
            topics=topics,
        )

    def _evicted(
        self,
        reply: Reply,
        consumer: str,
        tombstone: EvictionRecord,
        owners_index: int,
        tries: int,
        unanswered: PendingCommand | None,
    ) -> None:
        group = self._group
        member = group.view.members.get(consumer)
        if member is None or group.leadership.is_deposed(reply):
            return
        if isinstance(reply, Done):
            self._bury(member, tombstone)
            return
        if not isinstance(reply, Refused) or reply.outcome_unknown:
            return
        if reply.index == owners_index or tries == 0:
            self._call_off(member)
            group.membership.read_owners(consumer)
        else:
            member.registered = member.registered and not (reply.index == 1 and reply.refusal is Refusal.NO_NODE)
            group.view.touch(consumer)
            self._evict(consumer, tries - 1, unanswered)

    def _bury(self, member: Member, tombstone: EvictionRecord) -> None:
        group, consumer = self._group, member.consumer
        if member.registration is not None:
            group.leadership.subscriptions.remove(group.name, member.registration)
        self._leave_plan(consumer)
        group.view.tombstones[consumer] = tombstone
        released = group.view.remove(consumer)
        group.desk.emit("member_left", group.name, group.view.generation, None, member=consumer, reason="evicted")
        self._await_lease(consumer, tombstone)
        group.moving.released(released)
        group.request("member-evicted")
        group.moving.advance(())
        group.maybe_finish()

    # Leases ---------------------------------------------------------------------------------------------------------

    def _await_lease(self, consumer: str, tombstone: EvictionRecord | None) -> None:
        """Wait one whole lease from now, when this leader first saw the tombstone."""
        wait_ms = tombstone.lease_ms if tombstone else lease_ms(UNKNOWN_SESSION_TIMEOUT_MS)
        wait_us = wait_ms * 1_000 + wait_ms * 1_000 // CLOCK_DRIFT_ALLOWANCE
        at_us = self._group.desk.now.mono_us + wait_us
        self._group.desk.wake(self._group.name, ("lease", consumer), at_us, self._lease_over, consumer)

    def _lease_over(self, consumer: str) -> None:
        group = self._group
        self._tell_ended(consumer, "evicted")
        removal = group.leadership.fenced(Delete(paths.evicted(group.name, consumer)))
        group.desk.ask(group.name, removal, self._tombstone_removed, consumer)

    def _tombstone_removed(self, reply: Reply, consumer: str) -> None:
        group = self._group
        if group.leadership.is_deposed(reply) or group.state is GroupState.LOADING:
            return
        if isinstance(reply, Refused) and reply.outcome_unknown:
            return
        if isinstance(reply, Refused) and reply.refusal is not Refusal.NO_NODE:
            group.desk.warn(f"group {group.name}: the tombstone of {consumer} stays: {reply.refusal.value}")
            return
        group.view.tombstones.pop(consumer, None)
        released = group.view.refresh(consumer)
        group.moving.released(released)
        group.request("lease-over")
        group.moving.advance(())
        group.maybe_finish()
