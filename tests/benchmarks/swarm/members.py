"""Members that register, answer commands and leave, many in one ZooKeeper session.

A member makes the calls of an agent: one transaction to register, then for each command its list of commands with a
watch, a read, and the acknowledgement in one transaction. It delivers no records and renews no lease.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from uuid import uuid4

import gevent
from gevent.event import Event

from zkrebalancer.protocol import command, ownership, paths, registration
from zkrebalancer.protocol.calls import (
    Call,
    Check,
    Children,
    Connected,
    Content,
    Create,
    Delete,
    Done,
    Get,
    ListChildren,
    Lost,
    Multi,
    Refused,
    Replied,
    Reply,
    SetContent,
    Suspended,
    Watched,
    ZooKeeperEvent,
)
from zkrebalancer.protocol.command import Command
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.protocol.registration import STATIC, Registration
from zkrebalancer.runtime.zk import ZkClient

CONNECT_DEADLINE_S = 60.0
RELEASED_S = 0.05  # between two looks at members that leave


@dataclass(slots=True)
class Member:
    """A member that plays one consumer."""

    group: str
    name: str
    partitions: Mapping[TopicPartition, int]
    version: int = 0  # of its record
    is_registered: bool = False
    is_busy: bool = False  # a list, a read or an acknowledgement is under way
    is_told: bool = False  # its watch has fired meanwhile
    started_us: int = 0  # when its first start was acknowledged


class SessionOfMany:
    """A ZooKeeper session with the members that live in it."""

    def __init__(self, zookeeper: str, count: Counted, timeout_ms: int = 60_000) -> None:
        """Connect; raises TimeoutError without an answer."""
        self._timeout_ms = timeout_ms
        self._count = count
        self._handlers: dict[int, Callable[[Reply], None]] = {}
        self._last_id = 0
        self._connected = Event()
        self.members: dict[tuple[str, str], Member] = {}  # (group, name)
        self._zk = ZkClient(zookeeper, timeout_ms, self._handle)
        self._zk.start()
        if not self._connected.wait(CONNECT_DEADLINE_S):
            raise TimeoutError(f"no ZooKeeper answered at {zookeeper} within {CONNECT_DEADLINE_S:g} s")

    def close(self) -> None:
        """End the session, and with it the members."""
        for member in self.members.values():
            self._count.released(member)
        self.members.clear()
        self._zk.close()

    def add(self, group: str, topic: str, client_id: str) -> Member:
        """Register a member that reads one topic."""
        member = Member(group, f"{client_id}-{uuid4()}", {})
        self.members[group, member.name] = member
        described = Registration(STATIC, {topic: 1}, "0", client_id, "swarm", self._timeout_ms)
        nodes = (
            Create(paths.channel(group, member.name)),
            Create(paths.ids(group, member.name), registration.encode(described), ephemeral=True),
            Create(
                paths.owners(group, member.name), ownership.encode_owners(OwnersRecord(0, None, {})), ephemeral=True
            ),
        )
        self._ask(Multi(nodes), lambda reply: self._registered(reply, member))
        return member

    def remove(self, member: Member) -> None:
        """Let a member leave."""
        del self.members[member.group, member.name]
        self._count.released(member)
        named = paths.channel, paths.ids, paths.owners
        self._ask(Multi(tuple(Delete(path(member.group, member.name)) for path in named)), _require_done)

    def _ask(self, call: Call, handle: Callable[[Reply], None]) -> None:
        self._last_id += 1
        self._handlers[self._last_id] = handle
        self._zk.request(self._last_id, call)

    def _handle(self, event: ZooKeeperEvent) -> None:
        if isinstance(event, Replied):
            self._handlers.pop(event.call_id)(event.reply)
        elif isinstance(event, Watched):
            group, _channel, name = event.path.removeprefix(f"{paths.GROUPS}/").split("/")
            if (group, name) in self.members:
                self._look(self.members[group, name])
        elif isinstance(event, Connected):
            self._connected.set()
        elif isinstance(event, Suspended | Lost) and self.members:
            self._count.faults.append(f"a session of {len(self.members)} members is {type(event).__name__.lower()}")

    # The conversation of one member ---------------------------------------------------------------------------------

    def _registered(self, reply: Reply, member: Member) -> None:
        if isinstance(reply, Done):
            member.is_registered = True
            self._count.registered += 1
            self._look(member)
        else:
            self._count.faults.append(f"{member.group}/{member.name} was not registered: {reply}")

    def _look(self, member: Member) -> None:
        """List the commands and watch the list, unless the member is answering one."""
        if member.is_busy:
            member.is_told = True
            return
        member.is_busy, member.is_told = True, False
        listing = ListChildren(paths.channel(member.group, member.name), watch=True)
        self._ask(listing, lambda reply: self._listed(reply, member))

    def _listed(self, reply: Reply, member: Member) -> None:
        if not isinstance(reply, Children) and (member.group, member.name) in self.members:
            self._count.faults.append(f"{member.group}/{member.name} was evicted: the machine is too busy")
        if not isinstance(reply, Children) or not reply.names:
            self._rest(member)
            return
        path = f"{paths.channel(member.group, member.name)}/{min(reply.names)}"
        self._ask(Get(path), lambda found: self._read(found, member, path))

    def _read(self, reply: Reply, member: Member, path: str) -> None:
        if not isinstance(reply, Content):  # it was cancelled
            self._look_again(member)
            return
        applying = command.decode(reply.content)
        new = OwnersRecord(applying.generation, applying.command_id, command.applied(member.partitions, applying))
        owners = paths.owners(member.group, member.name)
        transaction = Multi((Delete(path), SetContent(owners, ownership.encode_owners(new), member.version)))
        self._ask(transaction, lambda done: self._acknowledged(done, member, applying, new))

    def _acknowledged(self, reply: Reply, member: Member, applied: Command, new: OwnersRecord) -> None:
        if isinstance(reply, Done) and self.members.get((member.group, member.name)) is member:
            self._count.changed(member, new.partitions)
            member.version += 1
            if not member.started_us and applied.option == command.START_FETCHER:
                member.started_us = _now_us()
        self._look_again(member)

    def _look_again(self, member: Member) -> None:
        member.is_busy = False
        self._look(member)

    def _rest(self, member: Member) -> None:
        member.is_busy = False
        if member.is_told:
            self._look(member)

    def renew(self, member: Member, renewed: Callable[[], None]) -> None:
        """Make the call that an agent renews its lease with."""
        self._ask(Multi((Check(paths.owners(member.group, member.name)),)), lambda _reply: renewed())


class Counted:
    """What all members of a process own together."""

    def __init__(self) -> None:
        """Start with nothing."""
        self.registered = 0
        self.commands = 0
        self.owned: dict[str, int] = {}  # group -> how many partitions its members own
        self.total = 0
        self.last_change_us = 0
        self.faults: list[str] = []

    def changed(self, member: Member, partitions: Mapping[TopicPartition, int]) -> None:
        """Note what a member owns after a command."""
        self._add(member.group, len(partitions) - len(member.partitions))
        member.partitions = partitions
        self.commands += 1

    def released(self, member: Member) -> None:
        """Note that a member is gone."""
        self.registered -= member.is_registered
        self._add(member.group, -len(member.partitions))
        member.partitions = {}

    def _add(self, group: str, count: int) -> None:
        self.owned[group] = self.owned.get(group, 0) + count
        self.total += count
        self.last_change_us = _now_us()


def _require_done(reply: Reply) -> None:
    if isinstance(reply, Refused):
        raise TypeError(f"a member could not leave: {reply}")


def _now_us() -> int:
    return time.monotonic_ns() // 1_000


def wait_until(is_so: Callable[[], bool], deadline_s: float, what: str) -> None:
    """Wait for a condition; raises TimeoutError, which names it."""
    with gevent.Timeout(deadline_s, TimeoutError(f"{what}: not within {deadline_s:g} s")):
        while not is_so():
            gevent.sleep(RELEASED_S)
