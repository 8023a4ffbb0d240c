"""Writes a comparison: tables as Parquet and CSV, and one HTML page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from zkrebalancer.pipeline import page
from zkrebalancer.pipeline.report import every_setting, frontier, pictures
from zkrebalancer.pipeline.report.compare import MAX_TIMELINE_PARTITIONS, Comparison, comparison_table
from zkrebalancer.pipeline.report.folders import Setting
from zkrebalancer.pipeline.report.pictures import Palette
from zkrebalancer.pipeline.report.sentences import (
    AFTER,
    CAUGHT_UP,
    FIRST_RECORD,
    LOSES,
    OPEN,
    OURS,
    PRIMARY,
    SMALL,
    UNSURE,
    WINS,
    Values,
    Verdict,
    compared_in,
    counted,
    described,
    first_sentence,
    headline,
    in_order,
    loss_lines,
    measures_of,
    named,
    shown,
    untested,
)
from zkrebalancer.pipeline.report.statistics import ALPHA, CONFIDENCE, MIN_PAIRS, quantiles, sample

RUNS, COMPARISON, PAGE = "runs", "comparison", "report.html"
TIMELINE_BEFORE_S, TIMELINE_S = 1.0, 60.0
EVERY_CHANGE = [
    *("", "measure", "protocol", "changes", "median", "95th percentile", "longest"),
    *("first record: median", "95th percentile", "longest"),
]
HOW = f"""
Lower is better, except for the records delivered per second. Each number is the median over runs; below it are the
lowest and the highest run, and how this project (the first column) compares. A cell of another protocol is green
where this project wins against it, and red and bold where this project loses, by the rule of the next paragraph alone.
`comparison.csv` has the intervals and every p. Runs of two protocols are compared in pairs with the same seed, and only
on the same broker. This project has no heartbeats, so rivals with other ones than the tuned 500 ms are compared with
its tuned runs. Their names say what was set: librdkafka's classic client sends one when its main thread wakes.

A difference counts if equal protocols would differ as much in less than {ALPHA:.0%} of cases (Wilcoxon's signed-rank
test, exact), corrected for the number of comparisons on this page, and if it is at least {SMALL:.0%} of the larger
median. The primary measure, named on 2026-11-27 before all later runs, is the *time to settled*, in `backlog` the *time
until the group has caught up*, except for the join while it reads the backlog: on {ALPHA:.0%} of such pages, any of its
differences is wrong (Holm). Each rival counts there with each of its heartbeats. Of the differences shown in other
measures, {ALPHA:.0%} are expected to be wrong (Benjamini and Hochberg). With fewer than {MIN_PAIRS} pairs nothing can
be shown, so such comparisons are not tested and not counted in the correction. Not shown does not mean equal.
Intervals have the differences that the same test would not reject (Hodges and Lehmann), each for itself; of a median,
those of the sign test.

*Time to settled* runs from a change to the last partition that starts or stops because of it; a group that did not
settle counts with its time limit. *Time until the group has caught up* runs from a change until the records that the
group has not read are again as few as in the second before it, up to those of 0.2 s; 0 if there were never more. A
group that did not catch up counts with the time until the next change. *Time to the first record* runs to the first
record that any partition delivers to the member that it went to; with more partitions that move, one of them has a
record sooner. Scenarios with several kinds of change are reported for each kind. Sums over a run are sums over its
changes. Costs are those of servers, coordinators and members, without the producers. Requests are those to ZooKeeper
and the group requests to the broker, those for metadata included. Every run has a ZooKeeper server, which counts also
where the protocol does not need it. Memory is the sum of each process's peak at rest.

