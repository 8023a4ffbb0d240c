"""Reads a whole group from ZooKeeper, in the one order that is safe.

Reads of several nodes are not one snapshot. An acknowledgement moves a partition from `channel` to `owners`, an
eviction moves it to `evicted`; so channels and their commands are read first, then the names of owners, then ids, then
owners, then evicted: whatever moves meanwhile is seen where it goes to, or in both places, but never in neither. A
channel that is not among the ids that were listed after it belongs to the dead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from zkrebalancer.protocol import cluster_nodes, command, ownership, paths, registration, settings
from zkrebalancer.protocol.calls import Children, Content, Create, Get, ListChildren, Refusal, Refused, Reply
from zkrebalancer.protocol.errors import CommandError, NodeContentError
from zkrebalancer.rebalance.view import GroupView, Member, PendingCommand

if TYPE_CHECKING:
    from zkrebalancer.rebalance.group import Group

MAX_READS_PER_STEP = 500  # so that no other group waits long for its turn

Read = tuple[ListChildren | Get, Callable[[Reply], None]]


class Loading:
    """One reading after the other; each stage is pipelined, the next begins when every answer is there."""

    def __init__(self, group: Group) -> None:
        """Wait for `begin`."""
        self._group = group
        self._view = GroupView()
        self._reads: deque[Callable[[], Read]] = deque()  # of this stage, not asked for yet
        self._then = self._read_channels
        self._missing_answers = 0
        self._channels: dict[str, list[PendingCommand]] = {}
        self._unreadable_channels: set[str] = set()

    def begin(self) -> None:
        """Start from nothing; ends in `group.loaded`."""
        self._view = GroupView()
        self._missing_answers = 0
        self._channels = {}
        self._unreadable_channels = set()
        self._group.moving.reset()
        self._group.topic_reset.reset()
        self._group.membership.reset()
        self._list()

    def _list(self) -> None:
        name = self._group.name
        self._group.desk.ask(name, ListChildren(paths.group(name)), self._completed)

    def _completed(self, reply: Reply) -> None:
        """Create what the group's first consumer, or an operator, has left out."""
        if not isinstance(reply, Children):
            self._group.is_gone = reply == Refused(Refusal.NO_NODE)  # the list of groups tells whether it comes back
            return
        name = self._group.name
        nodes = [Create(f"{paths.group(name)}/{c}") for c in paths.GROUP_CHILDREN if c not in reply.names]
        if "generation" not in reply.names:
            nodes.append(Create(paths.generation(name), cluster_nodes.encode_counter(0)))
        if nodes:
            self._group.desk.ask(name, self._group.leadership.fenced(*nodes), self._created)
        else:
            self._read_channels()

    def _created(self, reply: Reply) -> None:
        if not self._group.leadership.is_deposed(reply) and not (isinstance(reply, Refused) and reply.outcome_unknown):
            self._list()

    # The stages -----------------------------------------------------------------------------------------------------

    def _read_channels(self) -> None:
        name = self._group.name
        self._stage_of(
            [
                (Get(paths.group(name), watch=True), self._take_settings),
                (Get(paths.generation(name)), self._take_generation),
                (ListChildren(paths.channel(name)), self._take_channels),
                (ListChildren(paths.offsets(name)), self._take_offset_topics),
                (ListChildren(paths.static(name)), self._take_static_names),
            ],
            self._read_commands,
        )

    def _read_commands(self) -> None:
        commands = [partial(self._commands_of, consumer) for consumer in sorted(self._channels)]
        topics = [partial(self._incarnation_of, topic) for topic in self._view.incarnations]
        statics = [partial(self._static_of, instance) for instance in self._static_names]
        self._stage([*commands, *topics, *statics], self._read_command_contents)

    def _commands_of(self, consumer: str) -> Read:
        return ListChildren(paths.channel(self._group.name, consumer)), partial(self._take_commands, consumer)

    def _incarnation_of(self, topic: str) -> Read:
        return Get(paths.offsets(self._group.name, topic)), partial(self._take_incarnation, topic)

    def _static_of(self, instance: str) -> Read:
        return Get(paths.static(self._group.name, instance)), partial(self._take_static, instance)

    def _read_command_contents(self) -> None:
        nodes = [(consumer, node) for consumer, nodes in self._nodes.items() for node in nodes]
        self._stage([partial(self._command_at, consumer, node) for consumer, node in nodes], self._read_ids)

    def _command_at(self, consumer: str, node: str) -> Read:
        return Get(node), partial(self._take_command, consumer, node)

    def _read_ids(self) -> None:
        name = self._group.name
        self._stage_of(
            [
                (ListChildren(paths.owners(name)), self._take_owning),
                (ListChildren(paths.ids(name), watch=True), self._take_ids),
            ],
            self._read_registrations,
        )

    def _read_registrations(self) -> None:
        members = self._view.members
        registered = [consumer for consumer in sorted(members) if members[consumer].registered]
        self._stage([partial(self._registration_of, consumer) for consumer in registered], self._read_owners)

    def _registration_of(self, consumer: str) -> Read:
        return Get(paths.ids(self._group.name, consumer), watch=True), partial(self._take_registration, consumer)

    def _read_owners(self) -> None:
        self._stage([partial(self._owners_of, consumer) for consumer in sorted(self._view.members)], self._read_evicted)

    def _owners_of(self, consumer: str) -> Read:
        return Get(paths.owners(self._group.name, consumer), watch=True), partial(self._take_owners, consumer)

    def _read_evicted(self) -> None:
        self._stage_of([(ListChildren(paths.evicted(self._group.name)), self._take_evicted)], self._read_tombstones)

    def _read_tombstones(self) -> None:
        self._stage([partial(self._tombstone_of, consumer) for consumer in sorted(self._view.tombstones)], self._finish)

    def _tombstone_of(self, consumer: str) -> Read:
        return Get(paths.evicted(self._group.name, consumer)), partial(self._take_tombstone, consumer)

    def _finish(self) -> None:
        view = self._view
        for consumer in view.tombstones:
            view.refresh(consumer)
        self._group.departures.note_dead_channels(self._channels.keys() - view.members.keys())
        self._group.loaded(view)

    def _stage_of(self, reads: Iterable[Read], then: Callable[[], None]) -> None:
        self._stage([partial(_same, read) for read in reads], then)

    def _stage(self, reads: Iterable[Callable[[], Read]], then: Callable[[], None]) -> None:
        self._reads, self._then = deque(reads), then
        self._ask()

    def _ask(self) -> None:
        """Ask for as much as goes into one step; the stage is over when all of it is answered."""
        desk, name = self._group.desk, self._group.name
        asked = min(len(self._reads), MAX_READS_PER_STEP)
        for _ in range(asked):
            call, take = self._reads.popleft()()
            desk.ask(name, call, self._taken, take)
        self._missing_answers += asked
        if self._reads:
            desk.wake(name, "loading", desk.now.mono_us + 1, self._ask)
        else:
            self._maybe_go_on()

    def _taken(self, reply: Reply, take: Callable[[Reply], None]) -> None:
        if isinstance(reply, Refused) and reply.outcome_unknown:
            return  # the connection broke: everything is read again when it is back
        take(reply)
        self._missing_answers -= 1
        self._maybe_go_on()

    def _maybe_go_on(self) -> None:
        if not self._missing_answers and not self._group.desk.is_awake_planned(self._group.name, "loading"):
            self._then()

    # The answers ----------------------------------------------------------------------------------------------------

    def _take_settings(self, reply: Reply) -> None:
        if isinstance(reply, Content):
            self._view.settings_version = reply.stat.version
            self._view.created_zxid = reply.stat.created_zxid
            try:
                self._view.settings = settings.decode(reply.content)
            except NodeContentError as error:
                self._view.settings = self._group.view.settings
                self._group.desk.warn(f"group {self._group.name}: {error}; the settings before stay in force")
        else:
            self._group.is_gone = True

    def _take_generation(self, reply: Reply) -> None:
        if isinstance(reply, Content):
            self._view.generation_version = reply.stat.version
            try:
                self._view.generation = cluster_nodes.decode_counter("generation", reply.content)
            except NodeContentError as error:
                self._group.desk.warn(f"group {self._group.name}: {error}; counting on from what was known")

    def _take_channels(self, reply: Reply) -> None:
        self._channels = {consumer: [] for consumer in _names(reply)}
        self._nodes: dict[str, list[str]] = {}

    def _take_offset_topics(self, reply: Reply) -> None:
        self._view.incarnations = dict.fromkeys(_names(reply), "")

    def _take_static_names(self, reply: Reply) -> None:
        self._static_names = _names(reply)

    def _take_commands(self, consumer: str, reply: Reply) -> None:
        channel = paths.channel(self._group.name, consumer)
        self._nodes[consumer] = [f"{channel}/{name}" for name in _names(reply)]

    def _take_incarnation(self, topic: str, reply: Reply) -> None:
        if isinstance(reply, Content):
            self._view.incarnations[topic] = reply.content.decode(errors="replace")

    def _take_static(self, instance: str, reply: Reply) -> None:
        if isinstance(reply, Content):
            try:
                self._view.statics[instance] = (ownership.decode_static(reply.content), reply.stat.version)
            except NodeContentError as error:
                self._group.desk.warn(f"group {self._group.name}: static member {instance}: {error}; ignored")

    def _take_command(self, consumer: str, node: str, reply: Reply) -> None:
        if isinstance(reply, Content):
            try:
                self._channels[consumer].append(PendingCommand(command.decode(reply.content), node))
            except CommandError as error:
                self._unreadable_channels.add(consumer)
                self._group.desk.warn(f"group {self._group.name}: {node}: {error}; its consumer has to refuse it")

    def _take_owning(self, reply: Reply) -> None:
        """Names of records: one without a registration, listed later, belongs to the dead or was struck off by hand."""
        for consumer in _names(reply):
            self._view.members[consumer] = Member(consumer, registered=False)

    def _take_ids(self, reply: Reply) -> None:
        members = self._view.members
        for consumer in _names(reply):
            if consumer in members:
                members[consumer].registered = True
            else:
                members[consumer] = Member(consumer)

    def _take_registration(self, consumer: str, reply: Reply) -> None:
        if isinstance(reply, Content):
            self._view.members[consumer].registration = read_registration(self._group, consumer, reply.content)
            self._view.members[consumer].joined_zxid = reply.stat.created_zxid
        else:
            self._view.members[consumer].registered = False

    def _take_owners(self, consumer: str, reply: Reply) -> None:
        if isinstance(reply, Content):
            member = self._view.members[consumer]
            read_owners(self._group, member, reply)
            member.pending = _not_applied(self._channels.get(consumer, []), member)
            member.unreadable_commands = consumer in self._unreadable_channels
            self._view.refresh(consumer)
        else:
            del self._view.members[consumer]  # its session ended while it was being read
            self._channels.setdefault(consumer, [])  # its channel may be younger than the list of channels

    def _take_evicted(self, reply: Reply) -> None:
        self._view.tombstones = dict.fromkeys(_names(reply))

    def _take_tombstone(self, consumer: str, reply: Reply) -> None:
        if not isinstance(reply, Content):
            del self._view.tombstones[consumer]
            return
        try:
            self._view.tombstones[consumer] = ownership.decode_eviction(reply.content)
        except NodeContentError as error:
            name = self._group.name
            self._group.desk.warn(f"group {name}: {consumer}: {error}; holds everything until its lease ends")


