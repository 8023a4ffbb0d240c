"""Judges a run by its events alone: records lost, doubled or out of order, partitions that two consumers held at once.

`check` reads a folder, `judge` is pure. The definitions are those of `docs/events.md`, and more of them stand in
`holdings.py`; times are of the monotonic clock that the processes of one host share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from zkrebalancer.observe.holdings import CLOSED, Holdings
from zkrebalancer.observe.ranges import RangeSet
from zkrebalancer.observe.reading import Event, EventFiles, NoEventsError, Problems
from zkrebalancer.observe.rebalances import Rebalance, RebalanceLog
from zkrebalancer.protocol.fields import TopicPartition

MAX_RANGES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that was broken on purpose, seconds after the run's first event."""

    name: str
    target: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run's events prove.

    Counts of records are sums over groups: `produced` counts what a group had to be given (from the first position at
    which it started each partition), `delivered` what it was given, each record once, `duplicated` what it was given
    beyond that, `duplicated_outside_crash` the part of it that no crash excuses. `out_of_order` counts deliveries that
    begin below what their consumer had been given before. `overlaps` counts partitions that two consumers held at once.
    `problems` says who, when and what; at most MAX_PROBLEMS lines and how many are left out.
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

    @property
    def ok(self) -> bool:
        """Whether every promise was kept."""
        return not self.problems


def check(directory: Path) -> Verdict:
    """Judge the run whose event files are in `directory`.

    Raises:
        NoEventsError: there are none.

    """
    problems = Problems()
    files = EventFiles(directory, problems)
    run = _replay(files, problems)
    if run.began_us is None:
        raise NoEventsError(f"the event files of {directory} are empty")
    return run.verdict(files.torn_lines)


def judge(events: Iterable[Event]) -> Verdict:
    """Judge events that are sorted by `mono_us` and have the keys that `reading.KEYS` names."""
    return _replay(events, Problems()).verdict(torn_lines=0)


def _replay(events: Iterable[Event], problems: Problems) -> Run:
    run = Run(problems)
    for event in events:
        run.apply(event)
    return run


@dataclass(slots=True)
class Counts:
    """Sums over the books that are closed."""

    produced: int = 0
    delivered: int = 0
    lost: int = 0


@dataclass(slots=True)
class GroupRecord:
    """One group: its partitions, and the consumers that were seen and whose end was not."""

    partitions: dict[TopicPartition, Holdings] = field(default_factory=dict)
    live: set[str] = field(default_factory=set)
    touched: dict[str, set[TopicPartition]] = field(default_factory=dict)  # what each consumer ever started


