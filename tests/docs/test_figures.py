"""Published runs are sound, tables follow from them, and sentences have their figures."""

from __future__ import annotations

import csv
import json
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.docs import figures, tables
from tests.docs.figures import (
    DATA,
    SETTLED,
    SHOWN,
    Column,
    Row,
    Table,
    compared,
    filled,
    rendered,
    rendered_differences,
    results,
    values,
)
from tests.docs.tables import (
    COOPERATIVE,
    EARLIER,
    KIP,
    MAIN,
    OLD_BROKER,
    OURS,
    RANGE,
    RIVALS,
    SHORT,
    SHORTEST,
    WITH_SHORT,
)
from tests.style.sources import ROOT
from zkrebalancer.experiments.protocols import PROTOCOLS
from zkrebalancer.experiments.scenarios import SCENARIOS
from zkrebalancer.pipeline.report.statistics import ALPHA, MIN_PAIRS, difference, interval_of_median

PUBLISHED = sorted(path.name for path in DATA.glob("*.jsonl"))
PAGES = {path: (ROOT / path).read_text() for path in ("README.md", *tables.PAGES, "docs/ideas/when-to-use.md")}
AT_REST, OF_MEMBERS = "rest_cpu_ms_per_s", "rest_cpu_member_ms_per_s"


def every(file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / file).read_text().splitlines()]


def of_group(scenario: str, column: Column) -> list[dict[str, Any]]:
    """Return the trusted runs of the first page in the order of their seeds."""
    wanted = (scenario, column.protocol, column.settings)
    found = [run for run in results(MAIN) if (run["scenario"], run["protocol"], run["settings"]) == wanted]
    return sorted(found, key=lambda run: int(run["seed"]))


@pytest.mark.parametrize("file", PUBLISHED)
def test_published_runs(file: str) -> None:
    """Nothing went wrong in them; what is not trusted is published, too."""
    runs = every(file)
    assert all(run["complete"] for run in runs)
    assert {run["measures"]["lost"] for run in runs} == {0}
    assert {run["protocol"] for run in runs if run["measures"]["overlaps"]} <= {"kip848", "java-848"}
    assert {run["protocol"] for run in runs if run["measures"]["out_of_order"]} <= {"kip848", "classic-cooperative"}
    assert {run["details"]["broker"]["kind"] for run in runs} == {"kafka-3.9" if file == OLD_BROKER else "kafka-4"}


def test_the_runs_of_the_first_page() -> None:
    """Each of ten seeds or more has a run of everything compared, each protocol of one version; others may be there."""
    for scenario in {row.scenario for row in tables.SUMMARY}:
        runs = [run for run in every(MAIN) if run["scenario"] == scenario and run["members"] == 10]
        found = Counter((run["seed"], run["protocol"], run["settings"]) for run in runs)
        assert set(found.values()) == {1}, scenario
        seeds = {seed for seed, protocol, _settings in found if protocol == OURS.protocol}
        assert len(seeds) >= 10, scenario
        wanted = {(seed, of.protocol, of.settings) for seed in seeds for of in WITH_SHORT}
        assert wanted <= found.keys(), scenario
    rivals = {
        json.dumps([run["versions"][name] for name in ("kafka", "zookeeper", "librdkafka")]) for run in every(MAIN)
    }
    assert len(rivals) == 1
    commits = {
        (run["scenario"], run["protocol"], run["settings"], run["versions"]["zkrebalancer"]) for run in every(MAIN)
    }
    assert len(commits) == len({commit[:3] for commit in commits})


def test_every_published_file_is_named_by_the_page() -> None:
    text = PAGES["docs/experiments.md"]
    assert [path.name for path in DATA.iterdir() if f"](data/{path.name})" not in text] == []


# ---- tables


