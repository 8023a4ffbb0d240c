"""The figures of the first page and of the comparison follow from the published runs."""

from __future__ import annotations

import csv
import json
import re
import statistics
from collections.abc import Callable
from functools import cache
from itertools import takewhile
from math import ceil
from typing import Any

import pytest

from tests.style.sources import ROOT

JOINS = "experiments-2026-11-28.jsonl"  # the first page's
RUNS, LATER = "experiments-2026-11-27.jsonl", "experiments-2026-11-27-java.jsonl"
OTHERS = "experiments-2026-11-27-others.jsonl"
ANY_PHASE, ZOOKEEPERS = "experiments-2026-11-28-others.jsonl", "experiments-2026-11-28-zookeeper.jsonl"
ROUNDED = 0.551  # half a unit of a page, and half of the last digit of a result
JOIN, KILL, RETURN = "add-member", "kill-member", "restart-member"
SCENARIOS = {JOIN: "scale-out", KILL: "crash", RETURN: "crash"}
OURS, KIP, RANGE, COOPERATIVE = COMPARED = ("central-incremental", "kip848", "classic-range", "classic-cooperative")
CHANGES = {"joins": JOIN, "killed": KILL, "returns": RETURN, "at rest": "before"}  # words in a row -> the change
OF_RUNS = {  # the end of a row's name -> a measure of its runs, and how many of its units are one of the page's
    "time to the first record, ms": ("first_record_ms", 1),
    "partitions without a consumer, s": ("unowned_partition_ms", 1_000),
    "partitions without an owner, s": ("unowned_partition_ms", 1_000),
    "delay of half of the records, ms": ("delay_p50_ms", 1),
    "delay of 99 % of the records, ms": ("delay_p99_ms", 1),
    "longest delay, ms": ("delay_max_ms", 1),
    "requests to ZooKeeper and broker": ("requests", 1),
    "stopped needlessly": ("stopped_needlessly", 1),
    "records delivered twice": ("duplicated", 1),
}
MIN_COMPARED = 12
AT_REST = {  # the end of a row's name -> a column of the table of runs
    "processor time of everything, ms per s": "rest_cpu_ms_per_s",
    "processor time, ms per second": "rest_cpu_ms_per_s",
    "requests per second": "rest_requests_per_s",
    "memory of everything, MB": "rss_mb",
    "total memory, MB": "rss_mb",
}


OF_OTHERS = {  # the beginning of a table's title -> a measure, and how many of its units are one of the page's
    "Time to settled": ("settled_ms", 1),
    "Partitions without a consumer": ("unowned_partition_ms", 1_000),
    "Delay of 99 % of the records": ("delay_p99_ms", 1),
    "Longest delay": ("delay_max_ms", 1),
    "Most records that the group had not read": ("lag_max", 1),
    "Processor time of everything": ("cpu_ms", 1),
    "Requests to ZooKeeper and broker": ("requests", 1),
}


def late(values: list[float]) -> float:
    return sorted(values)[ceil(0.95 * len(values)) - 1]


SUMMARIES: dict[str, Callable[[list[float]], float]] = {
    "median": statistics.median,
    "is killed: settled": statistics.median,
    "it returns: settled": statistics.median,
    "95th percentile": late,
    "longest": max,
}


@cache
def results(file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ROOT / "docs/data" / file).read_text().splitlines()]


def of_steps(
    file: str,
    protocol: str,
    change: str = JOIN,
    settings: str = "tuned",
    measure: str = "settled_ms",
    scenario: str | None = None,
) -> list[float]:
    """Return the time to settled, or another measure, of each change of each run of its scenario."""
    wanted = (protocol, settings, scenario or SCENARIOS.get(change, "scale-out"))
    return [
        step[measure]
        for run in results(file)
        if (run["protocol"], run["settings"], run["scenario"]) == wanted
        for step in run["steps"]
        if step["name"] == change and run["trusted"]
    ]


