"""Static members: a consumer with an instance id that restarts gets its partitions back.

`static/<instance>` is written with each start. When the consumer's session ends, the node gets a deadline: until then
the partitions have no owner, unless the instance comes back. After the deadline the node is deleted. An instance that
comes back while its former consumer is still registered has either been killed, and the old session has not ended yet,
or runs twice. In both cases the older consumer is *fenced*: it gets nothing more, and has to stop everything and leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from zkrebalancer.assignment.model import Member as ProblemMember
from zkrebalancer.protocol import ownership, paths
from zkrebalancer.protocol.calls import Create, Delete, Operation, Refused, Reply, SetContent
from zkrebalancer.protocol.command import StartFetcher
from zkrebalancer.protocol.errors import PatternError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.ownership import StaticMember
from zkrebalancer.rebalance import facts
from zkrebalancer.rebalance.plan import Plan
from zkrebalancer.rebalance.scheduler import PartScheduler
from zkrebalancer.rebalance.subscriptions import Subscriptions
from zkrebalancer.rebalance.view import GroupView, Member

# Decisions ------------------------------------------------------------------------------------------------------------


def fenced(view: GroupView, consumers_of: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Return consumer -> instance id for consumers whose id a younger one has too; none in a frozen group.

    `consumers_of`: instance -> consumers that take part with it.
    """
    if view.settings.frozen:
        return {}
    return {
        consumer: instance
        for instance, consumers in consumers_of.items()
        for consumer in sorted(consumers, key=lambda name: view.members[name].joined_zxid)[:-1]
    }


def former_names(
    view: GroupView, consumers_of: Mapping[str, Iterable[str]], fenced_: Mapping[str, str]
) -> dict[str, str]:
    """Return the former consumer of each instance that came back -> its consumer now."""
    names: dict[str, str] = {}
    for instance, (record, _version) in view.statics.items():
        youngest = next((name for name in consumers_of.get(instance, ()) if name not in fenced_), record.consumer)
        names[record.consumer] = youngest
    for older, instance in fenced_.items():
        names[older] = next(name for name in consumers_of[instance] if name not in fenced_)
    return {former: name for former, name in names.items() if former != name}


def claims_of(view: GroupView, member: Member, fenced_: Mapping[str, str]) -> dict[TopicPartition, int]:
    """Return what a static member had before it restarted, as far as no other consumer holds it now."""
    if member.instance is None:
        return {}
    older = [consumer for consumer, its_instance in fenced_.items() if its_instance == member.instance]
    claims = {tp: thread for consumer in older for tp, thread in view.held_by(consumer).items()}
    known = view.statics.get(member.instance)
    if known is not None and known[0].consumer != member.consumer:
        claims |= {tp: 0 for tp in known[0].partitions if not view.holders(tp)}
    return claims


def absent(view: GroupView, subscriptions: Subscriptions) -> dict[str, ProblemMember]:
    """Return the static members that are away but expected back, so that their partitions are given to no other."""
    members: dict[str, ProblemMember] = {}
    present = _instances_present(view)
    for instance, (record, _version) in view.statics.items():
        if instance in present or record.deadline_ms is None:
            continue
        owned = {tp: 0 for tp in sorted(record.partitions) if not view.holders(tp)}
        if owned:
            members[record.consumer] = _as_it_was(view.away.get(instance), instance, owned, subscriptions)
    return members


def _as_it_was(
    member: Member | None, instance: str, owned: Mapping[TopicPartition, int], subscriptions: Subscriptions
) -> ProblemMember:
    """Describe an absent member by its last registration, so that its absence changes no other's share."""
    known = member.registration if member is not None else None
    threads: dict[str, int] = {topic: 1 for topic, _number in owned}
    if known is None:  # it left before this leader came
        return ProblemMember(threads, owned, instance_id=instance)
    with suppress(PatternError):  # logged while it was there
        threads |= subscriptions.resolve(known)
    return ProblemMember(threads, owned, instance_id=instance, rack=known.rack, capacity=known.capacity)


def _instances_present(view: GroupView) -> set[str]:
    return {member.instance for member in view.members.values() if member.instance is not None}


# What is stored -------------------------------------------------------------------------------------------------------


def record(plan: Plan, consumer: str, start: StartFetcher) -> StaticMember:
    """Return what a static member has once it has acknowledged a start, to be stored with it."""
    return StaticMember(consumer, frozenset(plan.share(consumer)) | frozenset(start.partitions), None)


def stores(view: GroupView, instance: str, member: StaticMember) -> Operation:
    """Return the operation that stores the record of a static member."""
    path, content = paths.static(view.group, instance), ownership.encode_static(member)
    is_there = instance in view.statics or instance in view.unreadable_statics
    return SetContent(path, content) if is_there else Create(path, content)


class StaticMembers:
    """The deadlines of one group's static members that are away."""

    def __init__(self, scheduler: PartScheduler, view: GroupView, report: Callable[[facts.Fact], None]) -> None:
        """Set no timer yet; loading reads the records into the view."""
        self._scheduler = scheduler
        self._view = view
        self._report = report

    def adopt(self) -> None:
        """After loading: await the deadlines of members that are away; set one for those that left without a leader."""
        present = _instances_present(self._view)
        for instance, (record, _version) in sorted(self._view.statics.items()):
            if instance in present:
                continue
            if record.deadline_ms is None:
                self._set_deadline(instance, record)
            else:
                self._await_deadline(instance, record.deadline_ms)

    def left(self, member: Member) -> None:
        """Set a deadline for the return of a static member whose session is over."""
        instance = member.instance
        known = self._view.statics.get(instance) if instance is not None else None
        if instance is not None and known is not None and known[0].consumer == member.consumer:
            self._view.away[instance] = member
            self._set_deadline(instance, known[0])

    def _set_deadline(self, instance: str, record: StaticMember) -> None:
        deadline_ms = self._scheduler.now.epoch_ms + self._view.settings.static_grace_ms
        waiting = StaticMember(record.consumer, record.partitions, deadline_ms)
        self._view.statics[instance] = (waiting, -1)
        content = ownership.encode_static(waiting)
        self._scheduler.write([SetContent(paths.static(self._view.group, instance), content)], self._deadline_written)
        self._await_deadline(instance, deadline_ms)

    def _deadline_written(self, reply: Reply) -> None:
        if isinstance(reply, Refused):
            self._report(facts.Outdated())

    def _await_deadline(self, instance: str, deadline_ms: int) -> None:
        wait_us = max(0, deadline_ms - self._scheduler.now.epoch_ms) * 1_000
        at_us = self._scheduler.now.mono_us + min(wait_us, self._view.settings.static_grace_ms * 1_000)
        self._scheduler.wake(("static", instance), at_us, self._grace_over, instance)

    def _grace_over(self, instance: str) -> None:
        if instance not in _instances_present(self._view):
            self._scheduler.write([Delete(paths.static(self._view.group, instance))], self._removed, instance)

    def _removed(self, _reply: Reply, instance: str) -> None:
        self._view.statics.pop(instance, None)
        self._view.away.pop(instance, None)
        self._report(facts.Changed("static-grace-over"))
