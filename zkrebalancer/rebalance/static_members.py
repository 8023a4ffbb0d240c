"""Static members: a consumer with an instance id that restarts takes back its partitions.

`static/<instance>` is written with each start. When the consumer's session ends it gets a deadline; until then its
partitions stay without an owner unless the instance comes back, and then the node is deleted. An instance that comes
back while its former consumer is still registered has either been killed, and waits for the end of the old session, or
runs twice: the older consumer gets nothing more, and is told to stop everything and leave (it is *fenced*).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from zkrebalancer.assignment.model import Member as ProblemMember
from zkrebalancer.protocol import ownership, paths
from zkrebalancer.protocol.calls import Create, Delete, Operation, Refused, Reply, SetContent
from zkrebalancer.protocol.command import StartFetcher
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.ownership import StaticMember
from zkrebalancer.rebalance import planning
from zkrebalancer.rebalance.view import Member

if TYPE_CHECKING:
    from zkrebalancer.rebalance.group import Group


class StaticMembers:
    """The instances of one group."""

    def __init__(self, group: Group) -> None:
        """Know none; loading reads them into the view."""
        self._group = group
        self._away: dict[str, Member] = {}  # those that left under this leadership, by instance

    def adopt(self) -> None:
        """After loading: wait for those that are away; those that left with no leader watching get a deadline."""
        if not self._group.view.statics:
            return
        present = self._instances_present()
        for instance, (record, _version) in sorted(self._group.view.statics.items()):
            if instance in present:
                continue
            if record.deadline_ms is None:
                self._set_deadline(instance, record)
            else:
                self._await_deadline(instance, record.deadline_ms)

    def records(self, starts: Iterable[tuple[str, StartFetcher]]) -> list[Operation]:
        """Return what keeps the partitions of static members in mind, to go with their starts."""
        operations: list[Operation] = []
        for consumer, start in starts:
            registration = self._group.view.members[consumer].registration
            if registration is None or registration.instance_id is None or self._group.plan is None:
                continue
            instance = registration.instance_id
            partitions = frozenset(self._group.plan.share(consumer)) | frozenset(start.partitions)
            record = StaticMember(consumer, partitions, None)
            path = paths.static(self._group.name, instance)
            known = self._group.view.statics.get(instance)
            content = ownership.encode_static(record)
            operations.append(SetContent(path, content) if known else Create(path, content))
            self._group.view.statics[instance] = (record, -1)
            self._group.desk.cancel_wake(self._group.name, ("static", instance))
        return operations

    def fenced(self, consumers_of: Mapping[str, Iterable[str]]) -> dict[str, str]:
        """Return consumer -> instance id of those whose id a younger consumer has; none in a frozen group.

        `consumers_of`: instance -> consumers that take part with it.
        """
        members = self._group.view.members
        if self._group.view.settings.frozen:
            return {}
        return {
            consumer: instance
            for instance, consumers in consumers_of.items()
            for consumer in sorted(consumers, key=lambda name: members[name].joined_zxid)[:-1]
        }

    def former_names(self, consumers_of: Mapping[str, Iterable[str]], fenced: Mapping[str, str]) -> dict[str, str]:
        """Return the former consumer of each instance that came back -> its consumer now."""
        names: dict[str, str] = {}
        for instance, (record, _version) in self._group.view.statics.items():
            youngest = next((name for name in consumers_of.get(instance, ()) if name not in fenced), record.consumer)
            names[record.consumer] = youngest
        for older, instance in fenced.items():
            names[older] = next(name for name in consumers_of[instance] if name not in fenced)
        return {former: name for former, name in names.items() if former != name}

    def claims_of(self, member: Member, fenced: Mapping[str, str]) -> dict[TopicPartition, int]:
        """Return what a static member had before it restarted, as far as nobody else holds it now."""
        view = self._group.view
        instance = member.registration.instance_id if member.registration else None
        if instance is None:
            return {}
        older = [consumer for consumer, its_instance in fenced.items() if its_instance == instance]
        claims = {tp: thread for consumer in older for tp, thread in view.held_by(consumer).items()}
        known = view.statics.get(instance)
        if known is not None and known[0].consumer != member.consumer:
            claims |= {tp: 0 for tp in known[0].partitions if not view.holders(tp)}
        return claims

    def absent(self) -> dict[str, ProblemMember]:
        """Return the static members that are away but expected back, so that nobody is given what waits for them."""
        absent: dict[str, ProblemMember] = {}
        if not self._group.view.statics:
            return absent
        present = self._instances_present()
        for instance, (record, _version) in self._group.view.statics.items():
            if instance in present or record.deadline_ms is None:
                continue
            owned = {tp: 0 for tp in sorted(record.partitions) if not self._group.view.holders(tp)}
            if owned:
                absent[record.consumer] = self._as_it_was(instance, owned)
        return absent

    def _as_it_was(self, instance: str, owned: Mapping[TopicPartition, int]) -> ProblemMember:
        """Describe an absent member by its last registration, so that its absence changes no other's share."""
        member = self._away.get(instance)
        known = member.registration if member is not None else None
        topics = {topic: 1 for topic, _number in owned}
        if member is None or known is None:  # it left before this leader came
            return ProblemMember(topics, owned, instance_id=instance)
        threads = {**topics, **planning.resolve(self._group, member)}
        return ProblemMember(threads, owned, instance_id=instance, rack=known.rack, capacity=known.capacity)

    def left(self, member: Member) -> None:
        """A consumer's session is over: a static member is waited for."""
        instance = member.registration.instance_id if member.registration else None
        known = self._group.view.statics.get(instance) if instance is not None else None
        if instance is not None and known is not None and known[0].consumer == member.consumer:
            self._away[instance] = member
            self._set_deadline(instance, known[0])

    def _set_deadline(self, instance: str, record: StaticMember) -> None:
        group = self._group
        deadline_ms = group.desk.now.epoch_ms + group.view.settings.static_grace_ms
        waiting = StaticMember(record.consumer, record.partitions, deadline_ms)
        group.view.statics[instance] = (waiting, -1)
        write = SetContent(paths.static(group.name, instance), ownership.encode_static(waiting))
        group.desk.ask(group.name, group.leadership.fenced(write), self._deadline_written)
        self._await_deadline(instance, deadline_ms)

    def _deadline_written(self, reply: Reply) -> None:
        if not self._group.leadership.is_deposed(reply) and isinstance(reply, Refused) and not reply.outcome_unknown:
            self._group.load("outdated")

    def _await_deadline(self, instance: str, deadline_ms: int) -> None:
        group = self._group
        wait_us = max(0, deadline_ms - group.desk.now.epoch_ms) * 1_000
        at_us = group.desk.now.mono_us + min(wait_us, group.view.settings.static_grace_ms * 1_000)
        group.desk.wake(group.name, ("static", instance), at_us, self._grace_over, instance)

    def _grace_over(self, instance: str) -> None:
        group = self._group
        if instance in self._instances_present():
            return
        removal = group.leadership.fenced(Delete(paths.static(group.name, instance)))
        group.desk.ask(group.name, removal, self._removed, instance)

    def _removed(self, reply: Reply, instance: str) -> None:
        group = self._group
        if group.leadership.is_deposed(reply) or (isinstance(reply, Refused) and reply.outcome_unknown):
            return
        group.view.statics.pop(instance, None)
        self._away.pop(instance, None)
        group.request("static-grace-over")

    def _instances_present(self) -> set[str]:
        return {r.instance_id for r in self._group.registrations() if r.instance_id is not None}