def of_runs(file: str, protocol: str, measure: str, settings: str = "tuned", scenario: str = "scale-out") -> float:
    """Return the median over trusted runs."""
    runs = [run for run in results(file) if (run["protocol"], run["settings"]) == (protocol, settings)]
    runs = [run for run in runs if run["trusted"]]
    return statistics.median(float(run["measures"][measure]) for run in runs if run["scenario"] == scenario)


def of_run(run: dict[str, Any], kind: str, measure: str) -> float:
    """Return a run's measure; of its changes if it is measured for each (of one kind, if there is one)."""
    steps = [step for step in run["steps"] if step["name"] in {kind or step["name"]} - {"before", "rest"}]
    figures = [float(step[measure]) for step in steps if measure in step]
    if measure == "settled_ms":
        return statistics.median(figures)
    if measure == "lag_max":
        return max(figures)
    return sum(figures) if measure == "unowned_partition_ms" else float(run["measures"][measure])


def table(page: str, heading: str) -> tuple[list[str], list[tuple[str, list[float | None]]]]:
    """Return the columns and the rows of the table whose columns begin with these; None: no figure."""
    lines = (ROOT / page).read_text().splitlines()
    return read_table(lines, next(number for number, line in enumerate(lines) if line.startswith(f"| | {heading} |")))


def read_table(lines: list[str], begin: int) -> tuple[list[str], list[tuple[str, list[float | None]]]]:
    """Return the columns and the rows of the table that begins in this line; None: no figure."""
    rows: list[tuple[str, list[float | None]]] = []
    for line in takewhile(lambda line: line.startswith("|"), lines[begin + 2 :]):
        name, *cells = (cell.strip(" *") for cell in line.strip("|").split("|"))
        plain = [cell.replace(",", "") for cell in cells]
        rows.append((name, [float(cell) if re.fullmatch(r"[\d.]+", cell) else None for cell in plain]))
    return [name.strip() for name in lines[begin].strip("|").split("|")][1:], rows


def expected(row: str, change: str, file: str, protocol: str) -> float | None:
    """Return what a cell should be, None if it does not follow from results alone."""
    for words, (measure, unit) in OF_RUNS.items():
        if row.endswith(words):
            if change == JOIN or measure == "duplicated":
                return of_runs(file, protocol, measure, scenario=SCENARIOS.get(change, "scale-out")) / unit
            is_of_steps = measure == "unowned_partition_ms"
            return statistics.median(of_steps(file, protocol, change, measure=measure)) / unit if is_of_steps else None
    for words, summary in SUMMARIES.items():
        if words in row:
            return summary(of_steps(file, protocol, change)) if "record" not in row else None
    return None


def test_all_published_runs_are_trusted_and_nothing_went_wrong() -> None:
    runs = [*results(RUNS), *results(LATER)]
    assert len(runs) == 180
    assert all(run["trusted"] and run["complete"] and run["settled"] for run in runs)
    assert {run["measures"][what] for run in runs for what in ("lost", "out_of_order", "overlaps")} == {0}
    assert {(run["members"], run["partitions"], run["machine"]["processors"]) for run in runs} == {(10, 120, 2)}


def test_the_runs_of_the_first_page() -> None:
    """Each seed has a run of each protocol, all of the same version; what is not trusted is published, too."""
    for scenario in {run["scenario"] for run in results(JOINS)}:
        runs = [run for run in results(JOINS) if run["scenario"] == scenario]
        compared = [run for run in runs if run["settings"] == "tuned"]
        assert len(compared) == len({run["seed"] for run in compared}) * len(COMPARED), scenario
        assert {run["protocol"] for run in compared} == set(COMPARED)
    assert all(run["complete"] for run in results(JOINS))
    assert {run["measures"][what] for run in results(JOINS) for what in ("lost", "out_of_order")} == {0}
    assert {run["protocol"] for run in results(JOINS) if run["measures"]["overlaps"]} <= {"kip848"}
    assert len({json.dumps(run["versions"]) for run in results(JOINS)}) == 1
    text = (ROOT / "docs/experiments.md").read_text()
    trusted = sum(run["trusted"] for run in results(JOINS))
    assert f"{len(results(JOINS))} runs, {trusted} of them trusted" in text


