"""How a consumer's partitions become free without its acknowledgement: its session ends, or it is evicted.

A session that ended needs no wait: the lease is over before ZooKeeper gives a session up. An evicted consumer may still
emit until its lease runs out, so its eviction record holds its partitions for one whole lease after a leader first saw
it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

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
from zkrebalancer.rebalance import facts
from zkrebalancer.rebalance.scheduler import PartScheduler
from zkrebalancer.rebalance.states import MemberState
from zkrebalancer.rebalance.view import ALL_TOPICS, RECORD_GONE, GroupView, Member, PendingCommand

MAX_TRIES = 5  # at removing nodes that change meanwhile, before the group is read anew
MAX_DELETES_PER_TRANSACTION = 500
UNKNOWN_SESSION_TIMEOUT_MS = 60_000  # of a consumer whose registration cannot be read
UNREGISTERED = "its registration was removed"
MAX_CLAIMS_SHOWN = 10  # in a log line
ANY_VERSION = -1
CLOCK_DRIFT_ALLOWANCE = 100  # a lease is waited for 1/100 longer: clocks of two hosts may differ by so much in speed


class Departures:
    """Ends of membership in one group, and the nodes they leave behind."""

    def __init__(self, scheduler: PartScheduler, view: GroupView, report: Callable[[facts.Fact], None]) -> None:
        """Set no timer yet."""
        self._scheduler = scheduler
        self._view = view
        self._report = report

    def adopt(self, dead: Collection[str]) -> None:
        """After loading: remove what the dead have left, and wait for the leases of the evicted."""
        for consumer in sorted(dead):
            self._emit_ended(consumer, "expired")  # it may have died while no coordinator led
            self.sweep(consumer)
        for consumer, record in self._view.evicted.items():
            self._await_lease(consumer, record)
        for member in list(self._view.members.values()):
            self.evict_broken(member)
        for consumer in sorted(self._view.recorded - self._view.members.keys() - set(dead)):
            self.sweep(consumer)

    # The session ended ----------------------------------------------------------------------------------------------

    def end(self, consumer: str) -> None:
        """The consumer's session is over, and with it what it owned: free at once."""
        member = self._view.members[consumer]
        self._emit_ended(consumer, "expired")
        self.sweep(consumer, announce=True)
        self._report(facts.Left(member, self._view.remove(consumer), "member-left"))

    def _emit_ended(self, consumer: str, reason: str) -> None:
        self._scheduler.emit("ownership_ended", self._view.generation, None, member=consumer, reason=reason)

    def sweep(self, consumer: str, tries: int = MAX_TRIES, *, announce: bool = False) -> None:
        """Remove what the dead has left; if there is no channel, the consumer closed in good order."""
        listing = ListChildren(paths.channel(self._view.group, consumer))
        self._scheduler.ask(listing, self._dead_channel_listed, consumer, tries, announce)

    def _dead_channel_listed(self, reply: Reply, consumer: str, tries: int, announce: bool) -> None:
        if announce:
            reason = "expired" if isinstance(reply, Children) else "closed"
            self._scheduler.emit("member_left", self._view.generation, None, member=consumer, reason=reason)
        left = [Delete(paths.given(self._view.group, consumer))] if consumer in self._view.recorded else []
        if isinstance(reply, Children):
            channel = paths.channel(self._view.group, consumer)
            left = [*(Delete(f"{channel}/{name}") for name in reply.names), Delete(channel), *left]
        deletes = left[:MAX_DELETES_PER_TRANSACTION]
        deletes = deletes[: self._scheduler.fitting(deletes)]
        if deletes:
            self._scheduler.write(deletes, self._swept, consumer, tries, len(deletes) == len(left))

    def _swept(self, reply: Reply, consumer: str, tries: int, is_last: bool) -> None:
        if isinstance(reply, Refused) and tries == 0:
            self._scheduler.warn(f"what {consumer} has left could not be removed")
        elif isinstance(reply, Refused) or not is_last:
            self.sweep(consumer, tries - isinstance(reply, Refused))
        else:
            self._view.recorded.discard(consumer)

    # Eviction -------------------------------------------------------------------------------------------------------

    def evict_broken(self, member: Member) -> None:
        """Evict a consumer whose nodes are not what its own doing, or its end, would have made them."""
        if not member.registered:
            self.evict(member.consumer, UNREGISTERED)
        elif member.is_record_gone:
            self.evict(member.consumer, RECORD_GONE)
        elif member.false_claims and member.state is not MemberState.EVICTING:
            claims = sorted(member.false_claims)[:MAX_CLAIMS_SHOWN]
            shown = ", ".join(f"{topic}-{number}" for topic, number in claims)
            more = "" if len(claims) == len(member.false_claims) else ", …"
            self._scheduler.emit(
                "false_claim",
                self._view.generation,
                None,
                member=member.consumer,
                partition_count=len(member.false_claims),
            )
            self.evict(member.consumer, f"it claims what it was never given: {shown}{more}")

    def evict(self, consumer: str, reason: str, late: PendingCommand | None = None) -> None:
        """End the membership of a consumer that did not acknowledge a command (`late`), or cannot be understood."""
        member = self._view.members.get(consumer)
        if member is None or member.state is MemberState.EVICTING:
            return
        member.go(MemberState.EVICTING)
        self._view.touch(consumer)
        self._scheduler.warn(f"evicting {consumer}: {reason}")
        self._list_channel(consumer, MAX_TRIES, late)

    def _list_channel(self, consumer: str, tries: int, late: PendingCommand | None) -> None:
        listing = ListChildren(paths.channel(self._view.group, consumer))
        self._scheduler.ask(listing, self._channel_listed, consumer, tries, late)

    def _channel_listed(self, reply: Reply, consumer: str, tries: int, late: PendingCommand | None) -> None:
        """Remove everything at once; an acknowledgement that comes first changes `owners` and defeats it."""
        member = self._view.members.get(consumer)
        if member is None:
            return
        if late is not None and late not in member.pending:
            self._call_off(member)
            return
        group, operations = self._view.group, list[Operation]()
        if member.registered:
            operations.append(Delete(paths.ids(group, consumer)))
        record = self._eviction_record(member)
        create = Create(paths.evicted(group, consumer), ownership.encode_eviction(record))
        # An acknowledgement must not be lost. One by a consumer that claims what it likes may be: it was given no less.
        version = ANY_VERSION if member.false_claims else member.owners_version
        last: list[Operation] = [] if member.is_record_gone else [Delete(paths.owners(group, consumer), version)]
        last += [Delete(paths.given(group, consumer))] if consumer in self._view.recorded else []
        if self._scheduler.room([*operations, *last, create]) < 0:
            record = replace(record, partitions={}, topics=_topics_of(record))
            create = Create(paths.evicted(group, consumer), ownership.encode_eviction(record))
        last.append(create)
        if isinstance(reply, Children):
            channel = paths.channel(group, consumer)
            inside = [Delete(f"{channel}/{node}") for node in reply.names]
            if inside and self._scheduler.room([*operations, *inside, Delete(channel), *last]) < 0:
                self._empty_channel(inside, consumer, tries, late)
                return
            operations += [*inside, Delete(channel)]
        operations += last
        written = [operation.path for operation in operations]
        self._scheduler.write(operations, self._evicted, consumer, record, written, tries, late)

    def _empty_channel(self, inside: Sequence[Delete], consumer: str, tries: int, late: PendingCommand | None) -> None:
        """Delete as many commands as one transaction takes: there are too many to delete them with the consumer."""
        fitting = self._scheduler.fitting(inside)
        self._scheduler.write(inside[:fitting], self._channel_emptied, consumer, tries, late)

    def _channel_emptied(self, reply: Reply, consumer: str, tries: int, late: PendingCommand | None) -> None:
        if isinstance(reply, Done) or tries > 0:
            self._list_channel(consumer, tries - isinstance(reply, Refused), late)
        else:
            self._give_way(consumer)

    def _give_way(self, consumer: str) -> None:
        member = self._view.members.get(consumer)
        if member is not None:
            self._call_off(member)
            self._report(facts.OwnersInDoubt(consumer))

    def _call_off(self, member: Member) -> None:
        """End an eviction that lost the race to an acknowledgement, or to the end of the session."""
        member.call_eviction_off()
        self._view.touch(member.consumer)
        self._report(facts.EvictionCalledOff(member))

    def _eviction_record(self, member: Member) -> EvictionRecord:
        known = member.registration
        topics = member.blocked_topics()
        if ALL_TOPICS in topics:
            # Also of a topic that was deleted: a consumer that holds some of it may still read when it is there again.
            topics = tuple(sorted(self._view.topics.keys() | self._view.incarnations.keys()))
        return EvictionRecord(
            generation=self._view.generation,
            partitions=member.held(),
            evicted_at_ms=self._scheduler.now.epoch_ms,
            lease_ms=known.lease_ms if known else lease_ms(UNKNOWN_SESSION_TIMEOUT_MS),
            topics=topics,
        )

    def _evicted(
        self,
        reply: Reply,
        consumer: str,
        record: EvictionRecord,
        written: list[str],
        tries: int,
        late: PendingCommand | None,
    ) -> None:
        member = self._view.members.get(consumer)
        if member is None:
            return
        if isinstance(reply, Done):
            self._view.evicted[consumer] = record
            self._view.recorded.discard(consumer)
            released = self._view.remove(consumer)
            self._scheduler.emit("member_left", self._view.generation, None, member=consumer, reason="evicted")
            self._await_lease(consumer, record)
            self._report(facts.Left(member, released, "member-evicted"))
        elif isinstance(reply, Refused):
            path = written[reply.index] if reply.index is not None else ""
            is_missing = reply.refusal is Refusal.NO_NODE
            if is_missing and path == paths.ids(self._view.group, consumer):
                member.registered = False
            if is_missing and path == paths.given(self._view.group, consumer):
                self._view.recorded.discard(consumer)
            is_over = member.is_record_gone and not member.registered
            if path == paths.owners(self._view.group, consumer) or is_over or tries == 0:
                self._give_way(consumer)
                return
            self._view.touch(consumer)
            self._list_channel(consumer, tries - 1, late)

    # Leases ---------------------------------------------------------------------------------------------------------

    def _await_lease(self, consumer: str, record: EvictionRecord | None) -> None:
        """Wait one whole lease from now, when this leader first saw the eviction record."""
        wait_ms = record.lease_ms if record else lease_ms(UNKNOWN_SESSION_TIMEOUT_MS)
        wait_us = wait_ms * 1_000 + wait_ms * 1_000 // CLOCK_DRIFT_ALLOWANCE
        at_us = self._scheduler.now.mono_us + wait_us
        self._scheduler.wake(("lease", consumer), at_us, self._lease_over, consumer)

    def _lease_over(self, consumer: str) -> None:
        self._emit_ended(consumer, "evicted")
        self._scheduler.write([Delete(paths.evicted(self._view.group, consumer))], self._record_removed, consumer)

    def _record_removed(self, reply: Reply, consumer: str) -> None:
        if isinstance(reply, Refused) and reply.refusal is not Refusal.NO_NODE:
            self._scheduler.warn(f"the eviction record of {consumer} stays: {reply.refusal.value}")
            return
        self._view.evicted.pop(consumer, None)
        self._report(facts.LeaseOver(self._view.refresh(consumer)))


def _topics_of(record: EvictionRecord) -> tuple[str, ...]:
    """Return every topic of which the record holds some: all of them instead, in a record that would be too large."""
    return tuple(sorted({*record.topics, *(topic for topic, _number in record.partitions)}))