class Run:
    """A run up to the last event that was applied."""

    def __init__(self, problems: Problems) -> None:
        """Begin before the first event; what is found is added to `problems`."""
        self.began_us: int | None = None
        self._problems = problems
        self._groups: dict[str, GroupRecord] = {}
        self._produced: dict[TopicPartition, RangeSet] = {}
        self._log = RebalanceLog()
        self._faults: list[Fault] = []
        self._leading_epoch: int | None = None
        self._overlapping: set[tuple[str, TopicPartition]] = set()
        self._counts = Counts()
        self._duplicated = self._unexcused = self._out_of_order = 0
        self._takers: dict[str, Callable[[Event], None]] = {
            "rebalance_requested": self._log.requested,
            "rebalance_planned": self._log.planned,
            "rebalance_finished": self._log.finished,
            "fetcher_started": self._started,
            "fetcher_stopped": self._stopped,
            "delivered": self._delivered,
            "produced": self._take_produced,
            "topic_deleted": self._topic_deleted,
            "ownership_ended": self._ownership_ended,
            "committed": self._committed,
            "repositioned": self._repositioned,
            "member_joined": self._joined,
            "member_left": self._left,
            "leader_elected": self._elected,
            "leader_resigned": self._resigned,
            "fault": self._fault,
        }

    def apply(self, event: Event) -> None:
        """Take one event; kinds that prove nothing are passed over."""
        if self.began_us is None:
            self.began_us = event["mono_us"]
        take = self._takers.get(event["kind"])
        if take is not None:
            take(event)

    def verdict(self, torn_lines: int) -> Verdict:
        """Return what the events prove."""
        for name, group in self._groups.items():
            for partition, held in sorted(group.partitions.items()):
                self._close_books(name, partition, held)
        converged = self._is_converged()
        return Verdict(
            produced=self._counts.produced,
            delivered=self._counts.delivered,
            lost=self._counts.lost,
            duplicated=self._duplicated,
            duplicated_outside_crash=self._unexcused,
            out_of_order=self._out_of_order,
            overlaps=len(self._overlapping),
            converged=converged,
            rebalances=tuple(self._log.rebalances),
            faults=tuple(self._faults),
            torn_lines=torn_lines,
            problems=self._problems.lines(),
        )

    # Who holds what -------------------------------------------------------------------------------------------------

    def _started(self, event: Event) -> None:
        group, member = self._group(event), event["member"]
        group.live.add(member)
        for number, position in zip(event["partitions"], event["positions"], strict=True):
            partition = (event["topic"], number)
            group.touched.setdefault(member, set()).add(partition)
            held = group.partitions.setdefault(partition, Holdings())
            still_open, pause_us = held.start(member, event["mono_us"], position)
            for other in still_open:
                since = f"since {self._seconds(other.started_us):.3f} s"
                if other.member == member:
                    self._problem(event, partition, f"{member} started what it has held {since}")
                else:
                    self._overlapping.add((event["group"], partition))
                    self._problem(event, partition, f"{member} started while {other.member} held it, {since}")
            if pause_us is not None:
                self._log.started(event, pause_us)

    def _stopped(self, event: Event) -> None:
        group = self._group(event)
        for number in event["partitions"]:
            held = group.partitions.get((event["topic"], number))
            if held is not None:
                held.stop(event["member"], event["mono_us"], event["reason"])
        if event["reason"] == CLOSED:
            group.live.discard(event["member"])

    def _ownership_ended(self, event: Event) -> None:
        group, member = self._group(event), event["member"]
        group.live.discard(member)
        for partition in group.touched.get(member, ()):
            group.partitions[partition].end(member, event["mono_us"])

    def _joined(self, event: Event) -> None:
        self._group(event).live.add(event["member"])

    def _left(self, event: Event) -> None:
        group, member = self._group(event), event["member"]
        group.live.discard(member)
        if event["reason"] != CLOSED:
            for partition in group.touched.get(member, ()):
                group.partitions[partition].forgive_stop(member)

    # Records --------------------------------------------------------------------------------------------------------

    def _take_produced(self, event: Event) -> None:
        produced = self._produced.setdefault((event["topic"], event["partition"]), RangeSet())
        produced.add(event["first_offset"], event["last_offset"] + 1)

    def _delivered(self, event: Event) -> None:
        partition, member = (event["topic"], event["partition"]), event["member"]
        begin, end = event["first_offset"], event["last_offset"] + 1
        held = self._group(event).partitions.setdefault(partition, Holdings())
        delivery = held.deliver(member, begin, end)
        self._duplicated += _size(delivery.again)
        self._unexcused += _size(delivery.unexcused)
        given = f"{member} was given {_text([(begin, end)])}"
        if not delivery.is_held:
            self._problem(event, partition, f"{given} without holding it")
        if not delivery.is_in_order:
            self._out_of_order += 1
            self._problem(event, partition, f"{given} after later ones")
        if delivery.unexcused:
            self._problem(event, partition, f"{given}, of which {_text(delivery.unexcused)} again without a crash")

    def _committed(self, event: Event) -> None:
        held = self._group(event).partitions.get((event["topic"], event["partition"]))
        if held is not None:
            held.commit(event["member"], event["offset"])

    def _repositioned(self, event: Event) -> None:
        group = self._group(event)
        for number, position in zip(event["partitions"], event["positions"], strict=True):
            held = group.partitions.get((event["topic"], number))
            if held is not None:
                held.reposition(event["member"], position)

    def _topic_deleted(self, event: Event) -> None:
        """Its records are judged; those that come under its name later are another topic's."""
        topic = event["topic"]
        for name, group in self._groups.items():
            for partition, held in group.partitions.items():
                if partition[0] == topic:
                    self._close_books(name, partition, held)
                    held.forget_records()
        for partition in [partition for partition in self._produced if partition[0] == topic]:
            del self._produced[partition]

    def _close_books(self, group: str, partition: TopicPartition, held: Holdings) -> None:
        """Count what the group was to be given of a partition, from where it began to read, and what it was given."""
        produced = self._produced.get(partition)
        due = [] if produced is None or held.first_position is None else produced.at_or_above(held.first_position)
        missing = [gap for part in due for gap in held.delivered.missing(*part)]
        lost = [gap for part in missing for gap in held.passed_over.missing(*part)]
        self._counts.produced += _size(due) - (_size(missing) - _size(lost))
        self._counts.delivered += held.delivered.count
        self._counts.lost += _size(lost)
        if lost:
            self._problems.add(f"{_where(group, partition)}: {_size(lost)} records lost: {_text(lost)}")

    # The end --------------------------------------------------------------------------------------------------------

    def _is_converged(self) -> bool:
        """Whether each partition has exactly one owner, in every group with a consumer that is alive.

        Where nobody leads any more, consumers that own nothing may have gone unnoticed, so owners alone count as alive.
        """
        is_converged = True
        for name, group in self._groups.items():
            known = [held for held in group.partitions.values() if held.first_position is not None or held.intervals]
            owners = [len(held.intervals) for held in known]
            if not any(owners) and (not group.live or self._leading_epoch is None):
                continue
            planned = self._log.planned_partitions(name)
            wanted = len(owners) if planned is None else planned  # subscriptions may have changed
            if [count for count in owners if count] != [1] * wanted:
                is_converged = False
                who = f"{len(group.live)} live consumers"
                found = f"{owners.count(1)} of {wanted} partitions have exactly one owner"
                self._problems.add(f"group {name} at the end: {found}, with {who}")
        return is_converged

    def _elected(self, event: Event) -> None:
        self._leading_epoch = event["epoch"]

    def _resigned(self, event: Event) -> None:
        if self._leading_epoch == event["epoch"]:
            self._leading_epoch = None

    def _fault(self, event: Event) -> None:
        self._faults.append(Fault(event["name"], event["target"], round(self._seconds(event["mono_us"]), 3)))

    # Helpers --------------------------------------------------------------------------------------------------------

    def _group(self, event: Event) -> GroupRecord:
        return self._groups.setdefault(event["group"], GroupRecord())

    def _seconds(self, mono_us: int) -> float:
        return (mono_us - (self.began_us or 0)) / 1e6

    def _problem(self, event: Event, partition: TopicPartition, text: str) -> None:
        at = f"{self._seconds(event['mono_us']):.3f} s"
        self._problems.add(f"{at}: {_where(event['group'], partition)}: {text}")


def _where(group: str, partition: TopicPartition) -> str:
    return f"group {group}, {partition[0]}/{partition[1]}"


def _size(ranges: Iterable[tuple[int, int]]) -> int:
    return sum(end - begin for begin, end in ranges)


def _text(ranges: list[tuple[int, int]]) -> str:
    """Return half-open ranges of offsets as a person writes them."""
    shown = [f"{begin}" if end == begin + 1 else f"{begin}-{end - 1}" for begin, end in ranges[:MAX_RANGES_SHOWN]]
    return "offsets " + ", ".join(shown + ["…"] * (len(ranges) > MAX_RANGES_SHOWN))