def test_the_first_page() -> None:
    text = " ".join((ROOT / "README.md").read_text().split())
    ours, *kafkas = (statistics.median(of_steps(JOINS, name)) for name in COMPARED)
    assert f"the median join settles in {ours:.0f} ms" in text
    assert f"take {min(kafkas):.0f} to {max(kafkas):,.0f} ms with heartbeats every 500 ms" in text
    quick = statistics.median(of_steps(JOINS, "kip848", settings="heartbeat-50"))
    assert f"KIP-848 takes {quick:.0f} ms with heartbeats every 50 ms" in text
    unowned = [of_steps(JOINS, name, KILL, measure="unowned_partition_ms") for name in COMPARED]
    here, *others = (round(statistics.median(values) / 1_000) for values in unowned)
    assert f"partitions have no owner for {here} s in all instead of {min(others)} to {max(others)} s" in text


@pytest.mark.parametrize(
    ("page", "heading", "names"),
    [
        (
            "docs/results.md",
            "this project, incremental",
            COMPARED,
        ),
        ("docs/experiments.md", "central-incremental | central-eager | gateway-central | kip848", ()),
        ("docs/experiments.md", "central-incremental | helix | java-848", ()),
        ("docs/experiments.md", "central-incremental | kip848 | classic-range | classic-cooperative", ()),
    ],
)
def test_tables_of_the_comparison(page: str, heading: str, names: tuple[str, ...]) -> None:
    columns, rows = table(page, heading)
    change, compared = JOIN, 0
    for row, cells in rows:
        change = next((of for words, of in CHANGES.items() if words in row), change)
        file = LATER if "helix" in columns else RUNS if "gateway-central" in columns else JOINS
        for protocol, cell in zip(names or columns, cells, strict=True):
            found = None if cell is None else expected(row, change, file, protocol)
            if "round trips" in row:
                found = statistics.median(of_steps(JOINS, protocol, scenario="far-10ms"))
            if found is not None:
                assert cell == pytest.approx(found, abs=0.06 if row.endswith(", s") else ROUNDED), (row, protocol)
                compared += 1
    assert compared >= MIN_COMPARED


def test_costs_at_rest() -> None:
    with (ROOT / "docs/data" / JOINS.replace(".jsonl", "-runs.csv")).open() as file:
        runs = [run for run in csv.DictReader(file) if (run["scenario"], run["settings"]) == ("scale-out", "tuned")]
    runs = [run for run in runs if run["trusted"] == "True"]
    columns, rows = table("docs/results.md", "this project, incremental")
    compared = 0
    for row, cells in rows:
        for measure in (measure for words, measure in AT_REST.items() if row.endswith(words)):
            for protocol, cell in zip(COMPARED, cells, strict=True):
                found = statistics.median(float(run[measure]) for run in runs if run["protocol"] == protocol)
                assert cell == pytest.approx(found, abs=ROUNDED), (row, protocol)
                compared += 1
    assert compared == 3 * len(columns)


def test_the_joins_in_any_phase() -> None:
    columns, rows = table("docs/experiments.md", "central-incremental | kip848 | kip848, 50 ms")
    compared = 0
    for row, cells in rows:
        for column, cell in zip(columns, cells, strict=True):
            protocol, settings = column.partition(",")[0], "heartbeat-50" if "50 ms" in column else "tuned"
            found = None
            for words, summary in SUMMARIES.items():
                if words in row and "delay" not in row:
                    found = summary(of_steps(JOINS, protocol, settings=settings))
            for words, (measure, unit) in OF_RUNS.items():
                if row.endswith(words):
                    found = of_runs(JOINS, protocol, measure, settings) / unit
            if found is not None and cell is not None:
                assert cell == pytest.approx(found, abs=0.06 if row.endswith(", s") else ROUNDED), (row, column)
                compared += 1
    assert compared >= 7 * 5


