"""Verdicts as sentences: this project against each other protocol, losses first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from zkrebalancer.pipeline.report.folders import Setting
from zkrebalancer.pipeline.report.statistics import CONFIDENCE, Difference, difference, sample

OURS = ("central-incremental", "central-eager")  # the first of these that was run represents this project
SMALL = 0.05  # of the larger median; smaller differences are ignored
WINS, LOSES, OPEN = "wins", "loses", "open"
# Each measure: its name in a sentence and its unit; lower is better for all.
MEASURES: Mapping[str, tuple[str, str]] = {
    "settled_ms": ("time to settled", "ms"),
    "unowned_partition_s": ("partition time without a consumer", "s"),
    "delay_p50_ms": ("delay of half of the records", "ms"),
    "delay_p99_ms": ("delay of 99 % of the records", "ms"),
    "delay_max_ms": ("longest delay of a record", "ms"),
    "load_peak": ("highest load of a member over the mean", ""),
    "moved_above_least": ("partitions moved above the minimum", ""),
    "stopped_needlessly": ("partitions stopped needlessly", ""),
    "lost": ("records lost", ""),
    "duplicated": ("records delivered twice", ""),
    "out_of_order": ("records out of order", ""),
    "overlaps": ("partitions with two owners", ""),
    "requests": ("requests during the changes", ""),
    "zookeeper_bytes": ("bytes to and from ZooKeeper during the changes", ""),
    "cpu_ms": ("processor time during the changes", "ms"),
    "rest_requests_per_s": ("requests at rest", "/s"),
    "rest_zookeeper_bytes_per_s": ("bytes to and from ZooKeeper at rest", "/s"),
    "rest_cpu_ms_per_s": ("processor time at rest", "ms/s"),
    "rss_mb": ("memory", "MB"),
}
Values = Mapping[str, Sequence[float]]  # measure -> one value per trusted run that has it


@dataclass(frozen=True, slots=True)
class Verdict:
    """One measure of this project against that of another protocol, in one setting.

    `difference`: the other's value minus ours; None if there are too few runs.
    """

    setting: Setting
    ours: str
    other: str
    measure: str
    our_values: tuple[float, ...]
    other_values: tuple[float, ...]
    difference: Difference | None

    @property
    def outcome(self) -> str:
        """Return WINS, LOSES or OPEN."""
        if self.difference is None or not self.difference.is_shown or self._is_small:
            return OPEN
        return WINS if self.difference.low > 0 else LOSES

    @property
    def _is_small(self) -> bool:
        ours, other = sample(self.our_values).median, sample(self.other_values).median
        return abs(other - ours) < SMALL * max(ours, other)

    @property
    def runs(self) -> str:
        """Return how many runs each side has, as text."""
        return f"{len(self.our_values)} and {len(self.other_values)} runs"

    def __str__(self) -> str:
        """Return the verdict as a sentence."""
        ours, other = sample(self.our_values), sample(self.other_values)
        name, unit = MEASURES[self.measure]
        both = f"{shown(ours.median, unit)} against {shown(other.median, unit)}"
        if self.difference is None:
            return f"{name}: {both}; {self.runs} are too few to tell"
        if self.outcome == OPEN:
            return f"{name}: {both}; {self.runs} show no clear difference"
        times = _times(ours.median, other.median)
        if times:
            both += f", {times} {'less' if ours.median < other.median else 'more'}"
        return f"{self.ours} {self.outcome} in {name}: {both} ({self._how_sure()})"

    @property
    def beside(self) -> str:
        """Return how ours compares with the other, in a few words."""
        if self.difference is None:
            return "too few runs"
        if self.outcome == OPEN:
            return "no difference shown"
        ours, other = sample(self.our_values).median, sample(self.other_values).median
        times = _times(ours, other)
        return f"ours {times and times + ' '}{'better' if self.outcome == WINS else 'worse'}"

    def _how_sure(self) -> str:
        if self.difference is None:
            return ""
        unit = MEASURES[self.measure][1]
        low, high = sorted((abs(self.difference.low), abs(self.difference.high)))
        sure = f"{CONFIDENCE:.0%} of resamples: {shown(low, unit)} to {shown(high, unit)}; {self.runs}"
        return (
            f"{sure}; chance alone separates them in {self.how_often_by_chance}" if self.how_often_by_chance else sure
        )

    @property
    def how_often_by_chance(self) -> str:
        """Return how often chance alone separates so few runs completely; empty if that is rare."""
        by_chance = None if self.difference is None else self.difference.by_chance
        if by_chance is None or by_chance <= 1 - CONFIDENCE:
            return ""
        return f"{by_chance:.0%} of comparisons"


def verdicts(setting: Setting, values: Mapping[str, Values]) -> list[Verdict]:
    """Compare this project with every other protocol of a setting; `values`: protocol -> values.

    Measures that are 0 in every run of both protocols are left out.
    """
    ours = next((name for name in OURS if name in values), None)
    if ours is None:
        return []
    found = []
    for other in sorted(values.keys() - {ours}):
        for measure in MEASURES:
            one, two = tuple(values[ours].get(measure, ())), tuple(values[other].get(measure, ()))
            if one and two and any(one + two):
                found.append(Verdict(setting, ours, other, measure, one, two, difference(one, two)))
    return found


def in_order(protocols: Iterable[str]) -> list[str]:
    """Return protocols in display order: this project's first."""
    return sorted(set(protocols), key=lambda name: (name not in OURS, OURS.index(name) if name in OURS else 0, name))


def losses(found: Iterable[Verdict]) -> list[Verdict]:
    """Return the verdicts in which this project loses to another; its own two modes are not compared here."""
    return [verdict for verdict in found if verdict.outcome == LOSES and verdict.other not in OURS]


def loss_lines(found: Iterable[Verdict]) -> dict[Setting, list[str]]:
    """Return, for each setting, one line per measure that this project loses, with the protocols that win it."""
    lost: dict[tuple[Setting, str], list[Verdict]] = {}
    for verdict in losses(found):
        lost.setdefault((verdict.setting, verdict.measure), []).append(verdict)
    lines: dict[Setting, list[str]] = {}
    for (setting, measure), of_one in lost.items():
        name, unit = MEASURES[measure]
        ours = shown(sample(of_one[0].our_values).median, unit)
        others = [f"{one.other} {shown(sample(one.other_values).median, unit)} ({one.beside})" for one in of_one]
        lines.setdefault(setting, []).append(f"{name}: {ours} against {', '.join(others)}")
    return lines


def shown(value: float, unit: str) -> str:
    """Return a value with its unit, to three significant digits."""
    for limit, divisor, prefix in ((1e9, 1e9, " G"), (1e6, 1e6, " M"), (1e5, 1e3, " k")):
        if abs(value) >= limit and unit != "ms":
            return f"{value / divisor:.3g}{prefix}{unit}"
    if unit == "ms" and abs(value) >= 10_000:
        return f"{value / 1_000:,.1f} s"
    number = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    return f"{number}{unit}" if unit.startswith("/") else f"{number} {unit}".rstrip()


def counted(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _times(ours: float, other: float) -> str:
    return f"{max(ours, other) / min(ours, other):.3g} times" if min(ours, other) > 0 else ""