*What is counted from the first change on contains rest.* Delays, requests, bytes and processor time of a change go on
until the next change begins: also while nothing moves any more (tuned: 2 s, then a pause of up to 4 s that the seed
draws for all protocols alike). After short changes most of that time is rest, so that half and 99 % of the records are
mostly those of a group at rest. Unless the scenario fixes how long a change lasts, a protocol that
settles sooner has a shorter run, and so fewer requests and less processor time. *At rest* is the time before the first
change, a few seconds after everything was started.
"""
EACH = (
    "Each comparison is of one measure in one setting. Measures depend on each other, so one cause may be counted "
    "several times: the numbers say how often, not by how much."
)
STRICT = (
    "The shorter the time to settled, the shorter the stop of the machine that makes a run doubtful: protocols that "
    "settle soon lose more runs, and rather the slow ones of them. `--untrusted` counts all that finished."
)
TUNED_BESIDE = (
    "{} has no heartbeats: its runs with tuned settings are beside the others in the table. Delays, requests, bytes "
    "and processor time from the first change on are not compared if these runs rest longer between changes."
)
NOTHING_COMPARED = (
    "Nothing was compared: a comparison needs trusted runs of this project and of another protocol, with the same "
    "scenario, settings, size and broker."
)
WITHOUT_EVENTS = (
    "{} known from published results only: delays around the changes and owners are not in results. In older ones, "
    "processor time includes the producers, and costs at rest and memory are missing."
)
TONES = {WINS: page.GOOD, LOSES: page.BAD, OPEN: ""}
TIMELINE_CAPTION = (
    f"Owners of each partition in the median run: one line per partition (at most {MAX_TIMELINE_PARTITIONS}), one "
    "shade per member; red: no owner."
)
PRIMARY_CAPTION = (
    "The primary measure by protocol: one dot per run, with a line at the median; bars: its interval of "
    f"{CONFIDENCE:.0%}, each for itself, from {MIN_PAIRS} runs on; {{}}."
)
IN_EACH = f"No difference is shown where p is above {ALPHA:.2g} or the pairs are too few to test."
NOT_SHOWN = f"Where a rival's cell has no colour, {UNSURE}, or it is below {SMALL:.0%}."
SCALES = {"log": "a logarithmic scale", "symlog": "a scale that is linear near 0 and logarithmic beyond"}
THROUGHPUT_CAPTION = (
    "Records that the group read in each second after a change, and the most that it had not read: medians of all runs."
)
DELAYS_CAPTION = (
    "Delays of records by the time they were sent: medians, 99th percentiles and maxima over all changes and runs."
)


def write(found: Comparison, out: Path) -> None:
    """Write all files into `out`, an existing folder."""
    for name, frame in ((RUNS, found.measures), (COMPARISON, comparison_table(found))):
        frame.to_parquet(out / f"{name}.parquet", index=False)
        frame.to_csv(out / f"{name}.csv", index=False)
    page.write_page(out / PAGE, "Protocols of rebalancing, compared", _parts(found))


def _parts(found: Comparison) -> Iterator[str]:
    palette = pictures.colours([run.protocol for run in found.runs])
    yield from _headline(found, palette)
    yield from frontier.parts(frontier.frontiers(found.counted, found.measures), palette)
    yield from _summary(found)
    for setting, values in found.values.items():
        yield page.heading(str(setting))
        yield from _setting(found, setting, values, palette)
    yield from _untrusted(found)
    yield page.heading("How to read it") + page.prose(HOW)
    yield page.heading("Settings") + page.prose(every_setting.INTRO)
    yield from every_setting.tables(found.runs)
    for name in ("versions", "machine"):
        texts = sorted({getattr(run, name) for run in found.runs})
        yield page.heading(name.capitalize(), 3) + page.prose("\n\n".join(texts))


def _headline(found: Comparison, palette: Palette) -> Iterator[str]:
    """Say in one sentence and draw what came out in the primary measure; then each comparison, and first records."""
    if found.verdicts:
        yield page.prose(first_sentence(found.verdicts))
    figure = pictures.draw_primary(found.values, palette)
    if figure is not None:
        yield page.picture(figure, PRIMARY_CAPTION.format(SCALES[figure.axes[0].get_xscale()]))
    lines = [*_first_sentences(found.verdicts)]
    if lines:
        yield page.heading("Each comparison of the primary measure") + page.prose(IN_EACH) + page.items(lines)
    if figure is not None:
        yield page.heading("The primary measure and the time to the first record, every change of every run", 3)
        yield page.table(EVERY_CHANGE, [*_every_change(found)])


def _first_sentences(found: Sequence[Verdict]) -> Iterator[str]:
    """Return the primary measure of each setting and kind of change, each with the time to the first record."""
    by_measure: dict[tuple[Setting, str], list[Verdict]] = {}
    for verdict in found:
        if verdict.other not in OURS:
            by_measure.setdefault((verdict.setting, verdict.measure), []).append(verdict)
    for (setting, measure), verdicts in by_measure.items():
        if verdicts[0].is_primary:
            first = _first_record(measure)
            beside = [f"The {compared_in(first, by_measure[setting, first])}"] if (setting, first) in by_measure else []
            yield " ".join([headline(setting, measure, verdicts), *beside])


def _first_record(measure: str) -> str:
    """Return the time to the first record of the changes that a primary measure belongs to."""
    return measure.replace(measure.partition(AFTER)[0], FIRST_RECORD, 1)


def _every_change(found: Comparison) -> Iterator[list[str | page.Cell]]:
    """Return a row of the table EVERY_CHANGE for each setting, kind of change and protocol."""
    for setting, of_setting in found.changes_ms.items():
        for measure, by_protocol in of_setting.items():
            firsts = found.first_records_ms.get(setting, {}).get(_first_record(measure), {})
            name = measure.replace(PRIMARY, "settled").replace(CAUGHT_UP, "caught up")
            for protocol in in_order(by_protocol):
                times, of_first = by_protocol[protocol], firsts.get(protocol, [])
                if times:
                    first, *others = _three(of_first)
                    fewer = [f"of {counted(len(of_first), 'change')}"] if len(of_first) < len(times) else []
                    row = [str(setting), name, named(setting, protocol), str(len(times)), *_three(times)]
                    yield [*row, page.Cell(first, fewer), *others]


def _three(times: Sequence[float]) -> list[str]:
    return [shown(value, "ms") for value in quantiles(times)] if times else ["-"] * 3


def _summary(found: Comparison) -> Iterator[str]:
    protocols = {run.protocol for run in found.counted}
    numbers = {"run": len(found.counted), "protocol": len(protocols), "setting": len(found.values)}
    totals = "{} of {} under {}.".format(*(counted(number, noun) for noun, number in numbers.items()))
    doubted = sum(bool(run.doubts) for run in found.counted)
    if doubted:
        totals += f" {doubted} of them are not trusted, and were asked for; see the end."
    if len(found.counted) < len(found.runs):
        totals += f" {len(found.runs) - len(found.counted)} more are not trusted and left out; see the end."
    unseen = sum(not run.has_events for run in found.runs)
    if unseen:
        totals += " " + WITHOUT_EVENTS.format(f"{counted(unseen, 'run')} {'is' if unseen == 1 else 'are'}")
    yield page.prose(totals)
    if not found.verdicts:
        yield page.prose(NOTHING_COMPARED)
        return
    lost = loss_lines(found.verdicts)
    yield page.heading("Where this project loses")
    for setting, lines in lost.items():
        yield page.heading(str(setting), 3) + page.items(lines)
    yield page.prose(" ".join(_not_shown(found.verdicts, are_losses=bool(lost))))
    yield page.heading("How often it wins and loses")
    rows = [
        [f"against {rival}", *(str(count) for count in _count(one for one in found.verdicts if one.rival == rival))]
        for rival in in_order(verdict.rival for verdict in found.verdicts)
    ]
    yield page.table(["", WINS, LOSES, "not shown, median better", "not shown, median worse", "equal"], rows)
    yield page.prose(EACH)


def _not_shown(found: Sequence[Verdict], *, are_losses: bool) -> Iterator[str]:
    """Say what the list of losses does not tell."""
    if not are_losses:
        yield "No loss is shown."
    rivals = [verdict for verdict in found if verdict.other not in OURS]
    worse = [verdict for verdict in rivals if verdict.outcome == OPEN and verdict.behind > 0]
    of_all = counted(len(rivals), "comparison")
    yield f"In {len(worse)} of {of_all}, this project's median is worse, but that is not shown or below {SMALL:.0%}."
    few = len(untested(found))
    if few:
        yield f"{few} of {of_all} have fewer than {MIN_PAIRS} pairs and can show nothing, a loss neither."


def _count(found: Iterable[Verdict]) -> tuple[int, int, int, int, int]:
    wins = loses = better = worse = equal = 0
    for verdict in found:
        behind = verdict.behind
        wins += verdict.outcome == WINS
        loses += verdict.outcome == LOSES
        better += verdict.outcome == OPEN and behind < 0
        worse += verdict.outcome == OPEN and behind > 0
        equal += verdict.outcome == OPEN and behind == 0
    return wins, loses, better, worse, equal


def _setting(found: Comparison, setting: Setting, values: dict[str, Values], palette: Palette) -> Iterator[str]:
    of_setting = [verdict for verdict in found.verdicts if verdict.setting == setting]
    of_ours = setting.without_heartbeats
    here = [one for one in found.counted if one.setting == (of_ours if one.protocol in OURS else setting)]
    doubted = Counter(run.protocol for run in here if run.doubts)
    if setting.heartbeat and of_setting:
        yield page.prose(TUNED_BESIDE.format(of_setting[0].ours))
    yield _table(setting, values, of_setting, doubted)
    if of_setting:
        yield page.prose(NOT_SHOWN)
    runs = pictures.draw_runs(values, palette)
    if runs is not None:
        yield page.picture(runs, "One dot per run, with a line at the median.")
    throughput = pictures.draw_throughput([run for run in found.counted if run.setting == setting], palette)
    if throughput is not None:
        yield page.picture(throughput, THROUGHPUT_CAPTION)
    if setting in found.curves:
        yield page.picture(pictures.draw_delays(found.curves[setting], palette), DELAYS_CAPTION)
    timelines = found.timelines.get(setting, {})
    if timelines:
        names = {run.protocol: run.name for run in found.runs if run.setting == setting and run.name in found.changes}
        ordered = {protocol: timelines[protocol] for protocol in in_order(timelines)}
        changes = {protocol: found.changes.get(names.get(protocol, ""), []) for protocol in ordered}
        figure = pictures.draw_timelines(ordered, changes, -TIMELINE_BEFORE_S, timeline_end_s(timelines))
        yield page.picture(figure, TIMELINE_CAPTION)


def timeline_end_s(timelines: Mapping[str, pd.DataFrame]) -> float:
    """Return where the owners' picture ends: with the slowest protocol, as the others' would leave out its changes."""
    return min(TIMELINE_S, max(float(rows["to_s"].max()) for rows in timelines.values()))


def _table(setting: Setting, values: dict[str, Values], of_setting: list[Verdict], doubted: Mapping[str, int]) -> str:
    protocols = in_order(values)
    verdicts = {(verdict.other, verdict.measure): verdict for verdict in of_setting}
    rows: list[list[str | page.Cell]] = []
    for measure in measures_of({measure for of_one in values.values() for measure in of_one}):
        name, unit = described(measure)
        of_all = [[*values[protocol].get(measure, {}).values()] for protocol in protocols]
        if any(any(of_one) for of_one in of_all):
            beside = [verdicts.get((protocol, measure)) for protocol in protocols]
            rows.append([name, *(_cell(of_one, unit, verdict) for of_one, verdict in zip(of_all, beside, strict=True))])
    counts = [str(max((len(of_one) for of_one in values[protocol].values()), default=0)) for protocol in protocols]
    top = [["runs", *counts]]
    if doubted:
        top.append(["of which not trusted", *(str(doubted.get(protocol, 0)) for protocol in protocols)])
    return page.table(["", *(named(setting, protocol) for protocol in protocols)], [*top, *rows])


def _cell(values: Sequence[float], unit: str, verdict: Verdict | None) -> page.Cell:
    if not values:
        return page.Cell("-")
    one = sample(values)
    spread = [] if one.low == one.high else [f"{shown(one.low, unit)} to {shown(one.high, unit)}"]
    if verdict is None:
        return page.Cell(shown(one.median, unit), spread)
    notes = [*spread, verdict.note] if verdict.note else spread
    return page.Cell(shown(one.median, unit), notes, TONES[verdict.outcome])


def _untrusted(found: Comparison) -> Iterator[str]:
    doubted = [run for run in found.runs if run.doubts]
    if doubted:
        yield page.heading("Runs that are not trusted")
        left_out = "Left out of all statistics, sentences and pictures."
        asked_for = "They were asked for, so those that finished are in all statistics, sentences and pictures."
        yield page.prose(asked_for if any(run.doubts for run in found.counted) else left_out)
        yield page.prose(STRICT)
        yield page.items(
            [f"{run.setting}, {run.protocol}, seed {run.seed}: {'; '.join(run.doubts)}" for run in doubted]
        )