def test_the_joins_over_a_network() -> None:
    lines = (ROOT / "docs/experiments.md").read_text().splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("### With a network between hosts"))
    begin = next(number for number in range(begin, len(lines)) if lines[number].startswith("| |"))
    columns, rows = read_table(lines, begin)
    compared = 0
    for row, cells in rows:
        for column, cell in zip(columns, cells, strict=True):
            protocol, settings = column.partition(",")[0], "heartbeat-50" if "50 ms" in column else "tuned"
            steps = of_steps(JOINS, protocol, settings=settings, scenario="far-10ms")
            found = max(steps) if row == "longest" else statistics.median(steps)
            for words, (measure, unit) in OF_RUNS.items():
                if row.endswith(words):
                    found = of_runs(JOINS, protocol, measure, settings, "far-10ms") / unit
            assert cell == pytest.approx(found, abs=0.06 if row.endswith(", s") else ROUNDED), (row, column)
            compared += 1
    assert compared == 4 * 5


def test_short_heartbeats_on_the_page_of_results() -> None:
    text = " ".join((ROOT / "docs/results.md").read_text().split())
    settled = statistics.median(of_steps(JOINS, "kip848", settings="heartbeat-50"))
    first = of_runs(JOINS, "kip848", "first_record_ms", "heartbeat-50")
    assert f"settles a join in {settled:.0f} ms and has the first record after {first:.0f} ms" in text


def test_the_table_of_heartbeats() -> None:
    _columns, rows = table("docs/experiments.md", "settled, ms | first record, ms")
    assert len(rows) == 13
    for row, cells in rows:
        protocol, _, interval = row.removesuffix(" ms").replace(",", "").partition(" ")
        settings = f"heartbeat-{interval}" if interval not in {"", "500"} else "tuned"
        runs = [run for run in results(RUNS) if (run["scenario"], run["protocol"]) == ("scale-out", protocol)]
        figures = [run["measures"] for run in runs if run["settings"] == settings]
        for cell, measure in zip(cells, ("settled_ms", "first_record_ms", "unowned_partition_ms"), strict=False):
            is_time = measure != "unowned_partition_ms"
            found = statistics.median(figure[measure] for figure in figures) / (1 if is_time else 1_000)
            assert cell == pytest.approx(found, abs=ROUNDED if is_time else 0.06), (row, measure)


def test_the_tables_of_other_scenarios() -> None:
    runs = {(run["protocol"], run["scenario"]): run for run in results(OTHERS)}
    assert len(runs) == len(results(OTHERS)) == 45
    assert all(run["trusted"] and run["complete"] for run in runs.values())
    assert {run["details"]["broker"]["kind"] for run in runs.values()} == {"kafka-4"}
    assert {run["measures"][what] for run in runs.values() for what in ("lost", "out_of_order", "overlaps")} == {0}
    page = (ROOT / "docs/experiments.md").read_text()
    begin, end = page.index("### The other scenarios"), page.index("### With many records, and many groups")
    lines = page[begin:end].splitlines()
    titles = [number for number, line in enumerate(lines) if line.startswith("**")]
    assert len(titles) == len(OF_OTHERS) - 1
    for number in titles:
        measure, unit = next(of for words, of in OF_OTHERS.items() if lines[number].startswith(f"**{words}"))
        columns, rows = read_table(lines, number + 2)
        assert len(rows) >= 6
        for row, cells in rows:
            scenario, _, kind = row.replace("`", "").partition(", ")
            for protocol, cell in zip(columns, cells, strict=True):
                found = of_run(runs[protocol, scenario], kind, measure) / unit
                assert cell == pytest.approx(found, abs=0.06 if unit > 1 else ROUNDED), (measure, row, protocol)


CHANGE_OF = {  # a scenario with one kind of change -> its name
    "coordinator-failover": "fail-coordinator",
    "broker-failover": "fail-broker",
    "churn": "churn",
    "partition-growth": "grow-topic",
    "new-topic": "create-topic",
    "scale-out": JOIN,
}