def test_a_cell_follows_from_the_raw_data() -> None:
    kills = [step for run in of_group("crash", KIP) for step in run["steps"] if step["name"] == "kill-member"]
    every_change = [step for run in of_group("crash", KIP) for step in run["steps"] if step["name"] != "before"]
    at_rest = [run["measures"][AT_REST] for run in of_group("scale-out", KIP)]
    table = rendered(
        Table(
            [KIP],
            [
                Row("killed", SETTLED, MAIN, "crash", change="kill-member"),
                Row("longest", SETTLED, MAIN, "crash", change="kill-member", summary=max),
                Row("first record", "first_record_ms", MAIN, "crash"),
                Row("unowned", "unowned_partition_ms", MAIN, "crash", change="kill-member", unit=1_000, digits=1),
                Row("at rest", AT_REST, MAIN, "scale-out"),
                Row("nothing", SETTLED, MAIN, "crash", members=11),
            ],
            bold=False,
        )
    )
    assert table.splitlines() == [
        "| | kip848 |",
        "|---|---|",
        f"| killed | {statistics.median(step[SETTLED] for step in kills):,.0f} |",
        f"| longest | {max(step[SETTLED] for step in kills):,.0f} |",
        f"| first record | {statistics.median(step['first_record_ms'] for step in every_change):,.0f} |",
        f"| unowned | {statistics.median(step['unowned_partition_ms'] for step in kills) / 1_000:.1f} |",
        f"| at rest | {statistics.median(at_rest):.0f} |",
        "| nothing | - |",
    ]


