"""One transaction of commands: as many as fit, with everything that has to be written together with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from zkrebalancer.protocol import cluster_nodes, command, paths
from zkrebalancer.protocol.calls import Check, Create, Operation, SetContent
from zkrebalancer.protocol.command import Command, StartFetcher
from zkrebalancer.protocol.ownership import StaticMember
from zkrebalancer.rebalance import given as given_records
from zkrebalancer.rebalance import static_members
from zkrebalancer.rebalance.plan import Plan
from zkrebalancer.rebalance.scheduler import PartScheduler
from zkrebalancer.rebalance.view import GroupView

GROUP_INDEX = 0  # of the operation that checks the settings


@dataclass(frozen=True, slots=True)
class Batch:
    """The commands of one transaction, in the order of its `Create` operations, which begin at `first_index`."""

    plan: Plan
    commands: tuple[tuple[str, Command], ...]
    first_index: int
    generation_index: int | None  # of the operation that stores the generation
    incarnations: Mapping[str, str]  # of topics that are started for the first time
    operations: tuple[Operation, ...]  # all of them
    recorded: frozenset[str]  # consumers for which it is recorded what they were given


class BatchBuilder:
    """Gathers commands until one transaction is full: the whole request is measured."""

    def __init__(self, scheduler: PartScheduler, view: GroupView, plan: Plan) -> None:
        """Begin with the check of the settings, and with the plan's generation if it is not stored yet."""
        self._limit = scheduler.limit
        self._view, self._plan = view, plan
        self._first: list[Operation] = [Check(paths.group(view.group), view.settings_version)]
        if not plan.stored:
            content = cluster_nodes.encode_counter(plan.generation)
            self._first.append(SetContent(paths.generation(view.group), content, view.generation_version))
            if view.is_recorded:
                self._first.append(SetContent(paths.given(view.group), content))
        self._room = self._whole_room = scheduler.room(self._first)
        self._beside: list[Operation] = []
        self._creates: list[Operation] = []
        self.commands: list[tuple[str, Command]] = []
        self.recorded_count = 0  # partitions in the records of what was given
        self.incarnations: dict[str, str] = {}
        self.statics: dict[str, StaticMember] = {}  # by instance, as they are once the transaction has succeeded
        self.left_out: list[str] = []  # instances whose records are too large to be stored

    @property
    def size_bytes(self) -> int:
        """The size of what was added."""
        return self._whole_room - self._room

    def add(self, consumer: str, wanted: Command) -> bool:
        """Add a command, or as much of it as one transaction takes; False: it has to go into the next transaction."""
        record = self._record(consumer, wanted)
        while True:  # ends: a start of one partition fits into any limit
            marks = self._marks(wanted)
            create = Create(self._prefix(consumer), command.encode(wanted), sequence=True)
            beside = [self._mark(topic, incarnation) for topic, incarnation in marks.items()]
            if isinstance(wanted, StartFetcher):
                beside.append(self._given_record(consumer, wanted))
            if record is not None:
                beside.append(static_members.stores(self._view, *record))
            size = sum(map(self._limit.operation_size, (*beside, create)))
            if size <= self._room:
                break
            if self.commands:
                return False
            if record is not None and self._limit.operation_size(beside[-1]) > self._room // 2:
                self.left_out.append(record[0])
                record = None
            elif isinstance(wanted, StartFetcher) and len(wanted.partitions) > 1:
                kept = sorted(wanted.partitions)[: len(wanted.partitions) // 2]
                wanted = replace(wanted, partitions={partition: wanted.partitions[partition] for partition in kept})
            else:
                break  # it is refused when it is sent
        self._room -= size
        self._beside += beside
        self._creates.append(create)
        self.commands.append((consumer, wanted))
        self.incarnations |= marks
        if isinstance(wanted, StartFetcher):
            self.recorded_count += len(self._view.held_by(consumer)) + len(wanted.partitions)
        if record is not None:
            self.statics[record[0]] = record[1]
        return True

    def operations(self) -> list[Operation]:
        """Return the transaction."""
        return [*self._first, *self._beside, *self._creates]

    def batch(self) -> Batch:
        """Return the transaction, with all that its reply needs."""
        generation_index = None if self._plan.stored else GROUP_INDEX + 1
        first_index = len(self._first) + len(self._beside)
        commands, operations = tuple(self.commands), tuple(self.operations())
        started = frozenset(consumer for consumer, sent in commands if isinstance(sent, StartFetcher))
        return Batch(self._plan, commands, first_index, generation_index, self.incarnations, operations, started)

    def _prefix(self, consumer: str) -> str:
        return f"{paths.channel(self._view.group, consumer)}/{paths.COMMAND_PREFIX}"

    def _record(self, consumer: str, wanted: Command) -> tuple[str, StaticMember] | None:
        instance = self._view.members[consumer].instance
        if instance is None or not isinstance(wanted, StartFetcher):
            return None
        return instance, static_members.record(self._plan, consumer, wanted)

    def _given_record(self, consumer: str, wanted: StartFetcher) -> Operation:
        given = {*(self._view.members[consumer].given or ()), *wanted.partitions}
        return given_records.record(self._view, consumer, given, self._whole_room // 2)

    def _marks(self, wanted: Command) -> dict[str, str]:
        """Return the incarnations of topics that are started for the first time, to be stored with the start."""
        if not isinstance(wanted, StartFetcher):
            return {}
        topics = {topic for topic, _number in wanted.partitions} - self.incarnations.keys()
        unmarked = sorted(topic for topic in topics if not self._view.incarnations.get(topic))
        return {topic: self._view.topics[topic].incarnation for topic in unmarked}

    def _mark(self, topic: str, incarnation: str) -> Operation:
        path = paths.offsets(self._view.group, topic)
        write = Create if topic not in self._view.incarnations else SetContent
        return write(path, incarnation.encode())
