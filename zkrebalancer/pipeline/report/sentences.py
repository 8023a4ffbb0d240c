"""Verdicts as sentences: this project against each other protocol, losses first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from zkrebalancer.pipeline.report.folders import TUNED, Setting, natural
from zkrebalancer.pipeline.report.statistics import (
    ALPHA,
    CONFIDENCE,
    MIN_PAIRS,
    Difference,
    difference,
    false_discoveries,
    holm,
    sample,
)

OURS = ("central-incremental", "central-eager")  # the first of these that was run represents this project
SMALL = 0.05  # of the larger median; smaller differences are ignored
WINS, LOSES, OPEN = "wins", "loses", "open"
UNSURE = "no difference is shown"
FIRST_RECORD = "first_record_ms"
PRIMARY = "settled_ms"  # named in advance: what this project claims
CAUGHT_UP = "lag_back_ms"
PRIMARY_OF = {"backlog": CAUGHT_UP}  # of scenarios in which a pause is felt for longer than it lasts
# The change that comes while a group reads a backlog: its lag falls then, whatever the change does, so PRIMARY counts.
WHILE_READING = {"backlog": "add-member"}
AFTER = " after "  # between a measure and the change that it belongs to, where a scenario has several kinds of them
# Each measure: its name in a sentence and its unit; lower is better, but for those in MORE_IS_BETTER.
MEASURES: Mapping[str, tuple[str, str]] = {
    PRIMARY: ("time to settled", "ms"),
    FIRST_RECORD: ("time to the first record", "ms"),
    "unowned_partition_s": ("partition time without a consumer", "s"),
    CAUGHT_UP: ("time until the group has caught up", "ms"),
    "lag_max": ("records behind, at the peak", ""),
    "delivered_per_s_min": ("records delivered in the poorest second", "/s"),
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
    "requests": ("requests from the first change on", ""),
    "zookeeper_bytes": ("bytes to and from ZooKeeper from the first change on", ""),
    "cpu_ms": ("processor time from the first change on", "ms"),
    "cpu_all_ms": ("processor time from the first change on, producers included", "ms"),
    "rest_requests_per_s": ("requests at rest", "/s"),
    "rest_zookeeper_bytes_per_s": ("bytes to and from ZooKeeper at rest", "/s"),
    "rest_cpu_ms_per_s": ("processor time at rest", "ms/s"),
    "rest_cpu_member_ms_per_s": ("processor time of members at rest", "ms/s"),
    "rss_mb": ("memory", "MB"),
}
SUMMED = ("unowned_partition_s",)
LAG = (CAUGHT_UP, "lag_max", "delivered_per_s_min")
MORE_IS_BETTER = {"delivered_per_s_min"}
# Most rivals send none of these, apart from the run's own question: a ratio to that would say nothing.
WITHOUT_RATIO = {"zookeeper_bytes", "rest_zookeeper_bytes_per_s"}
OF_A_CHANGE = (PRIMARY, FIRST_RECORD, *SUMMED, *LAG)  # reported for each kind of change
# Of the time from one change to the next: the longer a run rests there, the more of it, or the less of what is late.
OF_A_WINDOW = ("delay_p50_ms", "delay_p99_ms", "delay_max_ms", "requests", "zookeeper_bytes", "cpu_ms", "cpu_all_ms")
RunKey = tuple[int, int]  # a seed, and which of the runs with it
Values = Mapping[str, Mapping[RunKey, float]]  # measure -> run -> value, for each run that has it


@dataclass(frozen=True, slots=True)
class Verdict:
    """One measure of this project against that of another protocol, in one setting of the other.

    `difference`: the other's value minus ours over all pairs of runs; None: there is no pair. `p`: how often equal
    protocols would differ as much, corrected for the comparisons of the whole report; 1 if the pairs are too few.
    """

    setting: Setting
    ours: str
    other: str
    measure: str
    our_values: tuple[float, ...]
    other_values: tuple[float, ...]
    difference: Difference | None
    p: float = 1.0

    @property
    def rival(self) -> str:
        """The other protocol's name, with its heartbeats where the setting is named after them."""
        return named(self.setting, self.other)

    @property
    def is_primary(self) -> bool:
        """Whether its measure is the one that was named beforehand."""
        return is_primary(self.setting, self.measure)

    @property
    def _of_what(self) -> str:
        return self.measure.partition(AFTER)[0]

    @property
    def _sign(self) -> int:
        return -1 if self._of_what in MORE_IS_BETTER else 1

    @property
    def behind(self) -> float:
        """By how much our median is worse than the other's; negative: it is better."""
        ours, other = self.medians
        return self._sign * (ours - other)

    @property
    def outcome(self) -> str:
        """Return WINS, LOSES or OPEN."""
        if not self._is_shown or self._is_small or self._is_ambiguous:
            return OPEN
        return WINS if self.behind < 0 else LOSES

    @property
    def medians(self) -> tuple[float, float]:
        """Our median and the other's."""
        return sample(self.our_values).median, sample(self.other_values).median

    @property
    def is_tested(self) -> bool:
        """Whether there are enough pairs to show anything."""
        return self.pairs >= MIN_PAIRS

    @property
    def _is_shown(self) -> bool:
        return self.difference is not None and self.p <= ALPHA

    @property
    def _is_small(self) -> bool:
        return abs(self.medians[1] - self.medians[0]) < SMALL * max(self.medians)

    @property
    def _is_ambiguous(self) -> bool:
        """Whether the median pair does not say what the medians of all runs say, some of which may have no partner."""
        return self.difference is None or self._sign * self.difference.median * self.behind >= 0

    @property
    def pairs(self) -> int:
        """How many pairs of runs are compared."""
        return self.difference.pairs if self.difference else 0

    def __str__(self) -> str:
        """Return the verdict as a sentence."""
        ours, other = self.medians
        name, unit = described(self.measure)
        both = f"{shown(ours, unit)} against {shown(other, unit)}"
        if self.outcome == OPEN:
            unsure = "" if self.note else f", but {UNSURE}"
            return f"{name}: {both}; {self.beside}{unsure} ({self._how_sure()})"
        if self._apart:
            both += f", {self._apart} {'less' if ours < other else 'more'}"
        return f"{self.ours} {self.outcome} in {name}: {both} ({self._how_sure()})"

    @property
    def beside(self) -> str:
        """Return how ours compares with the other, in a few words."""
        ours, other = self.medians
        if self.outcome != OPEN and self._of_what in WITHOUT_RATIO:
            return f"ours {self._apart} {'less' if ours < other else 'more'}"
        if self.outcome != OPEN:
            return f"ours {self._apart and self._apart + ' '}{'better' if self.outcome == WINS else 'worse'}"
        if ours == other:
            return "equal"
        word = "better" if self.behind < 0 else "worse"
        if self._is_shown and self._is_small:
            return f"ours {word}, but by less than {SMALL:.0%}"
        if self._is_shown:
            return f"ours {word}, but not in the median pair"
        return f"ours {word}"

    @property
    def note(self) -> str:
        """Return the same for a table; empty: no difference is shown, which a table says once, not in each cell."""
        is_unsure = self.outcome == OPEN and not self._is_shown and self.behind != 0
        return "" if is_unsure else self.beside

    @property
    def _apart(self) -> str:
        """How many times the smaller median the larger one is, or by how much it is larger; empty: it is beyond all."""
        ours, other = self.medians
        if self._of_what in WITHOUT_RATIO:
            return shown(abs(ours - other), described(self.measure)[1])
        return shown(max(ours, other) / min(ours, other), "times") if min(ours, other) > 0 else ""

    @property
    def test(self) -> str:
        """Return how many pairs were tested, and what came out."""
        few = f"p {chance(self.p)}" if self.is_tested else "too few to test"
        return f"{counted(self.pairs, 'pair')}, {few}"

    def _how_sure(self) -> str:
        if self.difference is None:
            return "no pair of runs with the same seed"
        unit = described(self.measure)[1]
        low, high = (shown(value, unit) for value in (self.difference.low, self.difference.high))
        how = f"{counted(self.pairs, 'pair')}, p {chance(self.p)}"
        few = "" if self.is_tested else f"; with fewer than {MIN_PAIRS} nothing can be shown"
        return f"the other minus ours, {CONFIDENCE:.0%}: {low} to {high}; {how}{few}"


