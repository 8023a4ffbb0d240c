"""Static members: a consumer with an instance id that restarts gets its partitions back.

`static/<instance>` is written with each start. When the consumer's session ends, the node gets a deadline: until then
the partitions have no owner, unless the instance returns. After the deadline the node is deleted. An instance that
returns while its former consumer is still registered has either been killed, and the old session has not ended yet, or
runs twice. In both cases the older consumer is *fenced*: it gets nothing more, and has to stop everything and leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from zkrebalancer.assignment.model import Member as ProblemMember
from zkrebalancer.protocol import calls, ownership, paths
from zkrebalancer.protocol.calls import Create, Delete, Operation, Refusal, Refused, Reply, SetContent
from zkrebalancer.protocol.command import StartFetcher
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.ownership import StaticMember
from zkrebalancer.protocol.registration import MAX_STATIC_GRACE_MS, Registration
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance import facts
from zkrebalancer.rebalance.plan import Plan
from zkrebalancer.rebalance.scheduler import ANY, RACES, PartScheduler, pause_us
from zkrebalancer.rebalance.unclaimed import Unclaimed
from zkrebalancer.rebalance.view import ANY_VERSION, GroupView, Member

LONGEST_GRACE_US = 1_000 * MAX_STATIC_GRACE_MS
MAX_LOOKS = 5  # whether a newcomer is an instance whose grace is over: 3 s in all
WORK_OF_A_RECORD = 10  # units of `scheduler.MAX_WORK_PER_STEP`

# Decisions ------------------------------------------------------------------------------------------------------------


def fenced(view: GroupView, consumers_of: Mapping[str, AbstractSet[str]]) -> dict[str, str]:
    """Return consumer -> instance id for consumers whose id a younger one also has; none in a frozen group.

    `consumers_of`: instance -> consumers that take part with it.
    """
    if view.settings.frozen:
        return {}
    return {
        consumer: instance
        for instance, consumers in consumers_of.items()
        if len(consumers) > 1
        for consumer in sorted(consumers - {_youngest(view, consumers)})
    }


def alike(consumers_of: Mapping[str, AbstractSet[str]]) -> set[str]:
    """Return the consumers whose instance id another one also has: their claims depend on each other."""
    return {consumer for consumers in consumers_of.values() if len(consumers) > 1 for consumer in consumers}


def _youngest(view: GroupView, consumers: Iterable[str]) -> str:
    return max(consumers, key=lambda name: view.members[name].joined_zxid, default="")


def former_names(
    view: GroupView, consumers_of: Mapping[str, AbstractSet[str]], fenced_: Mapping[str, str]
) -> dict[str, str]:
    """Return the former consumer of each returned instance -> its present consumer."""
    names: dict[str, str] = {}
    for instance, (record, _version) in view.statics.items():
        consumers = consumers_of.get(instance, frozenset())
        if consumers and (record.consumer not in consumers or record.consumer in fenced_):
            names[record.consumer] = _youngest(view, consumers)
    for older, instance in fenced_.items():
        names[older] = _youngest(view, consumers_of[instance])
    return names


def claims_of(
    view: GroupView, member: Member, consumers_of: Mapping[str, AbstractSet[str]], fenced_: Mapping[str, str]
) -> dict[TopicPartition, int]:
    """Return what a static member had before its restart and no other consumer holds now."""
    if member.instance is None:
        return {}
    older = sorted(consumer for consumer in consumers_of.get(member.instance, ()) if consumer in fenced_)
    claims = {tp: thread for consumer in older for tp, thread in view.held_by(consumer).items()}
    known = view.statics.get(member.instance)
    if known is not None and known[0].consumer != member.consumer:
        claims |= {tp: 0 for tp in known[0].partitions if not view.holders(tp)}
    return claims


def absent(
    view: GroupView, wanted: Mapping[str, Mapping[str, int]], settings: GroupSettings
) -> dict[str, ProblemMember]:
    """Return the static members that are away but may return, so that their partitions go to no other member.

    `wanted`: instance -> topic -> threads, of those that left under this leadership. Nothing waits for a member that
    `settings` drain.
    """
    members: dict[str, ProblemMember] = {}
    present = _instances_present(view)
    for instance, (record, _version) in view.statics.items():
        if instance in present or record.deadline_ms is None:
            continue
        away = view.away.get(instance)
        known = away.registration if away is not None else None
        if settings.drains(record.consumer, instance, known.host if known is not None else None):
            continue
        owned = {tp: 0 for tp in sorted(record.partitions) if not view.holders(tp)}
        if owned:
            members[record.consumer] = _as_it_was(known, instance, owned, wanted.get(instance, {}))
    return members


def reserved(view: GroupView, consumers_of: Mapping[str, AbstractSet[str]]) -> dict[str, dict[TopicPartition, int]]:
    """Return the partitions that only one returned member may get, regardless of the strategy, for each such member.

    They are what a member with a grace of its own had when its session ended, because its client may still read them.
    The member has to get them back, and to stop them, before another member starts them.
    """
    names = {instance: _youngest(view, consumers_of.get(instance, ())) for instance in set(view.waiting_for.values())}
    found: dict[str, dict[TopicPartition, int]] = {}
    for partition, instance in view.waiting_for.items():
        found.setdefault(names[instance], {})[partition] = 0  # "": no member may get it for now
    return found


def _as_it_was(
    known: Registration | None, instance: str, owned: Mapping[TopicPartition, int], wanted: Mapping[str, int]
) -> ProblemMember:
    """Describe an absent member by its last registration, so that its absence changes no other's share."""
    threads: dict[str, int] = {topic: 1 for topic, _number in owned}
    if known is None:  # it left before this leadership
        return ProblemMember(threads, owned, instance_id=instance)
    threads |= wanted
    return ProblemMember(threads, owned, instance_id=instance, rack=known.rack, capacity=known.capacity)


