"""What the leader writes for a group's members: transactions of commands, and records of what each member was given.

A claim to more than `given/<consumer>` is false, even after a failover. Each start writes its consumer's record in the
same transaction (`Batch`), so a record never covers less than what was given. `GivenRecords` shrinks records after
partitions were released. If another version led the group, so that its records are unreliable, it records once what the
members claim.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace

from zkrebalancer.protocol import cluster_nodes, command, ownership, paths
from zkrebalancer.protocol.calls import Check, Create, Done, Operation, Refusal, Refused, Reply, SetContent
from zkrebalancer.protocol.command import Command, StartFetcher
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.ownership import StaticMember
from zkrebalancer.rebalance import facts, static_members, topic_reset
from zkrebalancer.rebalance.plan import Plan
from zkrebalancer.rebalance.scheduler import ANY, PartScheduler, pause_us
from zkrebalancer.rebalance.view import GroupView

GROUP_INDEX = 0  # of the operation that checks the settings
DELAY_US = 1_000_000  # so that the releases of a rebalance share a transaction and delay none of its starts
MAX_RECORDS = 64  # of one transaction, because other groups wait meanwhile
MAX_RECORDED = 20_000  # partitions in them


class Batch:
    """The commands of one transaction, and all that has to be written with them; measures the whole request."""

    def __init__(self, scheduler: PartScheduler, view: GroupView, plan: Plan) -> None:
        """Start with the check of the settings, and with the plan's generation if it is not stored yet."""
        self.plan = plan
        self.asked_us = scheduler.now.mono_us
        self._limit = scheduler.limit
        self._view = view
        self._first: list[Operation] = [Check(paths.group(view.group), view.settings_version)]
        self.generation_index = None if plan.stored else len(self._first)  # of the operation that stores it
        self.mark_index: int | None = None  # of the operation that marks the records of what was given as reliable
        if not plan.stored:
            content = cluster_nodes.encode_counter(plan.generation)
            self._first.append(SetContent(paths.generation(view.group), content, view.generation_version))
            if view.is_recorded:
                self.mark_index = len(self._first)
                self._first.append(SetContent(paths.given(view.group), content, view.given_version))
        self._room = self._whole_room = scheduler.room(self._first)
        self._beside: list[tuple[Operation, str, str | None]] = []  # with its consumer, and topic if it is a topic's
        self._creates: list[Operation] = []
        self.commands: list[tuple[str, Command]] = []  # in the order of the `Create` operations
        self.recorded: set[str] = set()  # consumers whose records are written
        self.recorded_count = 0  # partitions in these records
        self.incarnations: dict[str, str] = {}  # of topics, stored in their marks and records
        self.statics: dict[str, StaticMember] = {}  # by instance, as they are once the transaction has succeeded
        self._former_statics: dict[str, tuple[StaticMember, int] | None] = {}  # the same before it
        self.full: str | None = None  # the consumer whose record would be too large with one partition more
        self.left_out: list[str] = []  # instances whose records are too large to be stored

    @property
    def size_bytes(self) -> int:
        """The size of the operations added so far."""
        return self._whole_room - self._room

    @property
    def first_index(self) -> int:
        """The position of the first command among the operations."""
        return len(self._first) + len(self._beside)

    def operations(self) -> list[Operation]:
        """Return the transaction."""
        return [*self._first, *(operation for operation, _consumer, _topic in self._beside), *self._creates]

    def concerned(self, index: int | None) -> tuple[str | None, str | None]:
        """Return the only consumer or the only topic that one operation concerns; neither: it concerns all."""
        if index is None or index < len(self._first):
            return None, None
        if self.is_command(index):
            return self.commands[index - self.first_index][0], None
        _operation, consumer, topic = self._beside[index - len(self._first)]
        return (consumer, None) if topic is None else (None, topic)

    def refused_with(self, refused: Refused) -> dict[str, Operation]:
        """Return consumer -> its write that ZooKeeper refuses for this reason; a quota refuses all commands."""
        concerned, _topic = self.concerned(refused.index)
        found: dict[str, Operation] = {}
        if refused.refusal is Refusal.QUOTA_EXCEEDED:
            found.update(zip((consumer for consumer, _sent in self.commands), self._creates, strict=True))
        if concerned is not None and refused.index is not None:
            found[concerned] = self.operations()[refused.index]
        return found

    def topics_like(self, index: int | None) -> list[str]:
        """Return the topics whose operations need the same right as the one at `index`, which is a topic's."""
        refused = self.operations()[index or 0]
        parent = refused.path.rpartition("/")[0]
        return [
            topic
            for operation, _consumer, topic in self._beside
            if topic is not None
            and (operation is refused or (isinstance(refused, Create) and _creates_below(operation, parent)))
        ]

    def is_command(self, index: int | None) -> bool:
        """Whether one operation creates a command."""
        return index is not None and index >= self.first_index

    def add(self, consumer: str, wanted: Command) -> bool:
        """Add a command, or the part of it that fits; return False if it has to wait, or if its record is `full`."""
        static = self._static_record(consumer, wanted)
        if static is not None and static[0] in self.statics:
            return False  # nobody is fenced in a frozen group: the other one with this id is in the transaction
        while True:  # ends, because a start of one partition fits into any limit
            marks = self._marks(wanted)
            prefix = f"{paths.channel(self._view.group, consumer)}/{paths.COMMAND_PREFIX}"
            create = Create(prefix, command.encode(wanted), sequence=True)
            stores = [(write, of[0]) for of in marks.items() for write in topic_reset.stores(self._view, *of)]
            size = sum(map(self._limit.operation_size, (create, *(write for write, _topic in stores))))
            records: list[Operation] = []
            if size <= self._room or not _is_divisible(wanted):  # otherwise the records would be encoded in vain
                records = self._records(consumer, wanted, static)
                size += sum(map(self._limit.operation_size, records))
            if size <= self._room:
                break
            if self.commands:
                return False
            if static is not None and records and self._limit.operation_size(records[-1]) > self._room // 2:
                self.left_out.append(static[0])
                static = None
            elif isinstance(wanted, StartFetcher) and _is_divisible(wanted):
                kept = sorted(wanted.partitions)[: len(wanted.partitions) // 2]
                wanted = replace(wanted, partitions={partition: wanted.partitions[partition] for partition in kept})
            elif isinstance(wanted, StartFetcher):
                self.full = consumer
                return False
            else:
                break  # it is refused when it is sent
        self._room -= size
        self._beside += [(write, consumer, topic) for write, topic in stores]
        self._beside += [(write, consumer, None) for write in records]
        self._creates.append(create)
        self.commands.append((consumer, wanted))
        self.incarnations |= marks
        if isinstance(wanted, StartFetcher):
            self.recorded.add(consumer)
            self.recorded_count += len(self._view.held_by(consumer)) + len(wanted.partitions)
        self.statics.update([] if static is None else [static])
        return True

    def note_statics(self) -> None:
        """Note the records of static members as they will be."""
        known = self._view.statics
        self._former_statics = {instance: known.get(instance) for instance in self.statics}
        for instance, record in self.statics.items():
            static_members.note_stored(self._view, instance, record)

    def forget_statics(self, refused: Refused) -> None:
        """Note that nothing was written: a record that does not exist cannot be replaced."""
        known = self._view.statics
        if refused.refusal is Refusal.NO_NODE and refused.index is not None:
            folder, _, instance = self.operations()[refused.index].path.rpartition("/")
            if folder == paths.static(self._view.group):
                self._former_statics[instance] = None  # if all are hidden, no reading shows that it is gone
        for instance, former in self._former_statics.items():
            noted = known.get(instance)
            if noted is not None and noted[0] is self.statics[instance]:  # not replaced meanwhile
                known.pop(instance)
                known.update({} if former is None else {instance: former})

    def _records(self, consumer: str, wanted: Command, static: tuple[str, StaticMember] | None) -> list[Operation]:
        records = [self._given_record(consumer, wanted)] if isinstance(wanted, StartFetcher) else []
        return records if static is None else [*records, static_members.stores(self._view, *static)]

    def _static_record(self, consumer: str, wanted: Command) -> tuple[str, StaticMember] | None:
        registration = self._view.members[consumer].registration
        if registration is None or registration.instance_id is None or not isinstance(wanted, StartFetcher):
            return None
        if self._view.is_hidden(registration):
            return None  # what it says may be needed
        record = static_members.record(self._view, self.plan, consumer, wanted, registration.static_grace_ms)
        return registration.instance_id, record

    def _given_record(self, consumer: str, wanted: StartFetcher) -> Operation:
        given = {*(self._view.members[consumer].given or ()), *wanted.partitions}
        return given_record(self._view, consumer, given, self._whole_room // 2)

    def _marks(self, wanted: Command) -> dict[str, str]:
        """Return the incarnations to store with the start, because a consumer may read the mark right after it."""
        if not isinstance(wanted, StartFetcher):
            return {}
        topics = {topic for topic, _number in wanted.partitions} - self.incarnations.keys()
        unmarked = sorted(topic for topic in topics if not self._view.is_marked(topic))
        names = {topic: self._view.names_to_store(topic) for topic in unmarked}
        return {topic: incarnation for topic, incarnation in names.items() if incarnation is not None}


class GivenRecords:
    """Corrects the records of one group that differ from what is known."""

    def __init__(self, scheduler: PartScheduler, view: GroupView, report: Callable[[facts.Fact], None]) -> None:
        """Start with nothing to write."""
        self._scheduler = scheduler
        self._view = view
        self._report = report
        self._is_writing = False
        self._tries = 0  # failed ones in a row

    def reset(self) -> None:
        """Forget everything, because the group is read again."""
        self._is_writing = False
        self._tries = 0

    def look(self) -> None:
        """Schedule the writing of records that differ from what is known."""
        is_due = bool(self._view.unrecorded) or not self._view.is_recorded
        if is_due and not self._is_writing and not self._scheduler.has_timer("given") and not self._is_hidden():
            at_us = self._scheduler.now.mono_us + max(DELAY_US, pause_us(self._tries))
            self._scheduler.wake("given", at_us, self._write)

    def _is_hidden(self) -> bool:
        """Whether the records may not be read: then they are kept, and judge the members once they may be."""
        return self._view.hides(paths.given(self._view.group))

    def _write(self) -> None:
        names: list[str] = []
        operations: list[Operation] = []
        count = 0
        while self._view.unrecorded and len(names) < MAX_RECORDS and count < MAX_RECORDED:
            consumer, _ = self._view.unrecorded.popitem(last=False)
            member = self._view.members.get(consumer)
            if member is None or member.given is None or not (member.given or consumer in self._view.recorded):
                continue
            names.append(consumer)
            operations.append(given_record(self._view, consumer, member.given.keys(), self._scheduler.room() // 2))
            count += len(member.given)
        fitting = self._scheduler.fitting(operations)
        self._view.unrecorded.update(dict.fromkeys(names[fitting:]))
        if operations:
            self._is_writing = True
            self._scheduler.write(operations[:fitting], self._written, names[:fitting], expected=ANY)
        elif not self._view.is_recorded:
            self._mark()

    def _written(self, reply: Reply, names: list[str]) -> None:
        self._note_outcome(reply)
        if isinstance(reply, Refused):
            self._view.unrecorded.update(dict.fromkeys(names))
            if reply.index is not None and reply.refusal in {Refusal.NO_NODE, Refusal.NODE_EXISTS}:
                self._view.recorded ^= {names[reply.index]}  # another client has removed or created it
        else:
            self._view.recorded.update(names)
        self.look()

    def _mark(self) -> None:
        """Mark the records as reliable, now that every member has one; they stay so until another version leads."""
        if any(member.given is None for member in self._view.members.values()):
            return  # the group is read anew once that record can be read, or is gone
        group = self._view.group
        content = cluster_nodes.encode_counter(self._view.generation)
        mark = SetContent(paths.given(group), content, self._view.given_version)
        self._is_writing = True
        known = min(self._view.recorded & self._view.members.keys(), default=None)
        is_there = [] if known is None else [Check(paths.given(group, known))]  # a folder made anew has none
        check = Check(paths.generation(group), self._view.generation_version)
        self._scheduler.write([check, mark, *is_there], self._marked)

    def _marked(self, reply: Reply) -> None:
        self._note_outcome(reply)
        self._view.is_recorded = not isinstance(reply, Refused)
        if not isinstance(reply, Refused):
            self._view.given_version = version_in(reply, 1, self._view.given_version)
        elif reply.index in {1, 2} and reply.refusal in {Refusal.BAD_VERSION, Refusal.NO_NODE}:
            self._report(facts.Outdated())  # another client has written or deleted it, perhaps with the records in it
            return
        self.look()

    def _note_outcome(self, reply: Reply) -> None:
        self._is_writing = False
        self._tries = self._tries + 1 if isinstance(reply, Refused) else 0


def version_in(reply: Reply, index: int, before: int) -> int:
    """Return the version that an operation of a transaction has given to its node."""
    version = reply.results[index] if isinstance(reply, Done) else None
    return version if isinstance(version, int) else before + 1


def _creates_below(operation: Operation, parent: str) -> bool:
    return isinstance(operation, Create) and operation.path.rpartition("/")[0] == parent


def _is_divisible(wanted: Command) -> bool:
    return isinstance(wanted, StartFetcher) and len(wanted.partitions) > 1


def given_record(view: GroupView, consumer: str, given: AbstractSet[TopicPartition], max_bytes: int) -> Operation:
    """Return the operation that stores what a consumer was given, as a coarser record if it exceeds `max_bytes`."""
    content = ownership.encode_given(given)
    if len(content) > max_bytes:
        content = ownership.encode_given(given, is_coarse=True)
    write = SetContent if consumer in view.recorded else Create
    return write(paths.given(view.group, consumer), content)