def verdicts(settings: Mapping[Setting, Mapping[str, Values]]) -> list[Verdict]:
    """Compare this project with every other protocol of each setting; `settings`: setting -> protocol -> values.

    Measures that are 0 in every run of both protocols are left out. Comparisons of fewer than MIN_PAIRS pairs can show
    nothing, so they do not count where the others are corrected for their number.
    """
    found = [verdict for setting, values in settings.items() for verdict in _of_setting(setting, values)]
    corrected = dict.fromkeys(range(len(found)), 1.0)
    for is_primary, correct in ((True, holm), (False, false_discoveries)):
        tested = {
            place: one.difference.p
            for place, one in enumerate(found)
            if one.difference and one.is_tested and one.is_primary == is_primary
        }
        corrected |= zip(tested, correct([*tested.values()]), strict=True)
    return [replace(verdict, p=corrected[place]) for place, verdict in enumerate(found)]


def _of_setting(setting: Setting, values: Mapping[str, Values]) -> Iterable[Verdict]:
    ours = next((name for name in OURS if name in values), None)
    if ours is None:
        return
    for other in sorted(values.keys() - {ours}):
        for measure in measures_of(values[ours]):
            one, two = values[ours][measure], values[other].get(measure, {})
            if two and any((*one.values(), *two.values())):
                both = [seed for seed in one if seed in two]
                apart = difference([one[seed] for seed in both], [two[seed] for seed in both])
                yield Verdict(setting, ours, other, measure, tuple(one.values()), tuple(two.values()), apart)