def _had(view: GroupView, member: Member) -> frozenset[TopicPartition]:
    """Return what the clients of a member with a grace of its own may read after its session has ended."""
    known, recorded = member.registration, view.statics.get(member.instance or "")
    grace_ms = known.static_grace_ms if known is not None else recorded[0].grace_ms if recorded is not None else None
    return frozenset() if grace_ms is None else frozenset(member.held())


def _instances_present(view: GroupView) -> set[str]:
    return {member.instance for member in view.members.values() if member.instance is not None}


# What is stored -------------------------------------------------------------------------------------------------------


def record(view: GroupView, plan: Plan, consumer: str, start: StartFetcher, grace_ms: int | None) -> StaticMember:
    """Return the record of what a static member has after acknowledging a start, to be stored with the start.

    If the member registered its own grace, the record names what it holds, not what it is to get later, which others
    hold: of two records that name a partition, the one written last is that of the last holder (`StaticMembers.adopt`).
    It also names the partitions that clients of the instance's former registrations may still read: those that
    fenced ones hold, those of the record before that others with the id hold (nobody is fenced in a frozen group), and
    those that wait since other registrations ended. A new leader learns of these from the record only.
    """
    if grace_ms is None:
        return StaticMember(consumer, frozenset({*plan.share(consumer), *start.partitions}), None, None)
    instance, partitions = view.members[consumer].instance, {*view.held_by(consumer), *start.partitions}
    former = {tp for tp, awaited in view.waiting_for.items() if awaited == instance}
    for older in plan.fenced:
        if older in view.members and view.members[older].instance == instance:
            former |= view.held_by(older).keys()
    if instance in view.statics:
        before, _version = view.statics[instance]
        former.update(tp for tp in before.partitions if _is_held_with(view, instance, tp))
    former -= partitions
    return StaticMember(consumer, frozenset(partitions | former), None, grace_ms, frozenset(former))


def _is_held_with(view: GroupView, instance: str, partition: TopicPartition) -> bool:
    """Whether a member with an instance id holds a partition."""
    holders = (view.members.get(name) for name in view.holders(partition))
    return any(holder is not None and holder.instance == instance for holder in holders)


def stores(view: GroupView, instance: str, member: StaticMember) -> Operation:
    """Return the operation that stores the record of a static member, unless it was written meanwhile."""
    path, content = paths.static(view.group, instance), ownership.encode_static(member)
    is_there = _is_there(view, instance)
    return SetContent(path, content, _version(view, instance)) if is_there else Create(path, content)


