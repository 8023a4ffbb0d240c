"""Reads a whole group from ZooKeeper, in the one safe order, for the coordinator and for tools.

Reads of several nodes are not one snapshot. An acknowledgement moves a partition from `channel` to `owners`, and an
eviction moves it to `evicted`. So channels and their commands are read first, then the names of owners, then ids, then
owners, then evicted. A partition that moves meanwhile is thus seen at its destination or in both places, never in
neither. A channel whose consumer is not among the ids listed later belongs to a dead consumer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from zkrebalancer.protocol import cluster_nodes, command, last_change, ownership, paths, settings
from zkrebalancer.protocol.calls import Children, Content, Get, ListChildren, Refusal, Refused, Reply, Stat
from zkrebalancer.protocol.cluster_nodes import Topic
from zkrebalancer.protocol.errors import CommandError, NodeContentError
from zkrebalancer.protocol.fields import Bound, TopicPartition
from zkrebalancer.protocol.numbers import decimal
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.grounds import Grounds, is_doubtful
from zkrebalancer.rebalance.problems import PLACE, Problems
from zkrebalancer.rebalance.reads import Reads
from zkrebalancer.rebalance.view import ANY_VERSION, NONE, GroupView, Member, PendingCommand

Stage = Callable[[], list[Reads]]


class GroupReader:
    """One reading of a group; the caller performs the calls, stage by stage.

    `view` is what was read; `commands`: names of the commands of each consumer; `problems`: its unreadable nodes;
    `exists`: whether the group's node was there.
    """

    def __init__(
        self,
        group: str,
        topics: Mapping[str, Topic],
        known: GroupSettings | None = None,
        *,
        watch: bool = False,
        judge: bool = True,
    ) -> None:
        """Prepare to read, for the leader with `watch`.

        `known`: settings that stay in force if those in ZooKeeper cannot be read. `judge`: compare what members claim
        with what they were given.
        """
        self._group = group
        self._judge = judge
        self._known = known if known is not None else GroupSettings()
        self._watch = watch
        self.view = GroupView(group, topics)
        self.problems = Problems()
        self.exists = True
        self.channels: dict[str, list[PendingCommand]] = {}
        self.commands: dict[str, tuple[str, ...]] = {}
        self._statics: tuple[str, ...] = ()
        self._written_zxid: dict[str, int] = {}  # instance -> that of its record
        self._unreadable_channels: set[str] = set()
        self._owning: tuple[str, ...] = ()
        self._mark: bytes | None = None  # the generation up to which all that was given is recorded
        self._marked = 0  # the number in it, if it can be read: no former generation is above it
        self._damage = ""  # why the generation cannot be read
        self._seen_generation = 0  # the highest in members' nodes
        self._given: dict[str, dict[TopicPartition, int] | None] = {}  # by consumer; None: the record is invalid
        self._ends_if_as_given: dict[str, bytes | None] = {}  # of the records of what they own
        self.grounds = Grounds()
        self._refused: dict[str, set[str]] = {}  # consumer -> paths of its nodes that may not be read
        self._hidden_given: set[str] = set()  # consumers whose records of what they were given may not be read
        self._bounds: list[Bound] = []  # of the nodes that a tool has read
        self._without_record: list[str] = []  # members whose `owners` was missing after `ids` was read

    def stages(self) -> list[Stage]:
        """Return what to read, in order; a stage may begin once every reply to the previous one is handled."""
        return [
            self._node_names,
            self._commands_incarnations_and_statics,
            self._command_contents,
            self._names_of_owners,
            self._names_of_ids,
            self._registrations,
            self._owners,
            self._registrations_without_owners,
            self._evicted_names,
            self._eviction_records,
            *([] if self._watch else [self._grounds_again]),
        ]

    def finish(self) -> None:
        """After the last stage, index what evicted consumers hold, and put static members' records in order."""
        in_order = sorted(self.view.statics, key=self._written_zxid.__getitem__)
        self.view.statics = {instance: self.view.statics[instance] for instance in in_order}
        self.view.is_recorded = self._is_recorded()
        if not self.view.is_recorded:
            self.view.unrecorded.update(dict.fromkeys(self.view.members))
        for consumer in self.view.evicted:
            self.view.refresh(consumer)
        self.view.generation = max(self.view.generation, self._seen_generation)

    def _note_generation(self, generation: int, stat: Stat) -> None:
        """Note a generation in a member's node: the group's own cannot be lower, whatever its node says.

        Members may forge generations. But every plan had a separate transaction, so no true generation is above the id
        of the transaction that wrote the node, or, in a restored tree, above the mark that a leader writes with each
        plan. Higher ones are not believed, so that numbers remain to count on.
        """
        if generation <= max(stat.modified_zxid, self._marked):
            self._seen_generation = max(self._seen_generation, generation)

    def dead_channels(self) -> set[str]:
        """Return the consumers with a channel and no ownership record, whose sessions are over."""
        return self.channels.keys() - self.view.members.keys()

    # The stages: kinds of reads, which become calls in pieces if the group is large -----------------------------------

    def _node_names(self) -> list[Reads]:
        group = self._group
        return [
            Reads(Get, paths.group(group), self._settings_read, watch=self._watch),
            Reads(Get, paths.generation(group), self._generation_read),
            Reads(ListChildren, paths.channel(group), self._channels_listed),
            Reads(ListChildren, paths.offsets(group), self._offset_topics_listed),
            Reads(ListChildren, paths.static(group), self._statics_listed),
            *([Reads(ListChildren, paths.incarnations(group), self._incarnations_listed)] if self._watch else ()),
            *([Reads(Get, paths.given(group), self._mark_read)] if self._judge else ()),
            *([Reads(ListChildren, paths.given(group), self._given_listed)] if self._judge else ()),
        ]

    def _commands_incarnations_and_statics(self) -> list[Reads]:
        group, view = self._group, self.view
        if self._damage:  # the id of a write is above all former ones, but not in a restored tree
            view.generation = max(view.generation, self._marked)
            self.problems.add("generation", f"{self._damage}; continuing from {view.generation}")
        return [
            Reads(ListChildren, paths.channel(group), self._commands_listed, sorted(self.channels)),
            Reads(Get, paths.offsets(group), self._incarnation_read, [*view.incarnations]),
            Reads(Get, paths.incarnations(group), self._recorded_incarnation_read, [*view.recorded_incarnations]),
            Reads(Get, paths.static(group), self._static_read, self._statics),
            Reads(Get, paths.given(group), self._given_read, sorted(view.recorded)),
        ]

    def _command_contents(self) -> list[Reads]:
        return [
            Reads(Get, paths.channel(self._group, consumer), partial(self._command_read, consumer), nodes)
            for consumer, nodes in self.commands.items()
            if nodes
        ]

    def _names_of_owners(self) -> list[Reads]:
        return [Reads(ListChildren, paths.owners(self._group), self._owners_listed)]

    def _names_of_ids(self) -> list[Reads]:
        """List them in a separate stage, because the refusal of an earlier list of owners may arrive late."""
        return [Reads(ListChildren, paths.ids(self._group), self._ids_listed, watch=self._watch)]

    def _registrations(self) -> list[Reads]:
        names = sorted(member.consumer for member in self.view.members.values() if member.registered)
        return [Reads(Get, paths.ids(self._group), self._registration_read, names, watch=self._watch)]

    def _owners(self) -> list[Reads]:
        names = sorted(self.view.members)
        return [Reads(Get, paths.owners(self._group), self._owners_read, names, watch=self._watch)]

    def _registrations_without_owners(self) -> list[Reads]:
        return [Reads(Get, paths.ids(self._group), self._registered_again, self._without_record)]

    def _evicted_names(self) -> list[Reads]:
        return [Reads(ListChildren, paths.evicted(self._group), self._evicted_listed)]

    def _eviction_records(self) -> list[Reads]:
        return [Reads(Get, paths.evicted(self._group), self._eviction_read, sorted(self.view.evicted))]

    def _grounds_again(self) -> list[Reads]:
        """Read again what claims are judged by, if some seem false: a leader may have written it before the claims."""
        doubtful = sorted(member.consumer for member in self.view.members.values() if is_doubtful(member))
        if not doubtful:
            return []
        generation, given = paths.generation(self._group), paths.given(self._group)
        again = [generation, given, *(f"{given}/{name}" for name in doubtful)]
        return [Reads(Get, path, partial(self.grounds.compare, path)) for path in again]

    # The replies ----------------------------------------------------------------------------------------------------

    def _settings_read(self, reply: Reply) -> None:
        if isinstance(reply, Content):
            self.view.settings_version = reply.stat.version
            self.view.last_change = last_change.read(reply.content, reply.stat.version)
            self.view.created_zxid = reply.stat.created_zxid
            try:
                self.view.settings = settings.decode(reply.content)
            except NodeContentError as error:
                self.view.settings = self._known
                text = "the former settings stay in force; a leader that knows none moves no owned partition"
                self.problems.add("settings", f"{error}; {text}")
        else:
            self.exists = False

    def _generation_read(self, reply: Reply) -> None:
        self.grounds.note(paths.generation(self._group), reply)
        if isinstance(reply, Content):
            self.view.generation_version = reply.stat.version
            try:
                self.view.generation = cluster_nodes.decode_counter("generation", reply.content)
            except NodeContentError as error:
                self._damage = str(error)
                self.view.generation = reply.stat.modified_zxid  # each former one had a write, but see `_marked`

    def _channels_listed(self, reply: Reply) -> None:
        self.channels = {consumer: [] for consumer in _names(reply)}

    def _offset_topics_listed(self, reply: Reply) -> None:
        self.view.are_marks_hidden |= self._is_hidden(reply, paths.offsets(self._group))
        self.view.incarnations = dict.fromkeys(_names(reply), "")

    def _incarnations_listed(self, reply: Reply) -> None:
        self.view.are_marks_hidden |= self._is_hidden(reply, paths.incarnations(self._group))
        self.view.recorded_incarnations = dict.fromkeys(_names(reply), "")

    def _statics_listed(self, reply: Reply) -> None:
        self._is_hidden(reply, paths.static(self._group))
        self._statics = _names(reply)

    def _mark_read(self, reply: Reply) -> None:
        self.grounds.note(paths.given(self._group), reply)
        if isinstance(reply, Content):
            self._mark, self.view.given_version = reply.content, reply.stat.version
            self._marked = decimal(reply.content, cluster_nodes.MAX_COUNTER) or 0
        else:
            self._is_hidden(reply, paths.given(self._group))

    def _given_listed(self, reply: Reply) -> None:
        self.view.recorded = set(_names(reply))
        if self._is_hidden(reply, paths.given(self._group)):
            self._mark = None

    def _given_read(self, consumer: str, reply: Reply) -> None:
        if not self._watch:  # a leader reads them once
            self.grounds.note(paths.given(self._group, consumer), reply)
        if isinstance(reply, Content):
            try:
                self._given[consumer] = ownership.given_in_threads(reply.content, self._bound())
                self._ends_if_as_given[consumer] = ownership.end_if_as_given(reply.content)
            except NodeContentError as error:
                self._given[consumer] = None
                self.problems.add("given", f"{consumer}: {error}; what it claims is believed")
        elif self._is_unreadable(reply, paths.given(self._group, consumer)):
            self._given[consumer] = None
            self._hidden_given.add(consumer)

    def _commands_listed(self, consumer: str, reply: Reply) -> None:
        if isinstance(reply, Refused):
            self._note_refused(consumer, paths.channel(self._group, consumer), reply)
        self.commands[consumer] = _names(reply)

    def _incarnation_read(self, topic: str, reply: Reply) -> None:
        if isinstance(reply, Content):
            try:
                self.view.incarnations[topic] = cluster_nodes.decode_mark(reply.content)
            except NodeContentError as error:
                self.problems.add("offsets", f"topic {topic}: {error}; the record in incarnations counts")
        elif self._is_hidden(reply, paths.offsets(self._group, topic)):
            self.view.hidden_topics.add(topic)

    def _recorded_incarnation_read(self, topic: str, reply: Reply) -> None:
        if isinstance(reply, Content):
            try:
                self.view.recorded_incarnations[topic] = cluster_nodes.decode_mark(reply.content)
            except NodeContentError as error:
                self.problems.add("incarnations", f"topic {topic}: record: {error}; the mark of the offsets counts")
        elif self._is_hidden(reply, paths.incarnations(self._group, topic)):
            self.view.hidden_topics.add(topic)
        else:
            self.view.recorded_incarnations.pop(topic, None)

    def _static_read(self, instance: str, reply: Reply) -> None:
        if isinstance(reply, Content):
            try:
                found = ownership.decode_static(reply.content, self._bound())
                self.view.statics[instance] = found, reply.stat.version
                self._written_zxid[instance] = reply.stat.modified_zxid
            except NodeContentError as error:
                self.view.unreadable_statics[instance] = reply.stat.version
                self.problems.add("static", f"static member {instance}: {error}; replaced when it is started again")
        elif self._is_hidden(reply, paths.static(self._group, instance)):
            self.view.unreadable_statics[instance] = ANY_VERSION

    def _command_read(self, consumer: str, name: str, reply: Reply) -> None:
        node = f"{paths.channel(self._group, consumer)}/{name}"
        if isinstance(reply, Content):
            try:
                found = command.decode(reply.content, self._bound())
                self.channels[consumer].append(PendingCommand(found, node, reply.stat.created_ms))
                self._note_generation(found.generation, reply.stat)
            except CommandError as error:
                self._unreadable_channels.add(consumer)
                self.problems.add("channel", f"{node}: {error}; its consumer has to refuse it")
        else:
            self._note_refused(consumer, node, reply)

    def _owners_listed(self, reply: Reply) -> None:
        """Note the records. If no registration is listed later, the consumer is dead or was removed by hand."""
        self._owning = _names(reply)

    def _ids_listed(self, reply: Reply) -> None:
        registered = set(_names(reply))
        for consumer in (*self._owning, *_names(reply)):
            self.view.members[consumer] = Member(consumer, registered=consumer in registered)

    def _registration_read(self, consumer: str, reply: Reply) -> None:
        member = self.view.members[consumer]
        if isinstance(reply, Content):
            self._note("ids", member.read_registration(reply))
        elif self._is_unreadable(reply, paths.ids(self._group, consumer)):
            member.is_registration_refused = True
        else:
            member.registered = False

    def _owners_read(self, consumer: str, reply: Reply) -> None:
        if isinstance(reply, Content):
            member = self.view.members[consumer]
            member.given = self._given_to(consumer)
            end_if_as_given = self._ends_if_as_given.get(consumer)
            self._note("owners", member.read_owners(reply, self._bound(), end_if_as_given))
            if member.owners is not None:
                self._note_generation(member.owners.generation, reply.stat)
            self._adopt_commands(member)
        elif self._note_refused(consumer, paths.owners(self._group, consumer), reply):
            self.view.members[consumer].given = self._given_to(consumer)
            self._adopt_commands(self.view.members[consumer])
        elif self.view.members[consumer].registered:
            self._without_record.append(consumer)
        else:
            self._note_death(consumer)

    def _note_death(self, consumer: str) -> None:
        """Note that a consumer's session ended during the reading."""
        del self.view.members[consumer]
        self.channels.setdefault(consumer, [])  # its channel may be younger than the list of channels

    def _registered_again(self, consumer: str, reply: Reply) -> None:
        """Check `ids` again: a session's end deletes `ids` and `owners`, so if `ids` exists, `owners` was deleted.

        What may not be read may exist, so it is no session's end either.
        """
        member = self.view.members[consumer]
        if self._is_unreadable(reply, paths.ids(self._group, consumer)):
            member.is_registration_refused = True
        elif not isinstance(reply, Content):
            self._note_death(consumer)
            return
        member.given = self._given_to(consumer)
        member.is_record_gone = True
        if member.given is not None:
            member.owners = OwnersRecord(0, None, member.given)
        self._adopt_commands(member)

    def _adopt_commands(self, member: Member) -> None:
        """Adopt the commands that it has to answer; if its record may not be read, all commands that were found."""
        member.adopt(_not_applied(self.channels.get(member.consumer, []), member))
        member.unreadable_commands = member.consumer in self._unreadable_channels
        member.refused = frozenset(self._refused.get(member.consumer, ())) or NONE
        member.is_given_hidden = bool(self.view.hidden) and self.view.hides(paths.given(self._group))
        if self._watch and member.consumer in self._hidden_given and self._is_recorded():
            member.is_given_hidden = True
            self.view.hidden.add(paths.given(self._group, member.consumer))
        self.view.refresh(member.consumer)

    def _given_to(self, consumer: str) -> dict[TopicPartition, int] | None:
        """Return what a consumer may own; None: no record is reliable, because another version may have led since."""
        return self._given.get(consumer, {}) if self._is_recorded() else None

    def _is_recorded(self) -> bool:
        if self._damage:
            return bool(self._mark)  # the only one of the two marks that is left
        return self._mark == cluster_nodes.encode_counter(self.view.generation)

    def _evicted_listed(self, reply: Reply) -> None:
        self.view.evicted = dict.fromkeys(_names(reply))

    def _eviction_read(self, consumer: str, reply: Reply) -> None:
        if not isinstance(reply, Content):
            if not self._is_unreadable(reply, paths.evicted(self._group, consumer)):
                del self.view.evicted[consumer]
            return
        try:
            self.view.evicted[consumer] = ownership.decode_eviction(reply.content, self._bound())
        except NodeContentError as error:
            self.problems.add("evicted", f"{consumer}: {error}; holds everything until its lease ends")

    def _note_refused(self, consumer: str, path: str, reply: Reply) -> bool:
        """Note, and return, whether a consumer's node may not be read, which is no fault of the consumer."""
        is_refused = self._is_unreadable(reply, path)
        if is_refused:
            self._refused.setdefault(consumer, set()).add(path)
        return is_refused

    def _is_hidden(self, reply: Reply, path: str) -> bool:
        """Return whether a node of a topic or a static member, or their list, may not be read; a leader notes it."""
        is_hidden = self._is_unreadable(reply, path)
        if is_hidden and self._watch:
            self.view.hidden.add(path)
        return is_hidden

    def _is_unreadable(self, reply: Reply, path: str) -> bool:
        """Whether ZooKeeper refuses to read a node, which may exist; a leader logs that once, elsewhere."""
        if not isinstance(reply, Refused) or reply.refusal is Refusal.NO_NODE:
            return False
        if not self._watch:
            self.problems.add(path.split("/")[PLACE], f"{path} may not be read: {reply.refusal.value}")
        return True

    def _bound(self) -> Bound:
        """Return how many partitions one node may name, so that a short one costs little."""
        bound = self.view.bound()
        if not self._watch:
            self._bounds.append(bound)
        return bound

    @property
    def needs_topics(self) -> bool:
        """Whether a node names more partitions than are believed of a tool that does not know the topics."""
        return any(bound.absent < 0 for bound in self._bounds)

    def _note(self, place: str, problem: str | None) -> None:
        if problem is not None:
            self.problems.add(place, problem)


def _names(reply: Reply) -> tuple[str, ...]:
    return reply.names if isinstance(reply, Children) else ()


def _not_applied(pending: list[PendingCommand], member: Member) -> list[PendingCommand]:
    """Drop the commands that are applied according to the ownership record, which was read later.

    Commands are in the order of their sequence numbers.
    """
    if not pending:
        return pending
    in_order = sorted(pending, key=lambda command: command.node or "")
    applied_id = member.owners.command_id if member.owners else None
    for index, command_ in enumerate(in_order):
        if command_.command.command_id == applied_id:
            return in_order[index + 1 :]
    return in_order