def read_registration(group: Group, consumer: str, content: bytes) -> registration.Registration | None:
    """Decode `ids/<consumer>`; one that cannot be read is refused with one line, and the rest goes on."""
    try:
        return registration.decode(content)
    except NodeContentError as error:
        group.desk.warn(f"group {group.name}: consumer {consumer} gets nothing: {error}")
        return None


def read_owners(group: Group, member: Member, reply: Content) -> None:
    """Decode `owners/<consumer>` into its member; one that cannot be read counts as holding everything."""
    member.owners_version = reply.stat.version
    try:
        member.owners = ownership.decode_owners(reply.content)
    except NodeContentError as error:
        member.owners = None
        group.desk.warn(f"group {group.name}: {member.consumer} may hold anything until it is evicted: {error}")


def _names(reply: Reply) -> tuple[str, ...]:
    return reply.names if isinstance(reply, Children) else ()


def _not_applied(pending: list[PendingCommand], member: Member) -> list[PendingCommand]:
    """Drop the commands that the owner's record, read later, says are applied; sequence order is the order of nodes."""
    in_order = sorted(pending, key=lambda command: command.node or "")
    applied_id = member.owners.command_id if member.owners else None
    for index, command_ in enumerate(in_order):
        if command_.command.command_id == applied_id:
            return in_order[index + 1 :]
    return in_order


def _same(read: Read) -> Read:
    return read