def note_stored(view: GroupView, instance: str, member: StaticMember) -> None:
    """Note a record as it will be, with its version: a write that is repeated after a later one changes nothing."""
    version = _version(view, instance)
    is_hidden = version == ANY_VERSION and _is_there(view, instance)
    view.statics[instance] = member, version if is_hidden else version + 1


def _is_there(view: GroupView, instance: str) -> bool:
    return instance in view.statics or instance in view.unreadable_statics


def _version(view: GroupView, instance: str) -> int:
    """Return the version of a static member's record once all writes have succeeded; -1 if it does not exist."""
    known = view.statics.get(instance)
    return known[1] if known is not None else view.unreadable_statics.get(instance, -1)


class StaticMembers:
    """The deadlines of one group's static members that are away."""

    def __init__(self, scheduler: PartScheduler, view: GroupView, report: Callable[[facts.Fact], None]) -> None:
        """Set no timer yet; loading reads the records into the view."""
        self._until_us: dict[str, tuple[int, int]] = {}  # instance -> the deadline that this leader saw, and its end
        self._has_read = False  # whether this leader has read the group before
        self._over: dict[str, int] = {}  # instances whose graces are over, while it is read who is there -> tries
        self._scheduler = scheduler
        self._view = view
        self._report = report

    def note_gone(self, gone: Iterable[Member]) -> None:
        """After loading, reserve the partitions of members that are gone now; drop reservations that have ended."""
        view = self._view
        waiting = view.waiting_for.items()
        view.waiting_for = {tp: name for tp, name in waiting if name in view.statics and not view.holders(tp)}
        for member in gone:
            self._remember(member)
            if member.instance in view.statics:
                self._wait_for(member.instance, _had(view, member))

    def adopt(self) -> Iterator[int]:
        """After loading, await the deadlines of members that are away, and set those of members that left meanwhile.

        A record that was written before its member stopped something still names that, and so may a later record of
        the next holder. Therefore the records are taken in the order in which they were written (`reader.py`), before
        any is written again. Yields the work for each record, because there may be thousands.
        """
        self._over.clear()
        view = self._view
        self._note_hidden()
        self._note_unread()
        present = _instances_present(view)
        records = [(instance, record) for instance, (record, _version) in view.statics.items()]
        for instance, record in records:
            if instance not in view.statics:
                continue  # its member deleted it, and left for good
            if record.grace_ms is not None and record.consumer not in view.members:
                self._wait_for(instance, record.partitions)
            elif record.grace_ms is not None and not self._has_read:
                self._wait_for(instance, record.partitions if record.former is None else record.former)
            yield WORK_OF_A_RECORD
        for instance, record in records:
            if instance not in present and instance in view.statics:
                self._await_return(instance, record)
            yield WORK_OF_A_RECORD
        self._has_read = True

    def _note_unread(self) -> None:
        """Let the record that names a member tell its instance id while its registration cannot be read."""
        unread = [member for member in self._view.members.values() if member.registration is None]
        named = {record.consumer: instance for instance, (record, _version) in self._view.statics.items() if unread}
        for member in unread:
            member.recorded_instance = named.get(member.consumer, member.recorded_instance)

    def _note_hidden(self) -> None:
        """If a record may not be read, let partitions without a holder at first wait for its member, while they may.

        If all records may not be listed, there may be such a record.
        """
        view, now_us = self._view, self._scheduler.now.mono_us
        folder = paths.static(view.group)
        if not any(path == folder or path.startswith(f"{folder}/") for path in view.hidden):
            view.awaited = None
        elif not self._has_read:
            held = frozenset(tp for consumer in (*view.members, *view.evicted) for tp in view.held_by(consumer))
            counts = {topic: known.count for topic, known in view.topics.items()}
            view.awaited = Unclaimed(held, counts, now_us + LONGEST_GRACE_US)
        if view.awaited is not None:
            self._scheduler.wake("hidden statics", view.awaited.until_us, self._awaited_enough)

    def _awaited_enough(self) -> None:
        self._view.awaited = None
        self._report(facts.Changed("static-grace-over"))

    def _remember(self, member: Member) -> None:
        """Note what a member with a grace of its own had, if its record may not be read, in place of that record."""
        known = member.registration
        if known is None and member.instance is None:
            self._await_too(member)
        if known is None or known.instance_id is None or known.static_grace_ms is None:
            return
        if self._view.is_hidden(known):
            record = StaticMember(member.consumer, frozenset(member.held()), None, known.static_grace_ms, None)
            self._view.statics[known.instance_id] = record, ANY_VERSION

    def _await_too(self, member: Member) -> None:
        """Let what a member had wait that may be the one whose record may not be read."""
        view, until_us = self._view, self._scheduler.now.mono_us + LONGEST_GRACE_US
        if view.awaited is None or not member.is_registration_refused or view.awaited.held.isdisjoint(member.held()):
            return  # it had nothing, or nothing that does not wait already
        view.awaited = replace(view.awaited, held=view.awaited.held - member.held().keys(), until_us=until_us)
        self._scheduler.wake("hidden statics", until_us, self._awaited_enough)

    def left(self, member: Member) -> None:
        """Set a deadline for the return of a static member whose session is over.

        A member that returned, and left before it was given anything, leaves the record of its former registration. The
        deadline in that record still applies, and may have passed without effect while the member was present; there
        is none if no coordinator led when the former registration ended. If a former registration with its own grace
        ends after its successor has replaced the record, its partitions still wait for the instance.
        """
        self._remember(member)
        instance = member.instance
        known = self._view.statics.get(instance) if instance is not None else None
        if instance is None or known is None:
            return
        record, _version = known
        if record.consumer == member.consumer:
            self._view.away[instance] = member
            if record.grace_ms is not None:  # exactly what it had, because the record may name more
                lives = [member, *(other for other in self._view.members.values() if other.instance == instance)]
                had = frozenset(tp for life in lives for tp in _had(self._view, life))
                record = replace(record, partitions=record.partitions & had)
                self._wait_for(instance, record.partitions)
            self._set_deadline(instance, record)
            return
        had = _had(self._view, member)
        self._wait_for(instance, had)
        if instance not in _instances_present(self._view):
            self._view.away[instance] = member
            if had:
                self._set_deadline(instance, record)
            else:
                self._await_return(instance, record)

    def evicted(self, member: Member) -> None:
        """Let what still waits for the instance of an evicted member wait for one grace, in case that does not return.

        Nothing of its own waits: that is free when the lease is over. A deadline of a former registration may have
        passed without effect, as in `left`.
        """
        instance = member.instance or ""
        waiting = frozenset(tp for tp, name in self._view.waiting_for.items() if name == instance)
        known = self._view.statics.get(instance)
        if known is None or instance in _instances_present(self._view):
            return
        record, _version = known
        if waiting or record.deadline_ms is not None:
            self._await_return(instance, replace(record, partitions=record.partitions & waiting))

    def _await_return(self, instance: str, record: StaticMember) -> None:
        if record.deadline_ms is None:
            self._set_deadline(instance, record)
        else:
            self._await_deadline(instance, record.deadline_ms)

    def _set_deadline(self, instance: str, record: StaticMember) -> None:
        """Store the deadline; of a member with a grace of its own, only what waits for it or is held with its id."""
        view = self._view
        if record.grace_ms is not None:
            waits = view.waiting_for
            its = (tp for tp in record.partitions if waits.get(tp) == instance or _is_held_with(view, instance, tp))
            record = replace(record, partitions=frozenset(its))
        deadline_ms = self._scheduler.now.epoch_ms + self._grace_ms(record)
        waiting = replace(record, deadline_ms=deadline_ms)
        write = stores(self._view, instance, waiting)
        note_stored(self._view, instance, waiting)
        self._store(write, instance, waiting)
        self._await_deadline(instance, deadline_ms)

    def _store(self, write: Operation, instance: str, waiting: StaticMember, tries: int = 0) -> None:
        """Store a deadline, unless the record was replaced since: its version, which may be unknown, proves nothing."""
        known = self._view.statics.get(instance)
        if known is not None and known[0] is waiting:
            self._scheduler.write([write], self._deadline_written, write, instance, waiting, tries, expected=ANY)

    def _wait_for(self, instance: str, partitions: Iterable[TopicPartition]) -> None:
        view = self._view
        view.waiting_for.update((tp, instance) for tp in partitions if not view.holders(tp))

    def _grace_ms(self, record: StaticMember) -> int:
        return record.grace_ms or self._view.settings.static_grace_ms

    def _deadline_written(
        self, reply: Reply, write: Operation, instance: str, waiting: StaticMember, tries: int
    ) -> None:
        if isinstance(reply, Refused) and reply.refusal is Refusal.NO_NODE:
            self._scheduler.cancel_wake(("static", instance))  # its member deleted it, and left for good
            self._removed(reply, instance)
        elif isinstance(reply, Refused) and reply.refusal in RACES:
            self._report(facts.Outdated())
        elif isinstance(reply, Refused):
            at_us = self._scheduler.now.mono_us + pause_us(tries)
            self._scheduler.wake(("deadline", instance), at_us, self._store, write, instance, waiting, tries + 1)

    def _await_deadline(self, instance: str, deadline_ms: int) -> None:
        """Wait for the deadline, or, if a client of a former life may still read, for one whole grace.

        That grace begins when this leader first saw the record, because the clocks of two leaders may differ.
        """
        record, now = self._view.statics[instance][0], self._scheduler.now
        grace_us = self._grace_ms(record) * 1_000
        left_us = max(0, deadline_ms - now.epoch_ms) * 1_000 if record.grace_ms is None else grace_us
        seen = self._until_us.get(instance)
        if seen is None or seen[0] != deadline_ms:
            seen = self._until_us[instance] = deadline_ms, now.mono_us + min(left_us, grace_us)
        self._scheduler.wake(("static", instance), seen[1], self._grace_over, instance)

    def _grace_over(self, instance: str, tries: int = 0) -> None:
        """Delete the record. If clients may read on, look first who is there: a suspended leader learns that late."""
        known = self._view.statics.get(instance)
        if known is None or known[0].grace_ms is None:
            self._delete(instance, tries)
            return
        self._over[instance] = tries
        if len(self._over) == 1:  # one list is enough for all, of thousands, whose graces are over meanwhile
            self._scheduler.ask(calls.ListChildren(paths.ids(self._view.group)), self._ids_listed, expected=ANY)

    def _ids_listed(self, reply: Reply) -> None:
        """Delete the records, unless newcomers may be these instances: for a moment, until they are read."""
        over, self._over = self._over, {}
        are_known = isinstance(reply, calls.Children) and self._view.members.keys() >= set(reply.names)
        for instance, tries in over.items():
            if self._scheduler.has_timer(("static", instance)):
                continue  # another grace has begun meanwhile
            if are_known or tries >= MAX_LOOKS:  # each in a step of its own, because there may be thousands
                self._scheduler.wake_soon(("static", instance), self._delete, instance, tries)
            else:
                self._look_again(instance, tries)

    def _look_again(self, instance: str, tries: int) -> None:
        at_us = self._scheduler.now.mono_us + pause_us(tries)
        self._scheduler.wake(("static", instance), at_us, self._grace_over, instance, tries + 1)

    def _delete(self, instance: str, tries: int) -> None:
        """Delete a record; if that is refused, look again later, because the instance may return until then."""
        if instance not in _instances_present(self._view):
            delete = Delete(paths.static(self._view.group, instance), _version(self._view, instance))
            self._scheduler.write([delete], self._removed, instance, tries, expected=ANY)

    def _removed(self, reply: Reply, instance: str, tries: int = 0) -> None:
        if isinstance(reply, Refused) and reply.refusal not in RACES:
            self._look_again(instance, tries)
            return
        if isinstance(reply, Refused) and reply.refusal is Refusal.BAD_VERSION:
            self._report(facts.Outdated())  # its member has returned
            return
        self._view.statics.pop(instance, None)
        self._view.away.pop(instance, None)
        self._until_us.pop(instance, None)
        self._view.waiting_for = {tp: name for tp, name in self._view.waiting_for.items() if name != instance}
        self._report(facts.Changed("static-grace-over", instance))
