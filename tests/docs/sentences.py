"""Computes the figures in the pages' sentences from the published runs, as the tables are computed."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

from tests.docs import tables
from tests.docs.figures import DATA, SETTLED, SHOWN, Column, Row, compared, late, results, values
from tests.docs.tables import COOPERATIVE, EARLIER, KIP, MAIN, OURS, RANGE, RIVALS, SHORT, SHORTEST
from zkrebalancer.pipeline.report.statistics import MIN_PAIRS, interval_of_median

PUBLISHED = sorted(path.name for path in DATA.glob("*.jsonl"))
AT_REST, OF_MEMBERS = "rest_cpu_ms_per_s", "rest_cpu_member_ms_per_s"


def every(file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / file).read_text().splitlines()]


def of_group(scenario: str, column: Column) -> list[dict[str, Any]]:
    """Return the trusted runs of the first page in the order of their seeds."""
    wanted = (scenario, column.protocol, column.settings)
    found = [run for run in results(MAIN) if (run["scenario"], run["protocol"], run["settings"]) == wanted]
    return sorted(found, key=lambda run: int(run["seed"]))


def figure(column: Column, row: Row) -> float:
    """Return what a cell would have."""
    return row.summary(values(column, row)) / row.unit


def span(row: Row, columns: list[Column] = RIVALS, digits: int = 0) -> str:
    """Return the lowest and the highest figure of these protocols."""
    figures = [figure(column, row) for column in columns]
    return f"{min(figures):,.{digits}f} to {max(figures):,.{digits}f}"


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
RESTED_AGAIN = replace(RESTED, file=tables.DELAYED)
JOINED_AGAIN, LATE_AGAIN = (Row("", measure, tables.DELAYED, "scale-out") for measure in (SETTLED, "delay_p99_ms"))
LONGEST_AGAIN = replace(LATE_AGAIN, measure="delay_max_ms")
LATE_S = 18  # when records come late, after the group came to rest
TIMES = {3: "three", 8: "eight", 9: "nine", 10: "ten"}
BY_DEFAULT = Row("", "rest_requests_per_s", tables.OTHERS, "scale-out", settings="default")
JOINED_ONCE = Row("", SETTLED, tables.OTHERS, "scale-out")
OTHER_CLIENTS = [*tables.OTHER_CLIENTS, tables.GATEWAY[0], KIP]
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


def without_broker() -> tuple[str, str]:
    """Return the processor time at rest without the broker, in ms per second: of this project, and of the others."""

    def of(column: Column) -> float:
        every_ms, broker_ms = values(column, RESTED), values(column, tables.BROKER)
        return statistics.median(all_ms - of_broker for all_ms, of_broker in zip(every_ms, broker_ms, strict=True))

    others = [of(column) for column in (*RIVALS, SHORT)]
    return f"{of(OURS):.0f}", f"{min(others):.0f} to {max(others):.0f}"


def by_default(unit: str) -> str:
    """Return how many requests per second a group at rest sends with default settings."""
    return f"{figure(OURS, BY_DEFAULT):.0f} {unit}, Kafka's protocols {span(BY_DEFAULT)}"


def seeds(file: str) -> int:
    return len({run["seed"] for run in results(file)})


def on_the_first_page() -> Iterator[str]:
    yield f"the median join takes {figure(OURS, JOINED):.0f} ms until the last partition has moved"
    yield f"KIP-848, takes {figure(SHORT, JOINED):.0f} ms with heartbeats every 50 ms (no difference"
    runs = of_group("scale-out", OURS)
    (processes,) = {run["processes"] for run in results(MAIN)}
    yield f"Ten members in {TIMES[processes]} processes, {runs[0]['partitions']} partitions, "
    yield f"{2 * runs[0]['partitions']} records per second"
    yield f"{TIMES[len(runs)]} runs of each protocol"
    yield f"The {figure(OURS, JOINED):.0f} ms are the median of {len(values(OURS, JOINED))} joins; the median of "
    yield f"the median of the ten runs is {of_runs(JOINED):.0f} ms, {interval(JOINED)} with 95 % confidence"
    yield f"at {TIMES[round(figure(SHORT, REQUESTS) / figure(OURS, REQUESTS))]} times the requests at rest"
    settled = Row("", SETTLED, tables.SHORTER, "scale-out")
    yield f"it settles a join in {figure(SHORTEST, settled):.0f} ms, this project in {figure(OURS, settled):.0f}"
    yield f"this project sends {by_default('requests per second at rest')}"
    yield f"{figure(OURS, MEMORY) - max(figure(column, MEMORY) for column in RIVALS):.0f} MB more memory"
    for row, words in ((RESTED, ", the others {} (all shown)"), (RESTED_AGAIN, " (not shown), and {} (shown)")):
        yield f"{figure(SHORT, row):.0f}{words.format(span(row))}"
    yield f"{figure(OURS, RESTED):.0f} ms per second, KIP-848 with 50 ms {figure(SHORT, RESTED):.0f}"
    yield f"in the later ones {figure(OURS, RESTED_AGAIN):.0f}, {figure(SHORT, RESTED_AGAIN):.0f}"
    ours, theirs = without_broker()
    yield f"without the broker, the first of these took {ours} ms per second here, the others {theirs}"
    joined = f"joins took {figure(OURS, JOINED_AGAIN):.0f} ms, with KIP-848 and 50 ms {figure(SHORT, JOINED_AGAIN):.0f}"
    yield f"{joined} (no difference is shown), with the others {span(JOINED_AGAIN)} (shown)"
    ours, theirs = (f"{figure(column, LATE_AGAIN):.0f}" for column in (OURS, SHORT))
    yield f"99 % of the records arrive within {theirs} ms, here within {ours} (shown)"
    yield from on_what_is_worse()
    quicker = [figure(column, row) for row in (QUICKER, NEAR, THREE) for column in (OURS, SHORT)]
    words = "joins took {:.0f} ms here, and {:.0f} ms with KIP-848 and 50 ms (shown); with round trips of 1 ms "
    yield (words + "{:.0f} and {:.0f}, with three servers of each kind {:.0f} and {:.0f} ms").format(*quicker)


def later_by(file: str) -> str:
    """Return by how much half of the records arrive later here, in joins, where that is shown from each protocol."""
    found = [one for one in compared(file).verdicts if one.measure == "delay_p50_ms"]
    found = [one for one in found if one.setting.scenario == "scale-out"]
    assert {one.outcome for one in found} == {"loses"}
    by_ms = [-one.difference.median for one in found if one.difference]
    return f"{min(by_ms):.1f} to {max(by_ms):.1f}"


def on_what_is_worse() -> Iterator[str]:
    yield f"Half of the records arrive {later_by(MAIN)} ms later in joins than with each other"
    requests = Row("", "requests", MAIN, "scale-out")
    yield f"sends fewer requests in three joins, {figure(KIP, requests):.0f} against {figure(OURS, requests):.0f}"
    longest = [figure(column, LONGEST_AGAIN) for column in (RANGE, OURS)]
    yield "the longest delay is shorter with classic range, {:.0f} against {:.0f} ms".format(*longest)
    at_rest = [figure(column, replace(REQUESTS, file=EARLIER)) for column in (OURS, KIP, RANGE)]
    assert round(at_rest[1]) == round(at_rest[2])
    yield "At rest this project sent {:.0f} requests per second, KIP-848 with 500 ms and classic range {:.0f}".format(
        *at_rest
    )


def on_when_to_use() -> Iterator[str]:
    yield f"settles in {figure(OURS, JOINED):.0f} ms; classic range takes {figure(RANGE, JOINED):.0f} ms, "
    yield f"KIP-848 {figure(KIP, JOINED):.0f} ms, and classic cooperative {figure(COOPERATIVE, JOINED):,.0f} ms"
    yield f"With heartbeats every 50 ms, KIP-848 takes {figure(SHORT, JOINED):.0f} ms"
    yield f"ten members at rest took {figure(OURS, CPU):.0f} ms of processor time per second"
    yield f"it was {span(CPU)} ms, and with KIP-848 and heartbeats every 50 ms {figure(SHORT, CPU):.0f} ms"
    yield f"in ten later runs {figure(OURS, RESTED):.0f} ms here, {span(RESTED)} ms, and {figure(SHORT, RESTED):.0f} ms"
    once_more = f"{figure(OURS, RESTED_AGAIN):.0f} ms here, {span(RESTED_AGAIN)} ms (shown)"
    yield f"once more {once_more}, and {figure(SHORT, RESTED_AGAIN):.0f} ms (not shown)"
    yield f"half of the records arrive {later_by(MAIN)} ms later in joins than with each of Kafka's protocols (shown)"
    yield f"a join takes {figure(OURS, FAR):.0f} ms, and {figure(SHORT, FAR):.0f} ms with KIP-848"
    *_others, behind, at_broker = (figure(column, JOINED_ONCE) for column in OTHER_CLIENTS)
    yield f"it took {behind:.0f} ms there, with KIP-848 at a broker {at_broker:.0f} ms"


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


def on_shorter_ones_in_full() -> Iterator[str]:
    (half,) = [one for one in compared(tables.SHORTER).verdicts if one.measure == "delay_p50_ms"]
    assert half.difference
    yield f"Half of the records arrive {-half.difference.median:.1f} ms sooner (p = {half.p:.3f})"


def on_later_joins() -> Iterator[str]:
    yield f"{figure(OURS, JOINED_AGAIN):.0f} ms, with heartbeats every 500 ms {span(JOINED_AGAIN)} (shown), and with "
    yield f"KIP-848 and 50 ms {figure(SHORT, JOINED_AGAIN):.0f} ms (no difference is shown)"
    late = [f"{figure(column, LATE_AGAIN):.0f}" for column in (OURS, RANGE, COOPERATIVE, SHORT)]
    yield "arrive within {} ms, with range {} and cooperative {} ms (both shown)".format(*late)
    yield f"arrive within {late[0]} ms in three joins, with KIP-848 and 50 ms within {late[3]} ms; "
    words = "the longest delay is {:.0f} ms, with classic range {:.0f} ms"
    yield words.format(figure(OURS, LONGEST_AGAIN), figure(RANGE, LONGEST_AGAIN))
    ours, short = (figure(column, RESTED_AGAIN) for column in (OURS, SHORT))
    yield f"it is {ours:.0f} against {short:.0f} ms, which is not shown, others {span(RESTED_AGAIN)} ms (shown)"


def on_joins_once_more() -> Iterator[str]:
    runs = every(tables.DELAYED)
    yield f"{len(runs)} runs, {len(results(tables.DELAYED))} of them trusted"
    ours, short = (figure(column, JOINED_AGAIN) for column in (OURS, SHORT))
    verdicts = [one for one in compared(tables.DELAYED).verdicts if one.is_primary]
    (open_p,) = [one.p for one in verdicts if one.outcome == "open"]
    (shown_p,) = {one.p for one in verdicts if one.outcome in SHOWN}
    yield f"a join settles after {ours:.0f} ms here and {short:.0f} ms with KIP-848 and 50 ms (no difference is shown, "
    yield f"p = {open_p:.2f}), with heartbeats every 500 ms after {span(JOINED_AGAIN)} ms (shown, p = {shown_p:.3f}"
    unowned = replace(JOINED_AGAIN, measure="unowned_partition_ms", unit=1_000)
    yield f"for a shorter time, {figure(SHORT, unowned):.1f} against {figure(OURS, unowned):.1f} s (shown); with 500 ms"
    yield f"Half of the records arrive {later_by(tables.DELAYED)} ms later here than with each other protocol in joins"
    slow = [figure(column, replace(JOINED_AGAIN, summary=late)) for column in (OURS, SHORT)]
    yield "settle within {:.0f} ms here, with KIP-848 and 50 ms within {:.0f} ms".format(*slow)
    late_ms = [figure(column, LATE_AGAIN) for column in (OURS, SHORT, RANGE, COOPERATIVE)]
    words = "{:.0f} ms here, with KIP-848 and 50 ms {:.0f} ms (shown: sooner there), with range {:.0f} and cooperative "
    yield (words + "{:.0f} ms (shown: sooner here)").format(*late_ms)
    longest = [figure(column, LONGEST_AGAIN) for column in (OURS, RANGE, KIP, COOPERATIVE, SHORT)]
    words = "longest delay is {:.0f} ms here, with range {:.0f} ms (shown: shorter there), with KIP-848 and "
    yield (words + "cooperative {:.0f} and {:.0f} ms (shown); with 50 ms {:.0f} ms, but no").format(*longest)
    resting = replace(LONGEST_AGAIN, scenario="steady")
    yield f"it is {figure(OURS, resting):.0f} ms, with the others {span(resting, [*RIVALS, SHORT])} ms"
    requests = replace(LATE_AGAIN, measure="requests")
    yield f"KIP-848 sends fewer requests, {figure(KIP, requests):.0f} against {figure(OURS, requests):.0f} (shown)"
    twice = [run["settings"] for run in runs if run["measures"]["overlaps"]]
    assert {*twice} == {SHORT.settings}
    yield f"[some partitions had two owners](#overlaps-of-kip848) in all {len(twice)} runs"


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
    yield f"after {figure(SHORT, NEAR):.0f} ms, this project {figure(OURS, NEAR):.0f} ("
    near = Row("", "unowned_partition_ms", EARLIER, "far-1ms", unit=1_000)
    yield f"without an owner for {figure(SHORT, near):.1f} s instead of {figure(OURS, near):.1f} s (shown)"
    yield from on_the_frontier()
    yield from on_shorter_ones()
    yield from on_later_joins()
    yield from on_a_group_at_rest()
    yield from on_examples()
    yield f"{figure(SHORT, FAR):.0f} ms, this project {figure(OURS, FAR):.0f}"
    yield f"{figure(SHORT, THREE):.0f} ms, this project {figure(OURS, THREE):.0f}"


def on_a_group_at_rest() -> Iterator[str]:
    yield f"sends {figure(OURS, REQUESTS):.0f} requests per second"
    yield f"With default settings, this project sends {by_default('per second')} (one run of each)"
    members = replace(RESTED, measure=OF_MEMBERS)
    yield f"it takes {joined_factors(RESTED)} that of the others with 500 ms and {factor(SHORT, RESTED)} that of"
    yield f"with 50 ms, {figure(OURS, RESTED):.0f} against {figure(SHORT, RESTED):.0f} ms per second, members "
    yield f"members {joined_factors(members).removesuffix(' times')} and {factor(SHORT, members)};"
    ours, theirs = without_broker()
    yield f"it is {ours} ms per second here, {theirs} with the others"
    more = figure(OURS, MEMORY) - max(figure(column, MEMORY) for column in RIVALS)
    yield f"takes {factors(RIVALS, AT_REST, MIN_PAIRS, [MAIN])} the processor time"
    yield f"(in the earlier report {factors(RIVALS, AT_REST, MIN_PAIRS, [EARLIER])};"
    yield f"of all published runs with tuned settings {factors(RIVALS, AT_REST)}"
    yield f"{factors([SHORT], AT_REST, MIN_PAIRS, [MAIN])} that of KIP-848 with 50 ms (no difference is shown; of all"
    yield f"of all {factors([SHORT], AT_REST)}), and {more:.0f} MB more memory"
    of_members = factors(RIVALS, OF_MEMBERS, MIN_PAIRS, [MAIN])
    yield f"Members alone take {of_members} that of the others with 500 ms (of all {factors(RIVALS, OF_MEMBERS)})"
    of_members = factors([SHORT], OF_MEMBERS, MIN_PAIRS, [MAIN])
    yield f"{of_members} that of KIP-848 with 50 ms (of all {factors([SHORT], OF_MEMBERS)})"


def on_examples() -> Iterator[str]:
    yield f"With 100 members a join settles after {figure(OURS, HUNDRED):.0f} ms, against {span(HUNDRED)} ms"
    yield f"the last has settled after {figure(RANGE, GROUPS):.0f} ms, here after {figure(OURS, GROUPS):.0f} ms"
    storm = Row("", SETTLED, tables.OTHERS, "join-storm")
    yield f"half as many members join at once: {figure(RANGE, storm):.0f} ms, here {figure(OURS, storm):.0f} ms"
    defaults = Row("", SETTLED, tables.OTHERS, "scale-out", settings="default")
    ours, *theirs = (figure(column, defaults) for column in (OURS, RANGE, COOPERATIVE, KIP))
    yield f"With default settings a join settles after {ours:.0f} ms, classic range takes {theirs[0]:,.0f} ms"
    yield "cooperative {:,.0f} ms and KIP-848 {:,.0f} ms".format(*theirs[1:])
    churn = Row("", "unowned_partition_ms", tables.OTHERS, "churn", unit=1_000)
    yield f"for {figure(OURS, churn):.1f} s in all, against {span(churn, digits=1)} s"
    helix, java, cooperative, behind, _at_broker = (figure(column, JOINED_ONCE) for column in OTHER_CLIENTS)
    yield f"{helix:.0f} ms with Helix; with Java's client {java:.0f} ms with KIP-848 and {cooperative:,.0f} ms with"
    yield f"(experiments.md#javas-client-helix-and-the-gateway) {behind:.0f} ms"
    twice = figure(OURS, TWICE(tables.OTHERS, "pause", settings="default"))
    yield f"{twice:.0f} records are delivered twice"
    grown, new = (Row("", SETTLED, tables.OTHERS, scenario) for scenario in ("partition-growth", "new-topic"))
    yield f"found after {figure(OURS, grown):.0f} ms, with Kafka's protocols after {span(grown)} ms"
    yield f"new topic after {figure(OURS, new):.0f}, with others {span(new)} ms"
    unread = Row("", SETTLED, tables.OTHERS, "backlog", change="add-member", unit=1_000)
    of_unread = (f"{figure(column, unread):.1f} s" for column in (OURS, RANGE, KIP, COOPERATIVE))
    yield "after {}, range {}, KIP-848 {}, cooperative {}".format(*of_unread)
    dies = Row("", SETTLED, tables.OTHERS, "coordinator-failover", unit=1_000)
    yield f"a newcomer waits for {figure(OURS, dies):.1f} s, with Kafka's protocols"
    yield f"(by default 9), {span(dies, digits=1)} s"
    groups = replace(dies, scenario="many-groups-failover", members=60)
    yield f"settled after {figure(OURS, groups):.1f} s, with Kafka's protocols {span(groups, digits=1)} s"


def on_late_acknowledgements() -> Iterator[str]:
    """Yield what delays of joins depend on: whether the time of a join includes one moment, for any protocol."""
    within, others, lasted = list[float](), list[float](), Counter[str]()
    for run in every(MAIN):
        if run["scenario"] == "scale-out":
            ends_s = [*accumulate(step["length_ms"] / 1_000 for step in run["steps"])]
            lasted[f"{run['protocol']} {run['settings']}"] += ends_s[-1] >= LATE_S
            for began_s, ended_s, step in zip(ends_s, ends_s[1:], run["steps"][1:], strict=False):
                (within if began_s < LATE_S <= ended_s else others).append(step["delay_p99_ms"])
    late = [sum(delay_ms > 60 for delay_ms in of) for of in (within, others)]
    yield f"{late[0]} of the {len(within)} joins whose time includes the {LATE_S}th second"
    yield f"above 60 ms (median {statistics.median(within):.0f} ms), of the {len(others)} others {late[1]} "
    yield f"({statistics.median(others):.0f} ms)"
    ours, short, *rivals = (lasted[f"{column.protocol} {column.settings}"] for column in (OURS, SHORT, *RIVALS))
    assert ours == short
    yield f"{ours} of ten runs last so long here and with KIP-848 and 50 ms, {min(rivals)} to {max(rivals)} with"


def on_experiments() -> Iterator[str]:
    yield from on_shorter_ones()
    yield from on_shorter_ones_in_full()
    yield from on_joins_once_more()
    yield from on_late_acknowledgements()
    yield f"{len(every(MAIN))} runs, {len(results(MAIN))} of them trusted"
    yield f"this project sends {by_default('requests per second')}"
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
