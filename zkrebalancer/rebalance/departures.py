"""Frees a consumer's partitions without its acknowledgement: when its session ends, or when it is evicted.

The end of a session requires no wait, because the lease ends before ZooKeeper expires the session. An evicted consumer
may return records until its lease ends, so its eviction record holds its partitions for one whole lease after a leader
first saw the record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from zkrebalancer.protocol import ownership, paths
from zkrebalancer.protocol.calls import (
    Children,
    Content,
    Create,
    Delete,
    Done,
    Get,
    ListChildren,
    Operation,
    Refusal,
    Refused,
    Reply,
    SetContent,
)
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.ownership import EvictionRecord
from zkrebalancer.protocol.registration import LEFT
from zkrebalancer.rebalance import facts
from zkrebalancer.rebalance.blocks import ALL_TOPICS
from zkrebalancer.rebalance.effects import EventField
from zkrebalancer.rebalance.leases import UNKNOWN_LEASE_MS, WORK_OF_ONE, Leases, lease_wait_us
from zkrebalancer.rebalance.scheduler import ANY, RACES, PartScheduler, pause_us
from zkrebalancer.rebalance.states import MemberState
from zkrebalancer.rebalance.view import RECORD_GONE, SESSIONLESS, GroupView, Member, PendingCommand

MAX_TRIES = 5  # to remove nodes that change meanwhile, before the group is read anew
MAX_DELETES_PER_TRANSACTION = 500
UNREGISTERED = "its registration was removed"
MAX_CLAIMS_SHOWN = 10  # in a log line


class Departures:
    """Ends of membership in one group, and the nodes they leave behind."""

    def __init__(self, scheduler: PartScheduler, view: GroupView, report: Callable[[facts.Fact], None]) -> None:
        """Set no timer yet."""
        self._scheduler = scheduler
        self._view = view
        self._report = report
        self._leases = Leases(scheduler, view, report)
        self._told: set[str] = set()  # whose end was announced, while their nodes are left: each name is used once
        self._in_the_way: set[str] = set()  # foreign nodes, or nodes with foreign children, found when evicting
        self._failed: Counter[str] = Counter()  # evictions that other programs' nodes have prevented, in a row

    def adopt(self, dead: Collection[str]) -> Iterator[int]:
        """After loading, announce and remove consumers that have ended, and wait for the leases of evicted ones.

        Yields the work for each of them, because there may be thousands.
        """
        self._in_the_way.clear()
        if not self._view.hides(paths.given(self._view.group)):
            self._told &= {*dead, *self._view.recorded}
        for consumer in sorted(dead):
            self._emit("ownership_ended", consumer, reason="expired")  # it may have died while no coordinator led
            self.sweep(consumer, announce=True)
            yield WORK_OF_ONE
        self._failed = Counter({name: tries for name, tries in self._failed.items() if name in self._view.members})
        yield from self._leases.adopt()
        for member in list(self._view.members.values()):
            if self._view.members.get(member.consumer) is member:
                if member.state is not MemberState.READY:  # nearly all are
                    self.evict_broken(member)
                yield WORK_OF_ONE
        for consumer in sorted(self._view.recorded - self._view.members.keys() - set(dead)):
            self.sweep(consumer, announce=True)
            yield WORK_OF_ONE

    def note_missing(self, new: GroupView, dead: Collection[str], *, is_mixed: bool) -> None:
        """Before a new reading replaces the view: consumers that it lacks may have a lease.

        Their sessions may be over, or their group is being deleted. `dead`: those of which the reading found nothing
        but a channel; `is_mixed`: whether it may contain nodes of two lives, so that members of the first are unknown.
        """
        before = self._view
        if is_mixed:
            self._may_have_a_lease(None)
        for consumer in {*before.members, *dead} - new.members.keys():
            member = before.members.get(consumer)
            self._may_have_a_lease(member.registration.lease_ms if member and member.registration else None)

    def _may_have_a_lease(self, lease_ms: int | None) -> None:
        until_us = self._scheduler.now.mono_us + lease_wait_us(lease_ms)
        self._view.lease_until_us = max(self._view.lease_until_us, until_us)

    # The session ended ----------------------------------------------------------------------------------------------

    def end(self, consumer: str) -> None:
        """Free what a consumer owned, because its session is over."""
        member = self._view.members[consumer]
        self._may_have_a_lease(member.registration.lease_ms if member.registration else None)
        self._emit("ownership_ended", consumer, reason="expired")
        self.sweep(consumer, announce=True)
        self._report(facts.Left(member, self._view.remove(consumer), "member-left"))

    def _emit(self, kind: str, consumer: str, **fields: EventField) -> None:
        if kind == "member_left":
            self._told.add(consumer)
        self._scheduler.emit(kind, self._view.generation, None, member=consumer, **fields)

    def sweep(self, consumer: str, tries: int = MAX_TRIES, *, announce: bool = False) -> None:
        """Remove the nodes of a dead consumer; one without a channel, or with a mark in it, has closed cleanly."""
        listing = ListChildren(paths.channel(self._view.group, consumer))
        self._scheduler.ask(listing, self._dead_channel_listed, consumer, tries, announce)

    def _dead_channel_listed(self, reply: Reply, consumer: str, tries: int, announce: bool) -> None:
        announce = announce and consumer not in self._told
        if announce and isinstance(reply, Children):
            self._scheduler.ask(Get(paths.channel(self._view.group, consumer)), self._mark_read, consumer)
        elif announce:
            self._emit("member_left", consumer, reason="closed")
        left = [Delete(paths.given(self._view.group, consumer))] if consumer in self._view.recorded else []
        if isinstance(reply, Children):
            channel = paths.channel(self._view.group, consumer)
            left = [*(Delete(f"{channel}/{name}") for name in reply.names), Delete(channel), *left]
        deletes = left[:MAX_DELETES_PER_TRANSACTION]
        deletes = deletes[: self._scheduler.fitting(deletes)]
        if deletes:
            self._scheduler.write(deletes, self._swept, consumer, tries, deletes, len(deletes) == len(left))

    def _mark_read(self, reply: Reply, consumer: str) -> None:
        has_left = isinstance(reply, Content) and reply.content == LEFT
        self._emit("member_left", consumer, reason="closed" if has_left else "expired")

    def _swept(self, reply: Reply, consumer: str, tries: int, deletes: list[Delete], is_last: bool) -> None:
        given = paths.given(self._view.group, consumer)
        at = len(deletes) - 1
        if reply in {Refused(Refusal.NO_NODE, at), Refused(Refusal.NOT_EMPTY, at)} and deletes[at].path == given:
            self._view.recorded.discard(consumer)  # gone with its group, or deleted by hand; or a foreign node is below
        if isinstance(reply, Refused) and tries == 0:
            path = paths.channel(self._view.group, consumer)  # tried again with each reading of the group
            self._scheduler.complain(path, f"the nodes that {consumer} left behind could not be removed")
        elif isinstance(reply, Refused) or not is_last:
            self.sweep(consumer, tries - isinstance(reply, Refused))
        else:
            self._view.recorded.discard(consumer)

    # Eviction -------------------------------------------------------------------------------------------------------

    def evict_broken(self, member: Member) -> None:
        """Evict a consumer that lacks its registration, its record or a session, or makes false claims.

        Without a session, nothing ends by itself. The eviction waits for a lease, in case the consumer still lives.
        """
        if self._scheduler.has_timer(("evict", member.consumer)):
            return
        if not member.registered:
            self.evict(member.consumer, UNREGISTERED)
        elif member.is_record_gone:
            self.evict(member.consumer, RECORD_GONE)
        elif member.is_sessionless:
            self.evict(member.consumer, SESSIONLESS)
        elif member.false_claims and member.state is not MemberState.EVICTING:
            claims = sorted(member.false_claims)[:MAX_CLAIMS_SHOWN]
            shown = ", ".join(f"{topic}-{number}" for topic, number in claims)
            more = "" if len(claims) == len(member.false_claims) else ", …"
            self._emit("false_claim", member.consumer, partition_count=len(member.false_claims))
            self.evict(member.consumer, f"it claims what it was never given: {shown}{more}")

    def evict(self, consumer: str, reason: str, late: PendingCommand | None = None) -> None:
        """End the membership of a consumer that did not acknowledge a command (`late`), or has unreadable nodes."""
        member = self._view.members.get(consumer)
        if member is None or member.state is MemberState.EVICTING or self._scheduler.has_timer(("evict", consumer)):
            return  # if an eviction has just been prevented, it has to wait for its next try, whatever the reason
        member.go(MemberState.EVICTING)
        self._view.touch(consumer)
        self._scheduler.complain(paths.ids(self._view.group, consumer), f"evicting {consumer}: {reason}")
        self._list_channel(consumer, MAX_TRIES, late)

    def _list_channel(self, consumer: str, tries: int, late: PendingCommand | None) -> None:
        listing = ListChildren(paths.channel(self._view.group, consumer))
        self._scheduler.ask(listing, self._channel_listed, consumer, tries, late, expected=ANY)

    def _channel_listed(self, reply: Reply, consumer: str, tries: int, late: PendingCommand | None) -> None:
        """Remove everything in one transaction, which fails if the late command is acknowledged before it.

        An acknowledgement deletes its command. The version of `owners` does not count: a consumer may write its record
        again and again, to stay. `given` covers all that it may hold. Until the outcome is known, what the eviction
        record names counts as held, even if a stop that was not late is acknowledged meanwhile.
        """
        member = self._view.members.get(consumer)
        if member is None or self._is_to_wait(reply, member, late):
            return
        if late is not None and late not in member.pending:
            self._call_off(member)
            return
        if self._has_answered(member, late, reply):
            self._call_off(member)
            self._report(facts.OwnersInDoubt(consumer, late))  # acknowledged just now, or deleted by other means
            return
        group, operations = self._view.group, list[Operation]()
        stay = self._left_behind(member, has_channel=isinstance(reply, Children))
        if member.registered and paths.ids(group, consumer) not in stay:
            operations.append(Delete(paths.ids(group, consumer)))
        record: EvictionRecord | None = self._eviction_record(member)
        store = SetContent if paths.evicted(group, consumer) in self._in_the_way else Create
        create = store(paths.evicted(group, consumer), _encoded(record))
        owners = paths.owners(group, consumer)
        last: list[Operation] = [] if member.is_record_gone or owners in stay else [Delete(owners)]
        given = paths.given(group, consumer)
        last += [Delete(given)] if consumer in self._view.recorded and given not in self._in_the_way else []
        while record is not None and self._scheduler.room([*operations, *last, create]) < 0:
            record = _coarser(record)
            create = store(paths.evicted(group, consumer), _encoded(record))
        last.append(create)
        if isinstance(reply, Children):
            channel = paths.channel(group, consumer)
            inside = [Delete(f"{channel}/{node}") for node in reply.names]
            if not self._in_the_way.isdisjoint(delete.path for delete in inside):
                if owners in stay:  # nothing would tell a consumer that still lives
                    self._in_the_way.difference_update(delete.path for delete in inside)  # the next try looks again
                    self._give_way(consumer)
                    return
                inside, channel = [], ""  # the channel stays: without `owners`, nothing in it can be acknowledged
            if inside and self._scheduler.room([*operations, *inside, Delete(channel), *last]) < 0:
                self._empty_channel(inside, consumer, tries, late)
                return
            operations += [*inside, Delete(channel)] if channel else []
        operations += last
        written = [operation.path for operation in operations]
        member.leaving_with = self._really_held(member)
        self._scheduler.write(operations, self._evicted, consumer, record, written, tries, late, expected=ANY)

    def _has_answered(self, member: Member, late: PendingCommand | None, reply: Reply) -> bool:
        """Whether the late command is gone; or those that may not be read, if nothing else is wrong with a member."""
        if late is not None:
            return late.node is not None and not _is_listed(late.node, reply)
        is_wrong = member.false_claims or member.is_record_gone or member.is_sessionless or member.unreadable_commands
        if is_wrong or not (member.refused and member.registered and member.owners and isinstance(reply, Children)):
            return False
        group, consumer = self._view.group, member.consumer
        channel = paths.channel(group, consumer)
        there = {paths.owners(group, consumer), channel, *(f"{channel}/{name}" for name in reply.names)}
        return member.refused.isdisjoint(there)

    def _is_to_wait(self, reply: Reply, member: Member, late: PendingCommand | None) -> bool:
        """Whether ZooKeeper refuses a step of an eviction, for instance because a right is missing.

        Then the eviction is repeated after a pause. Meanwhile the consumer's session may end.
        """
        consumer = member.consumer
        is_refused = isinstance(reply, Refused) and reply.refusal not in RACES
        member.is_eviction_refused = is_refused and (late is None or late in member.pending)
        if member.is_eviction_refused:
            at_us = self._scheduler.now.mono_us + pause_us(self._failed[consumer])
            self._failed[consumer] += 1
            self._scheduler.wake(("evict-refused", consumer), at_us, self._list_channel, consumer, MAX_TRIES, late)
            self._report(facts.OutOfReach(consumer))
            self._report(facts.OwnersInDoubt(consumer))
        return member.is_eviction_refused

    def _left_behind(self, member: Member, *, has_channel: bool) -> set[str]:
        """Return the nodes of a member that an eviction leaves: nodes are below them, so no session will end them.

        If it has no channel and holds nothing, it disturbs nobody: then the eviction is tried again until they can be
        deleted. With a channel, it may live: only the end of the channel tells it to register anew.
        """
        nodes = {paths.ids(self._view.group, member.consumer), paths.owners(self._view.group, member.consumer)}
        return nodes & self._in_the_way if has_channel or member.held() or member.blocked_topics() else set()

    def _empty_channel(self, inside: Sequence[Delete], consumer: str, tries: int, late: PendingCommand | None) -> None:
        """Delete as many commands as fit into one transaction; there are too many to delete with the consumer."""
        fitting = self._scheduler.fitting(inside)
        written = [delete.path for delete in inside[:fitting]]
        self._scheduler.write(inside[:fitting], self._channel_emptied, consumer, written, tries, late, expected=ANY)

    def _channel_emptied(
        self, reply: Reply, consumer: str, written: list[str], tries: int, late: PendingCommand | None
    ) -> None:
        self._note_in_the_way(reply, consumer, written)
        member = self._view.members.get(consumer)
        if member is None or self._is_to_wait(reply, member, late):
            return
        if isinstance(reply, Done) or tries > 0:
            self._list_channel(consumer, tries - isinstance(reply, Refused), late)
        else:
            self._give_way(consumer)

    def _note_in_the_way(self, reply: Reply, consumer: str, written: list[str]) -> None:
        """Note a foreign node, so that the next try avoids it."""
        if not isinstance(reply, Refused) or reply.index is None:
            return
        path = written[reply.index]
        is_race = path == paths.channel(self._view.group, consumer)  # a command was sent meanwhile
        if reply.refusal in {Refusal.NOT_EMPTY, Refusal.NODE_EXISTS} and not is_race and path not in self._in_the_way:
            self._in_the_way.add(path)
            self._scheduler.complain(path, f"{path} is in the way of an eviction: {reply.refusal.value}")

    def _give_way(self, consumer: str) -> None:
        """Call an eviction off; if it is still due afterwards, it is tried again after a pause."""
        member = self._view.members.get(consumer)
        if member is not None:
            at_us = self._scheduler.now.mono_us + pause_us(self._failed[consumer])
            self._failed[consumer] += 1
            self._scheduler.wake(("evict", consumer), at_us, self._try_again, consumer)
            self._call_off(member)
            self._report(facts.OwnersInDoubt(consumer))

    def _try_again(self, consumer: str) -> None:
        member = self._view.members.get(consumer)
        if member is None:
            return
        self.evict_broken(member)
        if member.state is not MemberState.EVICTING:  # what requested it meanwhile has to check whether it is still due
            self._report(facts.EvictionCalledOff(member))
            self._report(facts.OwnersInDoubt(consumer))

    def _call_off(self, member: Member) -> None:
        """End an eviction that lost the race to an acknowledgement, or to the end of the session."""
        member.is_eviction_refused = False
        member.call_eviction_off()
        self._view.touch(member.consumer)
        self._report(facts.EvictionCalledOff(member))

    def _eviction_record(self, member: Member) -> EvictionRecord:
        known = member.registration
        topics = member.blocked_topics()
        if ALL_TOPICS in topics:
            # Includes deleted topics: if such a topic is created again, its holder may still read it.
            known_topics = self._view.topics.keys() | self._view.incarnations.keys()
            topics = tuple(sorted(known_topics | self._view.recorded_incarnations.keys()))
        return EvictionRecord(
            generation=self._view.generation,
            partitions=self._really_held(member),
            evicted_at_ms=self._scheduler.now.epoch_ms,
            lease_ms=known.lease_ms if known else UNKNOWN_LEASE_MS,
            topics=topics,
        )

    def _really_held(self, member: Member) -> Mapping[TopicPartition, int]:
        """Return what it holds; if that cannot be read, without partitions that are known to have another holder."""
        held = member.held()
        if member.is_readable and not member.is_record_gone:
            return held
        return {tp: thread for tp, thread in held.items() if not self._is_of_another(tp, member)}

    def _is_of_another(self, partition: TopicPartition, member: Member) -> bool:
        """Whether another member is known to hold a partition, even if only its record can be read."""
        others = [self._view.members.get(name) for name in self._view.holders(partition) if name != member.consumer]
        return any(
            other.is_readable or (other.owners is not None and partition in other.owners.partitions)
            for other in others
            if other is not None
        )

    def _evicted(
        self,
        reply: Reply,
        consumer: str,
        record: EvictionRecord | None,
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
            self._emit("member_left", consumer, reason="evicted")
            self._leases.begin(consumer, record)
            self._report(facts.Left(member, released, "member-evicted"))
        elif isinstance(reply, Refused):
            member.leaving_with = None
            self._report(facts.LetGo(self._view.refresh(consumer)))  # what it acknowledged that it had stopped
            if self._is_to_wait(reply, member, late):
                return
            self._note_in_the_way(reply, consumer, written)
            path = written[reply.index] if reply.index is not None else ""
            is_missing = reply.refusal is Refusal.NO_NODE
            ids, owners = paths.ids(self._view.group, consumer), paths.owners(self._view.group, consumer)
            if is_missing and path == ids:
                member.registered = False
            if is_missing and path == paths.given(self._view.group, consumer):
                self._view.recorded.discard(consumer)
            if is_missing and path == paths.evicted(self._view.group, consumer):
                self._report(facts.Outdated())  # to read the group makes the folder anew
                return
            is_over = member.is_record_gone and not member.registered
            is_vain = path == owners or (path == ids and reply.refusal is Refusal.NOT_EMPTY)
            stay = self._left_behind(member, has_channel=paths.channel(self._view.group, consumer) in written)
            if (is_vain and path not in stay) or is_over or tries == 0:
                self._give_way(consumer)
                return
            self._view.touch(consumer)
            self._list_channel(consumer, tries - 1, late)


def _is_listed(command: str, channel: Reply) -> bool:
    return isinstance(channel, Children) and command.rpartition("/")[2] in channel.names


def _coarser(record: EvictionRecord) -> EvictionRecord | None:
    """Return a smaller record that covers more: whole topics, then everything (None)."""
    topics = tuple(sorted({*record.topics, *(topic for topic, _number in record.partitions)}))
    return replace(record, partitions={}, topics=topics) if record.partitions else None


def _encoded(record: EvictionRecord | None) -> bytes:
    """Return the content of a node; one that cannot be read holds everything, for the longest lease."""
    return b"" if record is None else ownership.encode_eviction(record)
