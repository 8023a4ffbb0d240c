"""Judges a run by its events: records lost, duplicated or out of order, partitions that two consumers owned at once.

`check` reads a folder, `judge` is pure. For the definitions see `docs/reference/events.md` and `partition_history.py`.
Times are those of the monotonic clock that the processes of one host share. Clocks of several hosts are aligned within
bounds (`clocks.py`); what would need a closer look is not a problem but unclear.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from zkrebalancer.observe.partition_history import CLOSED, PartitionHistory
from zkrebalancer.observe.ranges import RangeSet
from zkrebalancer.observe.reading import Event, NoEventsError, Problems
from zkrebalancer.observe.rebalances import Rebalance, RebalanceLog
from zkrebalancer.observe.run_events import RunEvents
from zkrebalancer.protocol.fields import TopicPartition

MAX_RANGES_SHOWN = 3
GONE = frozenset({"expired", "evicted"})  # reasons of the coordinator: a name is never registered again


@dataclass(frozen=True, slots=True)
class Fault:
    """An injected fault; `at_s` counts seconds from the run's first event."""

    name: str
    target: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement on a run.

    Counts of records are sums over groups. `produced` counts the records that a group should have received: those from
    its first position in each partition on. `delivered` counts the records that it received, each once; `duplicated`
    counts repeated deliveries, and `duplicated_outside_crash` those that no crash explains. `lost` counts records that
    were produced but not delivered. `out_of_order` counts deliveries that begin below an earlier one of the same
    consumer. `overlaps` counts partitions that two consumers owned at once. `converged`: at the end, each partition had
    exactly one owner. `problems` has at most MAX_PROBLEMS lines, and one with the number of further ones; so has
    `unclear`, what cannot be told because the clocks of several hosts are not known well enough.
    """

    produced: int
    delivered: int
    lost: int
    duplicated: int
    duplicated_outside_crash: int
    out_of_order: int
    overlaps: int
    converged: bool
    rebalances: tuple[Rebalance, ...]
    faults: tuple[Fault, ...]
    torn_lines: int
    problems: tuple[str, ...]
    unclear: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems


def check(directory: Path) -> Verdict:
    """Judge the run whose event files are in `directory`.

    Raises:
        NoEventsError: the folder contains no events.

    """
    run, files = read(directory)
    return run.verdict(files.torn_lines)


def read(directory: Path, look: Callable[[Event], None] = lambda _event: None) -> tuple[Run, RunEvents]:
    """Return the run of a folder after its last event, and its files; `look` gets each event, too.

    Raises:
        NoEventsError: the folder contains no events.

    """
    problems = Problems()
    files = RunEvents(directory, problems)
    run = Run(problems, files)
    for event in files:
        run.apply(event)
        look(event)
    if run.began_us is None:
        raise NoEventsError(f"the event files of {directory} are empty")
    return run, files


def judge(events: Iterable[Event]) -> Verdict:
    """Judge events of one clock that are sorted by `mono_us` and have the keys of `reading.KEYS`."""
    run = Run(Problems())
    for event in events:
        run.apply(event)
    return run.verdict(torn_lines=0)


@dataclass(slots=True)
class Counts:
    """Records, summed over the partitions that were counted so far."""

    produced: int = 0
    delivered: int = 0
    lost: int = 0


@dataclass(slots=True)
class GroupRecord:
    """One group: its partitions, and its consumers that are alive."""

    partitions: dict[TopicPartition, PartitionHistory] = field(default_factory=dict)
    live: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)  # consumers that may not start anything any more
    resets: set[tuple[str, TopicPartition]] = field(default_factory=set)  # due after `offset_out_of_range`
    started: dict[str, set[TopicPartition]] = field(default_factory=dict)  # by consumer: every partition it started


class Run:
    """A run up to the last event that was applied."""

    def __init__(self, problems: Problems, files: RunEvents | None = None) -> None:
        """Begin before the first event; findings are added to `problems`, or to `unclear` if doubts concern them.

        `files`: where the events come from; None: of one clock.
        """
        self.began_us: int | None = None
        self.unclear = Problems()
        self._doubts = None if files is None else files.doubts
        for line in () if files is None or files.alignment is None else files.alignment.contradictions:
            self.unclear.add(line)
        self._problems = problems
        self._groups: dict[str, GroupRecord] = {}
        self._produced: dict[TopicPartition, RangeSet] = {}
        self._log = RebalanceLog()
        self._faults: list[Fault] = []
        self._leading: dict[int, int] = {}  # shard of groups -> epoch of its leader
        self._overlapping: set[tuple[str, TopicPartition]] = set()
        self._counts = Counts()
        self._losses: list[tuple[str, str]] = []  # group and text; at most one for each partition of a topic's life
        self._duplicated = self._forbidden = self._out_of_order = 0
        self._handlers: dict[str, Callable[[Event], None]] = {
            "rebalance_requested": self._log.requested,
            "rebalance_planned": self._log.planned,
            "rebalance_finished": self._log.finished,
            "fetcher_started": self._started,
            "fetcher_stopped": self._stopped,
            "delivered": self._delivered,
            "produced": self._handle_produced,
            "topic_deleted": self._topic_deleted,
            "ownership_ended": self._ownership_ended,
            "committed": self._committed,
            "offset_out_of_range": self._out_of_range,
            "repositioned": self._repositioned,
            "member_joined": self._joined,
            "member_left": self._left,
            "leader_elected": self._elected,
            "leader_resigned": self._resigned,
            "fault": self._fault,
            "events_dropped": self._events_dropped,
        }

    def apply(self, event: Event) -> None:
        """Apply one event; irrelevant kinds are ignored."""
        if self.began_us is None:
            self.began_us = event["mono_us"]
        handle = self._handlers.get(event["kind"])
        if handle is not None:
            handle(event)

    def verdict(
        self, torn_lines: int, *, owners_are_recorded: bool = True, silent_groups: Collection[str] = ()
    ) -> Verdict:
        """Return the judgement; call it once, after the last event.

        `owners_are_recorded`: all agents wrote events, so a partition without an owner had none. `silent_groups`: those
        of which some agent wrote none, so a record without a recipient may not be lost.
        """
        for name, group in self._groups.items():
            for partition, history in sorted(group.partitions.items()):
                self._count_records(name, partition, history)
        for of_group, line in self._losses:
            if of_group not in silent_groups:
                self._problems.add(line)
        converged = owners_are_recorded and self._is_converged()
        return Verdict(
            produced=self._counts.produced,
            delivered=self._counts.delivered,
            lost=self._counts.lost,
            duplicated=self._duplicated,
            duplicated_outside_crash=self._forbidden,
            out_of_order=self._out_of_order,
            overlaps=len(self._overlapping),
            converged=converged,
            rebalances=tuple(self._log.rebalances),
            faults=tuple(self._faults),
            torn_lines=torn_lines,
            problems=self._problems.lines(),
            unclear=self.unclear.lines(),
        )

    # Ownership ------------------------------------------------------------------------------------------------------

    def _started(self, event: Event) -> None:
        group, member = self._group(event), event["member"]
        is_gone = member in group.gone
        if not is_gone:
            group.live.add(member)
        else:
            partition = (event["topic"], min(event["partitions"], default=0))
            self._problem(event, partition, f"{member} started after its ownership had ended")
        for number, position in zip(event["partitions"], event["positions"], strict=True):
            partition = (event["topic"], number)
            group.started.setdefault(member, set()).add(partition)
            history = group.partitions.setdefault(partition, PartitionHistory())
            still_open, pause_us = history.start(member, event["mono_us"], position)
            if self._is_unclear(event, partition):
                still_open = []
                self._add(self.unclear, event, partition, f"cannot tell who owned it when {member} started")
                if is_gone:  # it may have started before its end; else it would own the partition for ever
                    history.end(member, event["mono_us"])
            for other in still_open:
                since = f"since {self._seconds(other.started_us):.3f} s"
                if other.member == member:
                    self._problem(event, partition, f"{member} started, but has owned it {since}")
                else:
                    self._overlapping.add((event["group"], partition))
                    self._problem(event, partition, f"{member} started, but {other.member} has owned it {since}")
            if pause_us is not None:
                self._log.started(event, pause_us)

    def _stopped(self, event: Event) -> None:
        group = self._group(event)
        for number in event["partitions"]:
            history = group.partitions.get((event["topic"], number))
            if history is not None:
                history.stop(event["member"], event["mono_us"], event["reason"])
        if event["reason"] == CLOSED:
            group.live.discard(event["member"])

    def _ownership_ended(self, event: Event) -> None:
        group, member = self._group(event), event["member"]
        group.live.discard(member)
        if event["reason"] in GONE:
            group.gone.add(member)
        for partition in group.started.get(member, ()):
            group.partitions[partition].end(member, event["mono_us"])

    def _joined(self, event: Event) -> None:
        self._group(event).live.add(event["member"])

    def _left(self, event: Event) -> None:
        group, member = self._group(event), event["member"]
        group.live.discard(member)
        if event["reason"] != CLOSED:
            for partition in group.started.get(member, ()):
                group.partitions[partition].revert_stop(member)

    # Records --------------------------------------------------------------------------------------------------------

    def _handle_produced(self, event: Event) -> None:
        produced = self._produced.setdefault((event["topic"], event["partition"]), RangeSet())
        produced.add(event["first_offset"], event["last_offset"] + 1)

    def _delivered(self, event: Event) -> None:
        partition, member = (event["topic"], event["partition"]), event["member"]
        begin, end = event["first_offset"], event["last_offset"] + 1
        history = self._group(event).partitions.setdefault(partition, PartitionHistory())
        delivery = history.deliver(member, begin, end, event.get("generation"))
        self._duplicated += _size(delivery.repeated)
        is_clear = delivery.is_faultless or not self._is_unclear(event, partition)
        self._forbidden += _size(delivery.forbidden) if is_clear else 0
        received = f"{member} received {_text([(begin, end)])}"
        if not delivery.is_owned:
            self._problem(event, partition, f"{received} without owning the partition")
        if not delivery.is_latest:
            self._problem(event, partition, f"{received} under generation {event['generation']}, after a higher one")
        if not delivery.is_in_order:
            self._out_of_order += is_clear
            self._problem(event, partition, f"{received} after later ones")
        if delivery.forbidden:
            self._problem(event, partition, f"{received}, of which {_text(delivery.forbidden)} again without a crash")

    def _committed(self, event: Event) -> None:
        history = self._group(event).partitions.get((event["topic"], event["partition"]))
        if history is not None:
            history.commit(event["member"], event["offset"])

    def _out_of_range(self, event: Event) -> None:
        numbers = tuple(event.get(key) for key in ("partition", "earliest", "offset", "latest"))
        match numbers:
            case (int(number), int(earliest), int(offset), int(latest)) if not earliest <= offset <= latest:
                self._group(event).resets.add((str(event.get("member")), (str(event.get("topic")), number)))

    def _repositioned(self, event: Event) -> None:
        group, member, reason = self._group(event), event["member"], event["reason"]
        for number, position in zip(event["partitions"], event["positions"], strict=True):
            partition = (event["topic"], number)
            history = group.partitions.get(partition)
            if history is None or (reason == "begin" and history.begin(member, position)):
                continue
            interval = history.intervals.get(member)
            produced = self._produced.get(partition)
            begin = position if interval is None else min(interval.position, position)
            skipped = [] if produced is None else produced.common(begin, position)
            if reason == "interrupt" and skipped:
                self._problem(event, partition, f"{member} skipped {_text(skipped)} because of an interrupt")
            if reason == "reset" and (member, partition) not in group.resets:
                self._problem(event, partition, f"{member} was reset to {position}, though Kafka had its offset")
            group.resets.discard((member, partition))
            history.reposition(member, position)

    def _topic_deleted(self, event: Event) -> None:
        """Count the topic's records; later ones of the same name belong to another topic."""
        topic = event["topic"]
        for name, group in self._groups.items():
            for partition, history in group.partitions.items():
                if partition[0] == topic:
                    self._count_records(name, partition, history)
                    history.forget_records()
        for partition in [partition for partition in self._produced if partition[0] == topic]:
            del self._produced[partition]

    def _count_records(self, group: str, partition: TopicPartition, history: PartitionHistory) -> None:
        """Count a partition's records: those that the group should have received, received, and lost."""
        produced, first = self._produced.get(partition), history.first_position
        due = [] if produced is None or first is None else produced.at_or_above(first)
        missing = [gap for part in due for gap in history.delivered.missing(*part)]
        lost = [gap for part in missing for gap in history.skipped.missing(*part)]
        self._counts.produced += _size(due) - (_size(missing) - _size(lost))
        self._counts.delivered += history.delivered.count
        self._counts.lost += _size(lost)
        if lost:
            self._losses.append((group, f"{_where(group, partition)}: {_size(lost)} records lost: {_text(lost)}"))

    # The end --------------------------------------------------------------------------------------------------------

    def _is_converged(self) -> bool:
        """Whether each partition has exactly one owner, in every group with a live consumer.

        Without a leader, the departure of a consumer that owned nothing may go unnoticed, so only owners count as live.
        """
        is_converged = True
        for name, group in self._groups.items():
            histories = group.partitions.values()
            owners = [len(each.intervals) for each in histories if each.first_position is not None or each.intervals]
            if not any(owners) and (not group.live or not self._leading):
                continue
            planned = self._log.planned_partitions(name)
            wanted = len(owners) if planned is None else planned  # subscriptions may have changed
            if [count for count in owners if count] != [1] * wanted:
                is_converged = False
                found = f"{owners.count(1)} of {wanted} partitions have exactly one owner"
                self._problems.add(f"group {name} at the end: {found}, with {len(group.live)} live consumers")
            for gone in sorted({member for each in histories for member in each.intervals} - group.live):
                is_converged = False
                self._problems.add(f"group {name} at the end: {gone} owns partitions, and has left")
        return is_converged

    def _elected(self, event: Event) -> None:
        self._leading[_shard(event)] = event["epoch"]

    def _resigned(self, event: Event) -> None:
        shard = _shard(event)
        if self._leading.get(shard) == event["epoch"]:
            del self._leading[shard]

    def _events_dropped(self, event: Event) -> None:
        count, process = event.get("dropped_count"), event.get("process")
        self._problems.add(f"{process} dropped {count} events: it could not write them, so their contents are missing")

    def _fault(self, event: Event) -> None:
        self._faults.append(Fault(event["name"], event["target"], round(self._seconds(event["mono_us"]), 3)))

    # Helpers --------------------------------------------------------------------------------------------------------

    def _group(self, event: Event) -> GroupRecord:
        return self._groups.setdefault(event["group"], GroupRecord())

    def _seconds(self, mono_us: int) -> float:
        return (mono_us - (self.began_us or 0)) / 1e6

    def _is_unclear(self, event: Event, partition: TopicPartition) -> bool:
        return self._doubts is not None and self._doubts.concern(event, partition)

    def _problem(self, event: Event, partition: TopicPartition, text: str) -> None:
        if self._is_unclear(event, partition):
            self._add(self.unclear, event, partition, f"cannot tell whether {text}")
        else:
            self._add(self._problems, event, partition, text)

    def _add(self, lines: Problems, event: Event, partition: TopicPartition, text: str) -> None:
        at = f"{self._seconds(event['mono_us']):.3f} s"
        lines.add(f"{at}: {_where(event['group'], partition)}: {text}")


def _shard(event: Event) -> int:
    """Return the shard of groups that a leadership is of; the events of the only one do not name it."""
    shard = event.get("shard")
    return shard if type(shard) is int else 0


def _where(group: str, partition: TopicPartition) -> str:
    return f"group {group}, {partition[0]}/{partition[1]}"


def _size(ranges: Iterable[tuple[int, int]]) -> int:
    return sum(end - begin for begin, end in ranges)


def _text(ranges: list[tuple[int, int]]) -> str:
    """Format half-open ranges as inclusive ones: `offsets 3, 5-9`."""
    shown = [f"{begin}" if end == begin + 1 else f"{begin}-{end - 1}" for begin, end in ranges[:MAX_RANGES_SHOWN]]
    return "offsets " + ", ".join(shown + ["…"] * (len(ranges) > MAX_RANGES_SHOWN))