def of_changes(protocol: str, scenario: str, change: str, measure: str, members: int = 10) -> list[float]:
    """Return a measure of each change in runs in any phase; ZooKeeper's failures are of the later commit."""
    file = ZOOKEEPERS if scenario == "zookeeper-failover" else ANY_PHASE
    runs = [run for run in results(file) if (run["protocol"], run["scenario"]) == (protocol, scenario)]
    runs = [run for run in runs if run["members"] == members and run["trusted"]]
    return [float(step[measure]) for run in runs for step in run["steps"] if step["name"] == change]


def test_the_tables_of_failures_pauses_and_growth() -> None:
    for file in (ANY_PHASE, ZOOKEEPERS):
        assert all(run["complete"] and run["settled"] for run in results(file))
        assert {run["details"]["broker"]["kind"] for run in results(file)} == {"kafka-4"}
        assert len({json.dumps(run["versions"]["zkrebalancer"]) for run in results(file)}) == 1
    runs = [*results(ANY_PHASE), *results(ZOOKEEPERS)]
    assert {run["measures"][what] for run in runs for what in ("lost", "out_of_order", "overlaps")} == {0}
    page = (ROOT / "docs/experiments.md").read_text()
    assert (
        f"{len(runs)} runs with those of the next two sections, {sum(run['trusted'] for run in runs)} of them" in page
    )
    begin, end = page.index("### Failures, pauses, growth and 100 members"), page.index("### In one phase")
    lines = page[begin:end].splitlines()
    compared = 0
    for number in (number for number, line in enumerate(lines) if re.match(r"\*\*[^*]+\*\*:$", line)):
        measure, unit = next(of for words, of in OF_OTHERS.items() if lines[number].startswith(f"**{words}"))
        columns, rows = read_table(lines, number + 2)
        for row, cells in rows:
            scenario, _, kind = row.replace("`", "").partition(", ")
            members = 100 if kind == "100 members" else 10
            change = CHANGE_OF.get(scenario, kind)
            for protocol, cell in zip(columns, cells, strict=True):
                found = statistics.median(of_changes(protocol, scenario, change, measure, members)) / unit
                assert cell == pytest.approx(found, abs=0.06 if unit > 1 else ROUNDED), (measure, row, protocol)
                compared += 1
    assert compared >= 160


OF_GROUPS = {  # a row -> its scenario, the change (None: the whole run), the measure, and units in one of the page's
    "a member joins: settled, ms": ("backlog", JOIN, "settled_ms", 1),
    "joins: most records not read": ("backlog", JOIN, "lag_max", 1),
    "a member is killed: settled, ms": ("backlog", KILL, "settled_ms", 1),
    "killed: most records not read": ("backlog", KILL, "lag_max", 1),
    "killed: caught up after, s": ("backlog", KILL, "lag_back_ms", 1_000),
    "it returns: settled, ms": ("backlog", RETURN, "settled_ms", 1),
    "returns: most records not read": ("backlog", RETURN, "lag_max", 1),
    "each group gets a member: the last one settled, ms": ("many-groups", "add-members", "settled_ms", 1),
    "of the groups, median, ms": ("many-groups", "add-members", "group_settled_p50_ms", 1),
    "one group gets another member: settled, ms": ("many-groups", JOIN, "settled_ms", 1),
    "a replacement: settled, ms": ("upgrade", "replace-member", "settled_ms", 1),
}


def test_the_tables_of_many_records_groups_and_upgrades() -> None:
    page = (ROOT / "docs/experiments.md").read_text()
    lines = page[page.index("### With many records, and many groups") : page.index("### Default settings")].splitlines()
    compared = 0
    for number in (number for number, line in enumerate(lines) if line.startswith("| | central-incremental")):
        columns, rows = read_table(lines, number)
        for row, cells in rows:
            for scenario, change, measure, unit in [OF_GROUPS[row]] if row in OF_GROUPS else []:
                members = 60 if scenario == "many-groups" else 10
                for protocol, cell in zip(columns, cells, strict=True):
                    found = statistics.median(of_changes(protocol, scenario, change, measure, members)) / unit
                    assert cell == pytest.approx(found, abs=0.06 if unit > 1 else ROUNDED), (row, protocol)
                    compared += 1
    assert compared == 4 * len(OF_GROUPS)
