"""Who is in the group: follows the watches on `ids`, on each registration and on each ownership record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Children, Content, Get, ListChildren, Refusal, Refused, Reply
from zkrebalancer.protocol.registration import Registration
from zkrebalancer.rebalance.loading import read_owners, read_registration
from zkrebalancer.rebalance.states import GroupState
from zkrebalancer.rebalance.view import Member

if TYPE_CHECKING:
    from zkrebalancer.rebalance.group import Group


class Membership:
    """Keeps `view.members` equal to what ZooKeeper says, one consumer at a time."""

    def __init__(self, group: Group) -> None:
        """Follow nothing yet: loading sets the first watches."""
        self._group = group
        self._newcomers: dict[str, tuple[Registration | None, int]] = {}  # registration read, ownership record not yet

    def reset(self) -> None:
        """Everything is read anew."""
        self._newcomers.clear()

    def list_ids(self) -> None:
        """Somebody came or went: list the consumers again."""
        group = self._group
        group.desk.ask(group.name, ListChildren(paths.ids(group.name), watch=True), self._ids_listed)

    def _ids_listed(self, reply: Reply) -> None:
        if not isinstance(reply, Children):
            return  # the connection broke, or the group was deleted: both are told otherwise
        names = set(reply.names)
        members = self._group.view.members
        for consumer in sorted(names - members.keys()):
            self._read_newcomer(consumer)
        for consumer in sorted(members.keys() - names):
            members[consumer].registered = False
            self._group.view.touch(consumer)
            self.read_owners(consumer)  # only the end of its session lets its partitions go

    def _read_newcomer(self, consumer: str) -> None:
        group = self._group
        ids, owners = paths.ids(group.name, consumer), paths.owners(group.name, consumer)
        group.desk.ask(group.name, Get(ids, watch=True), self._newcomer_read, consumer)
        group.desk.ask(group.name, Get(owners, watch=True), self._newcomer_owners_read, consumer)

    def _newcomer_read(self, reply: Reply, consumer: str) -> None:
        if isinstance(reply, Content):  # otherwise it is gone already
            registration = read_registration(self._group, consumer, reply.content)
            self._newcomers[consumer] = (registration, reply.stat.created_zxid)

    def _newcomer_owners_read(self, reply: Reply, consumer: str) -> None:
        group = self._group
        if isinstance(reply, Refused) and reply.refusal is Refusal.NO_NODE:
            self._newcomers.pop(consumer, None)
            group.departures.sweep(consumer)  # it came and went
            return
        if not isinstance(reply, Content) or consumer not in self._newcomers or consumer in group.view.members:
            return
        registration, joined_zxid = self._newcomers.pop(consumer)
        member = group.view.members[consumer] = Member(consumer, joined_zxid=joined_zxid)
        read_owners(group, member, reply)
        self._replace(member, registration)
        group.view.refresh(consumer)
        group.moving.expect_readable(member)
        group.desk.emit("member_joined", group.name, group.view.generation, None, member=consumer)
        group.request("member-joined")

    def read_registration(self, consumer: str) -> None:
        """A consumer changed what it says of itself."""
        group = self._group
        group.desk.ask(group.name, Get(paths.ids(group.name, consumer), watch=True), self._registration_read, consumer)

    def _registration_read(self, reply: Reply, consumer: str) -> None:
        group = self._group
        member = group.view.members.get(consumer)
        if not isinstance(reply, Content) or member is None:
            return  # gone already: the list of ids tells
        registration = read_registration(group, consumer, reply.content)
        if registration != member.registration:
            self._replace(member, registration)
            group.request("subscription-changed")

    def _replace(self, member: Member, registration: Registration | None) -> None:
        subscriptions = self._group.leadership.subscriptions
        if member.registration is not None:
            subscriptions.remove(self._group.name, member.registration)
        if registration is not None:
            subscriptions.add(self._group.name, registration)
        member.registration = registration
        member.pattern_refused = False
        self._group.view.touch(member.consumer)

    def read_owners(self, consumer: str) -> None:
        """What a consumer owns changed: an acknowledgement, or the end of its session."""
        group = self._group
        group.desk.ask(group.name, Get(paths.owners(group.name, consumer), watch=True), self.take_owners, consumer)

    def take_owners(self, reply: Reply, consumer: str) -> None:
        """Take over what `owners/<consumer>` says now."""
        group = self._group
        member = group.view.members.get(consumer)
        if member is None or group.state is GroupState.LOADING:
            return
        if isinstance(reply, Content):
            before = member.owners
            read_owners(group, member, reply)
            group.moving.owners_changed(member, before)
            if not member.registered:
                group.departures.evict(consumer, "its registration was removed")
        elif isinstance(reply, Refused) and reply.refusal is Refusal.NO_NODE and not member.evicting:
            group.departures.gone(consumer)