def primary(setting: Setting, change: str) -> str:
    """Return the measure that was named in advance as what counts of a kind of change; "": of the only kind."""
    if change and change == WHILE_READING.get(setting.scenario):
        return PRIMARY
    return PRIMARY_OF.get(setting.scenario, PRIMARY)


def is_primary(setting: Setting, measure: str) -> bool:
    """Whether a measure, of a kind of change where there are several, is the one that was named in advance."""
    of_what, _after, change = measure.partition(AFTER)
    return of_what == primary(setting, change)


def measures_of(values: Iterable[str]) -> list[str]:
    """Return the measures in display order: as in MEASURES, those of each kind of change where they belong."""
    order = list(MEASURES)
    return sorted(values, key=lambda measure: (order.index(measure.partition(AFTER)[0]), measure))


def described(measure: str) -> tuple[str, str]:
    """Return a measure's name in a sentence and its unit."""
    of_what, after, change = measure.partition(AFTER)
    name, unit = MEASURES[of_what]
    return f"{name}{after}{change}", unit


def in_order(protocols: Iterable[str]) -> list[str]:
    """Return protocols in display order: this project's first, those with short heartbeats before longer ones."""
    return sorted(set(protocols), key=lambda name: (OURS.index(name) if name in OURS else len(OURS), natural(name)))


def named(setting: Setting, protocol: str) -> str:
    """Return a protocol's name beside those with other heartbeats; this project has none."""
    if not setting.heartbeat:
        return protocol
    return f"{protocol}, {TUNED if protocol in OURS else setting.heartbeat}"


def losses(found: Iterable[Verdict]) -> list[Verdict]:
    """Return the verdicts in which this project loses to another; its own two modes are not compared here."""
    return [verdict for verdict in found if verdict.outcome == LOSES and verdict.other not in OURS]


def untested(found: Iterable[Verdict]) -> list[Verdict]:
    """Return the verdicts against others that have too few pairs to show anything."""
    return [verdict for verdict in found if not verdict.is_tested and verdict.other not in OURS]


def loss_lines(found: Iterable[Verdict]) -> dict[Setting, list[str]]:
    """Return, for each setting, one line per measure that this project loses, with the protocols that win it."""
    lost: dict[tuple[Setting, str], list[Verdict]] = {}
    for verdict in losses(found):
        lost.setdefault((verdict.setting, verdict.measure), []).append(verdict)
    lines: dict[Setting, list[str]] = {}
    for (setting, measure), of_one in lost.items():
        name, unit = described(measure)
        ours = shown(of_one[0].medians[0], unit)
        others = [f"{one.rival} {shown(one.medians[1], unit)} ({one.beside})" for one in of_one]
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


def first_sentence(found: Iterable[Verdict]) -> str:
    """Say in one sentence what came out in the primary measure, over all settings."""
    primaries = [verdict for verdict in found if verdict.is_primary and verdict.other not in OURS]
    tested = [verdict for verdict in primaries if verdict.is_tested]
    if not tested:
        return f"Nothing can be shown: no comparison of the primary measure has {MIN_PAIRS} pairs of runs."
    names = dict.fromkeys(MEASURES[verdict.measure.partition(AFTER)[0]][0] for verdict in tested)
    better, worse = ([verdict for verdict in tested if verdict.outcome == outcome] for outcome in (WINS, LOSES))
    lost = "; ".join(f"{one.setting.scenario}{_when(one.measure)} against {one.rival}" for one in worse)
    return (
        f"In the {' and the '.join(names)}, this project is better in {len(better)} of "
        f"{counted(len(tested), 'comparison')}, worse in {len(worse)}{lost and f' ({lost})'}, and in "
        f"{len(tested) - len(better) - len(worse)} no difference is shown."
    )


def _when(measure: str) -> str:
    _of_what, after, change = measure.partition(AFTER)
    return f"{after}{change}"


def headline(setting: Setting, measure: str, found: Iterable[Verdict]) -> str:
    """Say how this project compares with all others in one measure of a setting, in one sentence."""
    return f"{setting}: {compared_in(measure, found)}"


def compared_in(measure: str, found: Iterable[Verdict]) -> str:
    """Say the same without the setting."""
    ordered = sorted(found, key=lambda verdict: verdict.medians[1])
    name, unit = described(measure)
    others = ", ".join(
        f"{one.rival} {shown(one.medians[1], unit)} ({one.note or UNSURE}; {one.test})" for one in ordered
    )
    ours = named(ordered[0].setting, ordered[0].ours)
    return f"{name} {shown(ordered[0].medians[0], unit)} for {ours}; {others}."


def chance(p: float) -> str:
    """Return a p as text."""
    return f"{p:.2g}" if p >= 0.001 else "below 0.001"