def test_a_group_that_did_not_catch_up_counts_with_its_whole_time(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [{"name": "kill-member", "lag_back_ms": ms, "delivered_per_s": [5] * 9} for ms in (None, 2_000)]
    names = {"protocol": KIP.protocol, "settings": "tuned", "scenario": "backlog", "members": 10, "seed": 1}
    monkeypatch.setattr(figures, "results", lambda _file: [{**names, "steps": steps}])
    assert values(KIP, Row("", "lag_back_ms", "a file", "backlog", change="kill-member")) == [9_000, 2_000]


def test_the_lowest_figure_of_a_measure_is_bold() -> None:
    row = Row("settled", SETTLED, MAIN, "scale-out")
    ours, theirs = (f"{statistics.median(values(column, row)):,.0f}" for column in (OURS, COOPERATIVE))
    nothing = Column("nothing", "nothing")
    for turned, lines in (
        (False, ["| | a | b | nothing |", "|---|---|---|---|", f"| settled | {theirs} | **{ours}** | - |"]),
        (True, ["| | settled |", "|---|---|", f"| a | {theirs} |", f"| b | **{ours}** |", "| nothing | - |"]),
    ):
        columns = [replace(COOPERATIVE, title="a"), replace(OURS, title="b"), nothing]
        assert rendered(Table(columns, [row], turned=turned)).splitlines() == lines


def test_a_difference_is_that_of_the_comparison() -> None:
    with (DATA / tables.COMPARISON).open() as lines:
        rows_of = [row for row in csv.DictReader(lines) if row["p"] and row["members"] == "10"]
    chosen = {row["outcome"]: row for row in rows_of}
    assert "open" in chosen, "nothing to try it with"
    assert chosen.keys() & set(SHOWN), "nothing to try it with"
    for outcome, row in chosen.items():
        rival = Column("rival", row["protocol"], row["settings"])
        rows = [Row("it", row["measure"], MAIN, row["scenario"])]
        cell = rendered_differences([rival], rows).splitlines()[2]
        ends = (f"{float(row[end]):+,.0f}" for end in ("difference_low", "difference_high"))
        shown = " to ".join(ends) if outcome in SHOWN else f"not shown (p = {float(row['p']):.2f})"
        assert cell == f"| it | {shown} |"


def test_a_figure_that_changed_is_found() -> None:
    text = PAGES["docs/results.md"]
    row = next(line for line in text.splitlines() if line.startswith("| a member joins"))
    assert filled(text, tables.content) == text
    assert filled(text.replace(row, row.replace("| ", "| 1", 2)), tables.content) == text


def test_the_runs_of_make_experiments_can_show_something() -> None:
    """In the Makefile, set REPEAT to 10: whatever comes out, no time to settled is shown to differ."""
    makefile = (ROOT / "Makefile").read_text()
    given = dict(re.findall(r"^(SCENARIOS|REPEAT) \?= (.+)$", makefile, re.MULTILINE))
    changes = sum(
        len({step.name for step in SCENARIOS[name].steps(SCENARIOS[name].cast(10, 120, 1))})
        for name in given["SCENARIOS"].split()
    )
    others = len([protocol for protocol in PROTOCOLS.values() if "kafka-4" in protocol.brokers]) - 1
    page = PAGES["docs/experiments.md"]
    assert f"`make experiments` makes {changes * others} of them, so it takes twelve runs" in page
    assert given["REPEAT"] == "12"
    assert changes * others <= comparisons(11), "also without the one run that is not trusted"
    assert f"up to {comparisons(10)} comparisons of the primary measure, eleven with {comparisons(11)}" in page
    assert f"twelve with {comparisons(12)}:" in page


def comparisons(pairs: int) -> int:
    """Return how many comparisons of so many pairs, which all agree, Holm's method shows all the same."""
    values = [1.0 + seed for seed in range(pairs)]
    found = difference([0.0] * pairs, values)
    assert found
    return int(ALPHA / found.p)


# ---- sentences


def figure(column: Column, row: Row) -> float:
    """Return what a cell would have."""
    return row.summary(values(column, row)) / row.unit


def span(row: Row, columns: list[Column] = RIVALS) -> str:
    """Return the lowest and the highest figure of these protocols."""
    figures = [figure(column, row) for column in columns]
    return f"{min(figures):,.0f} to {max(figures):,.0f}"


JOINED = Row("", SETTLED, MAIN, "scale-out")
FAR = Row("", SETTLED, MAIN, "far-10ms")
QUICKER = replace(JOINED, file=EARLIER)
SWEPT = replace(JOINED, file=tables.SWEEP)
FIRST = replace(JOINED, measure="first_record_ms")
CPU, MEMORY = (Row("", measure, MAIN, "scale-out") for measure in (AT_REST, "rss_mb"))
MEMBERS = replace(CPU, measure=OF_MEMBERS)
HUNDRED = Row("", SETTLED, tables.OTHERS, "scale-out", members=100)
NEAR = Row("", SETTLED, EARLIER, "far-1ms")
GROUPS = Row("", SETTLED, tables.OTHERS, "many-groups", change="add-members", members=60)
THREE = Row("", SETTLED, EARLIER, "scale-out-three")
REQUESTS = Row("", "rest_requests_per_s", MAIN, "scale-out")
RESTED = Row("", AT_REST, tables.STEADY, "steady")
TIMES = {3: "three", 8: "eight", 9: "nine", 10: "ten"}
TWICE = partial(Row, "", "duplicated")


def joined_factors(row: Row) -> str:
    """Return how many times as much as the rivals this project takes in these runs: lowest to highest."""
    found = [figure(OURS, row) / figure(column, row) for column in RIVALS]
    return f"{min(found):.1f} to {max(found):.1f} times"


def factor(rival: Column, row: Row) -> str:
    """Return how many times as much as a rival this project takes."""
    return f"{figure(OURS, row) / figure(rival, row):.1f} times"


def factors(rivals: list[Column], measure: str, least_runs: int = 1, files: Sequence[str] = PUBLISHED) -> str:
    """Return how many times as much as these a group at rest takes here: lowest to highest of published scenarios.

    Each is that of the medians of a scenario's runs in one file, with at least `least_runs` of the rival. A group that
    reads a backlog is not at rest; default settings have a table of their own.
    """
    wanted = {(one.protocol, one.settings) for one in rivals}
    found = []
    for file in files:
        of_file = [run for run in results(file) if run["measures"].get(measure) and run["settings"] != "default"]
        of_file = [run for run in of_file if not run["details"]["record_bytes"]]
        for scenario, members in {(run["scenario"], run["members"]) for run in of_file}:
            here = [run for run in of_file if (run["scenario"], run["members"]) == (scenario, members)]
            by_name: dict[tuple[str, str], list[float]] = {}
            for run in here:
                by_name.setdefault((run["protocol"], run["settings"]), []).append(run["measures"][measure])
            ours = by_name.get((OURS.protocol, OURS.settings), [])
            found += [
                statistics.median(ours) / statistics.median(of)
                for name, of in by_name.items()
                if ours and name in wanted and len(of) >= least_runs
            ]
    return f"{min(found):.1f} to {max(found):.1f} times"


def interval(row: Row) -> str:
    """Return the interval of this project's median over runs."""
    return " to ".join(f"{end:.0f}" for end in interval_of_median(medians(row)))


def of_runs(row: Row) -> float:
    """Return the median of this project's runs, each of which has a median of its changes."""
    return statistics.median(medians(row))


def medians(row: Row) -> list[float]:
    return [run["measures"][row.measure] for run in of_group(row.scenario, OURS)]


def seeds(file: str) -> int:
    return len({run["seed"] for run in results(file)})


def on_the_first_page() -> Iterator[str]:
    yield f"the median join settles in {figure(OURS, JOINED):.0f} ms"
    yield f"take {span(JOINED)} ms with heartbeats every 500 ms"
    yield f"KIP-848 with 50 ms takes {figure(SHORT, JOINED):.0f} ms (no difference is shown)"
    yield f"at {TIMES[round(figure(SHORT, REQUESTS) / figure(OURS, REQUESTS))]} times the requests at rest"
    runs = of_group("scale-out", OURS)
    yield f"({len(values(OURS, JOINED))} joins in {len(runs)} runs; the median of these runs is {of_runs(JOINED):.0f} "
    yield f"ms, {interval(JOINED)} with 95 % confidence)"
    yield f"reads {2 * runs[0]['partitions']} records per second"
    (processes,) = {run["processes"] for run in results(MAIN)}
    yield f"whose members share {TIMES[processes]} processes"
    yield f"The first record comes after {figure(OURS, FIRST):.0f} ms"
    yield f"with KIP-848 and 50 ms after {figure(SHORT, FIRST):.0f} ms"
    yield f"takes {joined_factors(CPU)} the processor time"
    yield f"(its members {joined_factors(MEMBERS)})"
    members = figure(OURS, MEMBERS) / figure(SHORT, MEMBERS)
    yield f"{figure(OURS, CPU):.0f} ms per second where KIP-848 with 50 ms takes {figure(SHORT, CPU):.0f} (no"
    yield f"members {members:.1f} times;"
    of_members = factor(SHORT, replace(RESTED, measure=OF_MEMBERS))
    yield f"at rest {figure(OURS, RESTED):.0f} against {figure(SHORT, RESTED):.0f}, members {of_members}, both shown)"
    highest = factors(RIVALS, OF_MEMBERS).split()[2]
    yield f"most of them single ones, {factors(RIVALS, AT_REST)}, members up to {highest}"
    yield f"{figure(OURS, MEMORY) - max(figure(column, MEMORY) for column in RIVALS):.0f} MB more memory"
    quicker = [figure(column, row) for row in (QUICKER, NEAR, THREE) for column in (OURS, SHORT)]
    words = "joins took {:.0f} ms here and {:.0f} ms *there*, with KIP-848 and 50 ms (shown); with round trips of 1 ms "
    yield (words + "{:.0f} and {:.0f}, with three servers of each kind {:.0f} and {:.0f} ms").format(*quicker)
    yield f"settles a join sooner with these, {figure(SHORT, FAR):.0f} against {figure(OURS, FAR):.0f} ms"


def on_when_to_use() -> Iterator[str]:
    yield f"settles in {figure(OURS, JOINED):.0f} ms; classic range takes {figure(RANGE, JOINED):.0f} ms, "
    yield f"KIP-848 {figure(KIP, JOINED):.0f} ms, and classic cooperative {figure(COOPERATIVE, JOINED):,.0f} ms"
    yield f"With heartbeats every 50 ms, KIP-848 takes {figure(SHORT, JOINED):.0f} ms"
    yield f"ten members at rest took {figure(OURS, CPU):.0f} ms of processor time per second"
    yield f"it was {span(CPU)} ms, and with KIP-848 and heartbeats every 50 ms {figure(SHORT, CPU):.0f} ms"
    yield f"in ten later runs {figure(OURS, RESTED):.0f} ms here, {span(RESTED)} ms, and {figure(SHORT, RESTED):.0f} ms"
    yield f"a join takes {figure(OURS, FAR):.0f} ms, and {figure(SHORT, FAR):.0f} ms with KIP-848"


def on_the_frontier() -> Iterator[str]:
    first, at_rest, memory = (replace(SWEPT, measure=name) for name in ("first_record_ms", AT_REST, "rss_mb"))
    unowned = replace(SWEPT, measure="unowned_partition_ms", unit=1_000)
    tenth = replace(RANGE, settings="heartbeat-100")
    yield f"This project settles after {figure(OURS, SWEPT):.0f} ms, and so does KIP-848"
    yield f"with heartbeats every 50 ms, after {figure(SHORT, SWEPT):.0f} ms"
    yield f"processor time ({figure(SHORT, at_rest):.0f} and {figure(OURS, at_rest):.0f} ms per second)"
    yield f"and {figure(OURS, memory) - figure(SHORT, memory):.0f} MB less memory"
    yield f"for a shorter time ({figure(SHORT, unowned):.1f} and {figure(OURS, unowned):.1f} s)"
    yield f"but all members stop for that, and partitions have no owner for {figure(tenth, unowned):.1f} s"
    yield f"Classic range with 100 ms settles after {figure(tenth, SWEPT):.0f} ms, and has its first record after "
    yield f"its first record after {figure(tenth, first):.0f} ms, this project after {figure(OURS, first):.0f} ms"
    cooperative, java = (Column("", name, "heartbeat-50") for name in ("classic-cooperative", "java-cooperative"))
    words = "settles after {:.0f} ms with 50 ms, and with Java's client after {:.0f} ms"
    yield words.format(figure(cooperative, SWEPT), figure(java, SWEPT))


def on_shorter_ones() -> Iterator[str]:
    settled = Row("", SETTLED, tables.SHORTER, "scale-out")
    unowned = replace(settled, measure="unowned_partition_ms", unit=1_000)
    yield f"after {figure(SHORTEST, settled):.0f} ms, this project after {figure(OURS, settled):.0f} ms"
    yield f"for {figure(SHORTEST, unowned):.1f} instead of {figure(OURS, unowned):.1f} s"
    yield f"sends {figure(SHORTEST, replace(settled, measure='rest_requests_per_s')):.0f} requests per second"


def on_what_is_shown() -> Iterator[str]:
    for file in (MAIN, EARLIER):
        (chance,) = {one.p for one in compared(file).verdicts if one.is_primary and one.outcome in SHOWN}
        yield f"in the time to settled that is shown has p = {chance:.3f}"
    found = Counter(one.outcome for one in compared(MAIN).verdicts if one.is_primary)
    words = "better in {} of {} comparisons, worse in {} (with round trips of 10 ms, KIP-848 with 50 ms), and in {} no"
    yield words.format(found["wins"], found.total(), found["loses"], found["open"])


def on_what_it_exchanges() -> Iterator[str]:
    in_rest, in_joins = (Row("", name, MAIN, "scale-out") for name in ("rest_zookeeper_bytes_per_s", "zookeeper_bytes"))
    words = "{:.1f} kB per second at rest, and {:.0f} kB in three joins, both ways together"
    yield words.format(figure(OURS, in_rest) / 1_000, figure(OURS, in_joins) / 1_000)
    (others,) = {round(figure(column, in_rest)) for column in (*RIVALS, SHORT)}
    yield f"with the others it is {others} bytes per second"
    near = [replace(NEAR, measure=measure) for measure in (AT_REST, OF_MEMBERS)]
    words = "{:.0f} against {:.0f} ms per second, members {:.0f} against {:.0f};"
    yield words.format(*(figure(column, row) for row in near for column in (SHORT, OURS)))


def on_results() -> Iterator[str]:
    yield f"{seeds(MAIN)} runs of each protocol in each of three scenarios"
    yield from on_what_is_shown()
    yield from on_what_it_exchanges()
    yield f"With 100 members a join settles after {figure(OURS, HUNDRED):.0f} ms, against {span(HUNDRED)} ms"
    yield f"the last has settled after {figure(RANGE, GROUPS):.0f} ms, here after {figure(OURS, GROUPS):.0f} ms"
    storm = Row("", SETTLED, tables.OTHERS, "join-storm")
    yield f"half as many members join at once: {figure(RANGE, storm):.0f} ms, here {figure(OURS, storm):.0f} ms"
    yield f"after {figure(SHORT, NEAR):.0f} ms, this project {figure(OURS, NEAR):.0f} ("
    near = Row("", "unowned_partition_ms", EARLIER, "far-1ms", unit=1_000)
    yield f"without an owner for {figure(SHORT, near):.1f} s instead of {figure(OURS, near):.1f} s (shown)"
    yield from on_the_frontier()
    yield from on_shorter_ones()
    members = replace(RESTED, measure=OF_MEMBERS)
    yield f"it takes {joined_factors(RESTED)} that of the others with 500 ms and {factor(SHORT, RESTED)} that of"
    yield f"with 50 ms, {figure(OURS, RESTED):.0f} against {figure(SHORT, RESTED):.0f} ms per second, members "
    yield f"members {joined_factors(members).removesuffix(' times')} and {factor(SHORT, members)};"
    defaults = Row("", SETTLED, tables.OTHERS, "scale-out", settings="default")
    ours, *theirs = (figure(column, defaults) for column in (OURS, RANGE, COOPERATIVE, KIP))
    yield f"With default settings a join settles after {ours:.0f} ms, classic range takes {theirs[0]:,.0f} ms"
    yield "cooperative {:,.0f} ms and KIP-848 {:,.0f} ms".format(*theirs[1:])
    churn = Row("", "unowned_partition_ms", tables.OTHERS, "churn", unit=1_000)
    theirs = [figure(column, churn) for column in RIVALS]
    yield f"for {figure(OURS, churn):.1f} s in all, against {min(theirs):.1f} to {max(theirs):.1f} s"
    helix, java, cooperative = (figure(column, replace(HUNDRED, members=10)) for column in tables.OTHER_CLIENTS)
    yield f"{helix:.0f} ms with Helix; with Java's client {java:.0f} ms with KIP-848 and {cooperative:,.0f} ms with"
    twice = figure(OURS, TWICE(tables.OTHERS, "pause", settings="default"))
    yield f"{twice:.0f} records are delivered twice"
    grown, new = (Row("", SETTLED, tables.OTHERS, scenario) for scenario in ("partition-growth", "new-topic"))
    yield f"found after {figure(OURS, grown):.0f} ms, with Kafka's protocols after {span(grown)} ms"
    yield f"new topic after {figure(OURS, new):.0f}, with others {span(new)} ms"
    more = figure(OURS, MEMORY) - max(figure(column, MEMORY) for column in RIVALS)
    yield f"takes {factors(RIVALS, AT_REST, MIN_PAIRS, [MAIN])} the processor time"
    yield f"(in the earlier report {factors(RIVALS, AT_REST, MIN_PAIRS, [EARLIER])};"
    yield f"of all published runs {factors(RIVALS, AT_REST)}"
    yield f"{factors([SHORT], AT_REST, MIN_PAIRS, [MAIN])} that of KIP-848 with 50 ms (no difference is shown; of all"
    yield f"of all {factors([SHORT], AT_REST)}), and {more:.0f} MB more memory"
    of_members = factors(RIVALS, OF_MEMBERS, MIN_PAIRS, [MAIN])
    yield f"Members alone take {of_members} that of the others with 500 ms (of all {factors(RIVALS, OF_MEMBERS)})"
    of_members = factors([SHORT], OF_MEMBERS, MIN_PAIRS, [MAIN])
    yield f"{of_members} that of KIP-848 with 50 ms (of all {factors([SHORT], OF_MEMBERS)})"
    yield f"{figure(SHORT, FAR):.0f} ms, this project {figure(OURS, FAR):.0f}"
    unread = Row("", SETTLED, tables.OTHERS, "backlog", change="add-member", unit=1_000)
    of_unread = (f"{figure(column, unread):.1f} s" for column in (OURS, RANGE, KIP, COOPERATIVE))
    yield "after {}, range {}, KIP-848 {}, cooperative {}".format(*of_unread)
    dies = Row("", SETTLED, tables.OTHERS, "coordinator-failover", unit=1_000)
    theirs = [figure(column, dies) for column in RIVALS]
    yield f"a newcomer waits for {figure(OURS, dies):.1f} s, with Kafka's protocols"
    yield f"(by default 9), {min(theirs):.1f} to {max(theirs):.1f} s"
    yield f"sends {figure(OURS, REQUESTS):.0f} requests per second"
    yield f"{figure(SHORT, THREE):.0f} ms, this project {figure(OURS, THREE):.0f}"


def on_experiments() -> Iterator[str]:
    yield from on_shorter_ones()
    yield f"{len(every(MAIN))} runs, {len(results(MAIN))} of them trusted"
    others = every(tables.OTHERS)
    yield f"{len(others)} runs, {sum(run['trusted'] for run in others)} of them trusted"
    yield f"{figure(OURS, TWICE(tables.OTHERS, 'pause', settings='default')):.0f} records delivered twice in both"
    frozen = (figure(column, TWICE(tables.OTHERS, "freeze")) for column in (OURS, KIP, COOPERATIVE, RANGE))
    yield "{:.0f} here, KIP-848 {:.0f}, cooperative {:.0f}, range {:.0f}".format(*frozen)


SENTENCES = {
    "README.md": on_the_first_page,
    "docs/ideas/when-to-use.md": on_when_to_use,
    "docs/results.md": on_results,
    "docs/experiments.md": on_experiments,
}


@pytest.mark.parametrize("page", SENTENCES)
def test_sentences_have_the_figures_of_the_runs(page: str) -> None:
    text = " ".join(PAGES[page].split())
    assert [words for words in SENTENCES[page]() if words not in text] == []
