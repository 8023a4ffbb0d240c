"""Which figures the tables of the pages have; `figures` computes them.

After new runs: put their results, one in each line, into `docs/data`, name the files below, run `python -m tests.docs`,
and write what `test_figures` misses in the sentences. The runs in which differences are shown are one report, in one
file; its comparison is made of it, too. An earlier report has the scenarios and heartbeats that the last one has not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

from tests.docs.figures import (
    FIRST,
    SETTLED,
    Column,
    Row,
    Table,
    comparison_csv,
    filled,
    frontier_picture,
    late,
    rendered,
    rendered_differences,
)
from tests.style.sources import ROOT
from zkrebalancer.pipeline.report.frontier import TUNED_MS

PAGES = ("README.md", "docs/experiments.md", "docs/results.md")
MAIN = "experiments-2026-11-29-compared.jsonl"  # those of the first page
COMPARISON = "experiments-2026-11-29-comparison.csv"
EARLIER = "experiments-2026-11-28-compared.jsonl"  # an earlier report, on a quicker machine, servers without C2
EARLIER_COMPARISON = "experiments-2026-11-28-comparison.csv"
STEADY = "experiments-2026-11-29-steady.jsonl"  # groups at rest
STEADY_COMPARISON = "experiments-2026-11-29-steady-comparison.csv"
SHORTER = "experiments-2026-11-29-shorter.jsonl"  # heartbeats below 50 ms
SHORTER_COMPARISON = "experiments-2026-11-29-shorter-comparison.csv"
DELAYED = "experiments-2026-11-29-delays.jsonl"  # partitions that reach an index entry one after the other
DELAYED_COMPARISON = "experiments-2026-11-29-delays-comparison.csv"
REPORTS = {
    MAIN: COMPARISON,
    EARLIER: EARLIER_COMPARISON,
    STEADY: STEADY_COMPARISON,
    SHORTER: SHORTER_COMPARISON,
    DELAYED: DELAYED_COMPARISON,
}
OTHERS = "experiments-2026-11-28-others.jsonl"
OLD_BROKER = "experiments-2026-11-28-kafka-3.9.jsonl"
SLOW_DISK = "experiments-2026-11-29-slow-disk.jsonl"  # servers without the optimizing compiler, on a slower machine
SWEEP = "experiments-2026-11-29-frontier.jsonl"  # each protocol with each heartbeat, two runs of each

OURS, KIP, RANGE, COOPERATIVE = COMPARED = [
    Column(name, name) for name in ("central-incremental", "kip848", "classic-range", "classic-cooperative")
]
RIVALS = COMPARED[1:]
SHORT = Column("kip848, 50 ms", "kip848", "heartbeat-50")
SHORTEST = Column("kip848, 20 ms", "kip848", "heartbeat-20")
WITH_SHORT = [OURS, KIP, SHORT, RANGE, COOPERATIVE]
NAMED = ["this project, incremental", "KIP-848", "KIP-848, 50 ms", "classic range", "classic cooperative"]
ON_RESULTS = [Column(name, of.protocol, of.settings) for name, of in zip(NAMED, WITH_SHORT, strict=True)]
# The strongest rival is beside ours.
ON_FIRST_PAGE = [Column("this project", OURS.protocol), ON_RESULTS[2], ON_RESULTS[1], *ON_RESULTS[3:]]
SERVERS = "[three servers of each kind](experiments.md#with-three-servers-of-each-kind)"
NETWORK = "[round trips of 10 ms](experiments.md#with-a-network-between-hosts)"
UNOWNED = partial(Row, measure="unowned_partition_ms", unit=1_000, digits=1)
KILL, RETURN = "kill-member", "restart-member"
CPU = "cpu_without_producers_ms"

scale_out = partial(Row, file=MAIN, scenario="scale-out")
crash = partial(Row, file=MAIN, scenario="crash")
far = partial(Row, file=MAIN, scenario="far-10ms")
again = partial(Row, file=DELAYED, scenario="scale-out")
LATER = " ([later runs](experiments.md#again-with-first-records-of-several-lengths))"

AT_REST = [
    scale_out("at rest: requests per second", "rest_requests_per_s"),
    scale_out("at rest: processor time of everything, ms per second", "rest_cpu_ms_per_s"),
    scale_out("at rest: processor time of members, ms per second", "rest_cpu_member_ms_per_s"),
    scale_out("at rest: memory of everything, MB", "rss_mb"),
]
DELAYS = [
    ("delay of half of the records, ms", "delay_p50_ms", 1),
    ("delay of 99 % of the records, ms", "delay_p99_ms", 0),
    ("longest delay, ms", "delay_max_ms", 0),
]
THREE_JOIN = [
    scale_out("a member joins: settled, ms, median", SETTLED),
    scale_out("95th percentile", SETTLED, summary=late),
    scale_out("longest", SETTLED, summary=max),
    scale_out("time to the first record, ms, median", FIRST),
    scale_out("first record: 95th percentile", FIRST, summary=late),
    scale_out("first record: longest", FIRST, summary=max),
    UNOWNED("three join: partitions without a consumer, s", file=MAIN, scenario="scale-out"),
    scale_out("stopped needlessly", "stopped_needlessly"),
    scale_out("requests to ZooKeeper and broker", "requests"),
    scale_out("processor time, ms", CPU),
    *AT_REST,
]
KILLS = [
    crash("killed: settled, ms, median", SETTLED, change=KILL),
    crash("95th percentile", SETTLED, change=KILL, summary=late),
    crash("longest", SETTLED, change=KILL, summary=max),
    crash("killed: time to the first record, ms, median", FIRST, change=KILL),
    crash("first record: 95th percentile", FIRST, change=KILL, summary=late),
    crash("first record: longest", FIRST, change=KILL, summary=max),
    UNOWNED("killed: partitions without a consumer, s", file=MAIN, scenario="crash", change=KILL),
    crash("returns: settled, ms, median", SETTLED, change=RETURN),
    crash("95th percentile", SETTLED, change=RETURN, summary=late),
    crash("longest", SETTLED, change=RETURN, summary=max),
    crash("returns: time to the first record, ms, median", FIRST, change=RETURN),
    crash("first record: 95th percentile", FIRST, change=RETURN, summary=late),
    crash("first record: longest", FIRST, change=RETURN, summary=max),
    UNOWNED("returns: partitions without a consumer, s", file=MAIN, scenario="crash", change=RETURN),
    crash("records delivered twice, median of a run", "duplicated"),
    crash("processor time, ms", CPU),
]


def joins_of(file: str, scenario: str) -> list[Row]:
    """Return the rows of a scenario of three joins."""
    joins = partial(Row, file=file, scenario=scenario)
    return [
        joins("settled, ms: median", SETTLED),
        joins("95th percentile", SETTLED, summary=late),
        joins("longest", SETTLED, summary=max),
        joins("time to the first record, ms, median", FIRST),
        joins("first record: 95th percentile", FIRST, summary=late),
        joins("first record: longest", FIRST, summary=max),
        UNOWNED("partitions without a consumer, s", file=file, scenario=scenario),
        *(joins(title, measure, digits=digits) for title, measure, digits in DELAYS[1:]),
        joins("processor time, ms", CPU),
        *(replace(row, file=file, scenario=scenario) for row in AT_REST),
    ]


SUMMARY = [
    THREE_JOIN[0],
    scale_out("a member joins: settled, ms, 95th percentile", SETTLED, summary=late),
    far(f"a member joins, with {NETWORK}: settled, ms, median", SETTLED),
    scale_out("a member joins: time to the first record, ms, median", FIRST),
    scale_out("a member joins: first record, ms, 95th percentile", FIRST, summary=late),
    scale_out("a member joins: first record, ms, longest", FIRST, summary=max),
    UNOWNED("three join: partitions without an owner, s", file=MAIN, scenario="scale-out"),
    *(again(f"three join: {title}{LATER}", measure, digits=digits) for title, measure, digits in DELAYS),
    crash("a member is killed: settled, ms", SETTLED, change=KILL),
    UNOWNED("killed: partitions without an owner, s", file=MAIN, scenario="crash", change=KILL),
    crash("it returns: settled, ms", SETTLED, change=RETURN),
    *AT_REST,
]
FIRST_PAGE = [
    *SUMMARY[:2],
    far("a member joins, with round trips of 10 ms: settled, ms, median", SETTLED),
    SUMMARY[3],
    UNOWNED("three join: partitions without an owner, s", file=MAIN, scenario="scale-out"),
    crash("a member is killed: settled, ms, median", SETTLED, change=KILL),
    *AT_REST,
]
earlier = partial(Row, file=EARLIER, scenario="scale-out")
EARLIER_SUMMARY = [
    earlier("a member joins: settled, ms, median", SETTLED),
    earlier("a member joins: settled, ms, 95th percentile", SETTLED, summary=late),
    earlier("a member joins: time to the first record, ms, median", FIRST),
    UNOWNED("three join: partitions without an owner, s", file=EARLIER, scenario="scale-out"),
    Row(f"a member joins, with {SERVERS}: settled, ms, median", SETTLED, EARLIER, "scale-out-three"),
    Row("a member joins, with round trips of 10 ms: settled, ms, median", SETTLED, EARLIER, "far-10ms"),
    Row("a member is killed: settled, ms", SETTLED, EARLIER, "crash", change=KILL),
    Row("it returns: settled, ms", SETTLED, EARLIER, "crash", change=RETURN),
    *(replace(row, file=EARLIER) for row in AT_REST),
]
IN_JOINS = [
    scale_out("settled, ms", SETTLED),
    scale_out("first record, ms", FIRST),
    scale_out("partitions without an owner, s", "unowned_partition_s", digits=1),
]
DIFFERENCES = [
    *IN_JOINS,
    *(again(f"{title}{LATER}", measure, digits=digits) for title, measure, digits in DELAYS),
    *AT_REST,
]

INTERVALS_MS = (50, 100, 200, 500, 1_000, 3_000)
INTERVALS = [
    *(
        Column(f"{protocol}, {ms:,} ms", protocol, "tuned" if ms == TUNED_MS else f"heartbeat-{ms}")
        for protocol in ("kip848", "classic-range", "classic-cooperative", "java-848", "java-cooperative")
        for ms in INTERVALS_MS
    ),
    OURS,
]
sweep = partial(Row, file=SWEEP, scenario="scale-out")
HEARTBEATS = [
    sweep("settled, ms", SETTLED),
    sweep("first record, ms", FIRST),
    UNOWNED("partitions without a consumer, s", file=SWEEP, scenario="scale-out"),
    sweep("requests per second at rest", "rest_requests_per_s"),
    sweep("processor time at rest, ms per s", "rest_cpu_ms_per_s"),
]

steady = partial(Row, file=STEADY, scenario="steady")
BROKER = steady("of the broker", "rest_cpu_broker_ms_per_s")  # not compared
STEADILY = [
    steady("requests per second", "rest_requests_per_s"),
    steady("processor time of everything, ms per second", "rest_cpu_ms_per_s"),
    steady("of members", "rest_cpu_member_ms_per_s"),
    BROKER,
    steady("memory of everything, MB", "rss_mb"),
]
JOINED_AGAIN = [
    *joins_of(DELAYED, "scale-out"),
    again("stopped needlessly", "stopped_needlessly"),
    again("requests to ZooKeeper and broker", "requests"),
]
STEADILY_AGAIN = [
    *(Row(title, measure, DELAYED, "steady", digits=digits) for title, measure, digits in DELAYS),
    *(replace(row, file=DELAYED) for row in STEADILY),
]
DIFFERENCES_AGAIN = [
    *(replace(row, title=f"joins: {row.title}", file=DELAYED) for row in IN_JOINS),
    *(again(f"joins: {title}", measure, digits=digits) for title, measure, digits in DELAYS),
    *(replace(row, title=f"joins: {row.title}", file=DELAYED) for row in AT_REST),
    *(replace(row, title=f"at rest: {row.title}") for row in STEADILY_AGAIN if row.measure != BROKER.measure),
]

Changes = list[Callable[..., Row]]


def of(name: str, *changes: str, **row: Any) -> Changes:
    """Return the rows of a scenario: of all its changes, or of each of these."""
    titles = [(f"`{name}`, {change}", change) for change in changes] or [(f"`{name}`", "")]
    return [partial(Row, title, file=OTHERS, scenario=name, change=change, **row) for title, change in titles]


FAILURES: Changes = [
    *of("coordinator-failover"),
    *of("many-groups-failover", members=60),
    *of("broker-failover"),
    *of("zookeeper-failover", "fail-leader", "lose-quorum"),
]
CHANGES: Changes = [
    *of("churn"),
    *of("partition-growth"),
    *of("new-topic"),
    partial(Row, "`scale-out`, 100 members, three joins", file=OTHERS, scenario="scale-out", members=100),
    *of("scale-in"),
    *of("join-storm"),
    *of("freeze", "freeze-member", "thaw-member"),
    *of("rolling-deploy"),
    *of("rolling-deploy-static"),
    *of("slow-consumer"),
]
DEFAULTS: Changes = [*of("scale-out", settings="default"), *of("pause", "pause-12s", "pause-40s", settings="default")]
TITLES = {  # the title of a table -> its measure, how many of its units the table's has, and digits
    "Time to settled, ms": (SETTLED, 1, 0),
    "Time to the first record, ms": (FIRST, 1, 0),
    "Partitions without a consumer, s": ("unowned_partition_ms", 1_000, 1),
    "Longest delay, ms": ("delay_max_ms", 1, 0),
    "Processor time of everything but producers, ms": (CPU, 1, 0),
}

java = partial(Row, file=OTHERS, scenario="scale-out")
JAVA = [
    java("runs", "duplicated", summary=len),
    java("settled, ms: median of three joins in each", SETTLED),
    java("longest", SETTLED, summary=max),
    java("time to the first record, ms, median of the joins", FIRST),
    java("first record: longest", FIRST, summary=max),
    UNOWNED("partitions without a consumer, s", file=OTHERS, scenario="scale-out"),
    java("delay of 99 % of the records, ms", "delay_p99_ms"),
    java("requests to ZooKeeper and broker", "requests"),
    java("processor time, ms", CPU),
    java("records delivered twice", "duplicated"),
]
OTHER_CLIENTS = [Column(name, name) for name in ("helix", "java-848", "java-cooperative")]
GATEWAY = [Column(name, name) for name in ("gateway-central", "gateway-client", "gateway-848")]

backlog = partial(Row, file=OTHERS, scenario="backlog")
BACKLOG = [
    backlog("a member joins: records not read before", "lag_before", change="add-member"),
    backlog("joins: settled, ms", SETTLED, change="add-member"),
    backlog("joins: time to the first record, ms", FIRST, change="add-member"),
    backlog("a member is killed: settled, ms", SETTLED, change=KILL),
    backlog("killed: most records not read", "lag_max", change=KILL),
    backlog("killed: caught up after, s", "lag_back_ms", change=KILL, unit=1_000, digits=1),
    backlog("it returns: settled, ms", SETTLED, change=RETURN),
    backlog("returns: most records not read", "lag_max", change=RETURN),
    backlog("delay of 99 % of the records after the join, ms", "delay_p99_ms", change="add-member"),
    backlog("records delivered twice", "duplicated"),
    backlog("processor time of everything but producers, s", CPU, unit=1_000),
]
groups = partial(Row, file=OTHERS, scenario="many-groups", members=60)
GROUPS = [
    groups("each group gets a member: the last one settled, ms", SETTLED, change="add-members"),
    groups("of the groups, median, ms", "group_settled_p50_ms", change="add-members"),
    groups("the first record, ms", FIRST, change="add-members"),
    groups("one group gets another member: settled, ms", SETTLED, change="add-member"),
    groups("processor time of everything but producers, s", CPU, unit=1_000, digits=1),
]
upgrade = partial(Row, file=OTHERS, scenario="upgrade")
UPGRADE = [
    upgrade("a replacement: settled, ms", SETTLED),
    UNOWNED("partitions without a consumer, s", file=OTHERS, scenario="upgrade"),
    upgrade("stopped needlessly", "stopped_needlessly"),
    upgrade("processor time of everything but producers, s", CPU, unit=1_000),
]
UPGRADED = [OURS, KIP, GATEWAY[0], OTHER_CLIENTS[2]]
old = partial(Row, file=OLD_BROKER, scenario="scale-out")
ON_OLD_BROKER = [
    old("settled, ms: median of the joins", SETTLED),
    old("longest", SETTLED, summary=max),
    old("time to the first record, ms, median of the joins", FIRST),
    old("first record: longest", FIRST, summary=max),
    UNOWNED("three join: partitions without a consumer, s", file=OLD_BROKER, scenario="scale-out"),
    old("stopped needlessly", "stopped_needlessly"),
    old("processor time, ms", CPU),
]
quick = partial(Row, file=SLOW_DISK, scenario="scale-out")
slow = partial(Row, file=SLOW_DISK, scenario="slow-disk-5ms")
ON_SLOW_DISK = [
    quick("quick disk: runs", "duplicated", summary=len),
    quick("quick disk: settled, ms, median of the joins", SETTLED),
    quick("quick disk: longest", SETTLED, summary=max),
    slow("5 ms: runs", "duplicated", summary=len),
    slow("5 ms: settled, ms, median of the joins", SETTLED),
    slow("5 ms: longest", SETTLED, summary=max),
    slow("5 ms: time to the first record, ms, median of the joins", FIRST),
    UNOWNED("5 ms: partitions without a consumer, s", file=SLOW_DISK, scenario="slow-disk-5ms"),
]
OLD = [OURS, RANGE, COOPERATIVE, Column("zk-client-side", "zk-client-side")]
skewed = partial(Row, file=OTHERS, scenario="skewed-load", members=6)
SKEWED = [
    skewed("highest load of a member, times the mean", "load_peak", change="rest", digits=2),
    skewed("99 % of the records within, ms", "delay_p99_ms", change="rest"),
    skewed("a member joins: settled, ms", SETTLED, change="add-member"),
    skewed("after it: highest load, times the mean", "load_peak", change="add-member", digits=2),
    skewed("after it: 99 % of the records within, ms", "delay_p99_ms", change="add-member"),
]
LOADED = [*COMPARED, OTHER_CLIENTS[0], GATEWAY[0], Column("gateway-central-classic", "gateway-central-classic")]


def of_each_measure(columns: list[Column], changes: Changes) -> str:
    """Return a table of how many runs there are, and one for each measure, each with its title."""
    parts = [f"**Trusted runs**:\n\n{how_many(columns, changes)}"]
    for title, (measure, unit, digits) in TITLES.items():
        rows = [make(measure=measure, unit=unit, digits=digits) for make in changes]
        parts += [f"**{title}**:\n\n{rendered(Table(columns, rows, bold=False))}"]
    return "\n\n".join(parts)


def how_many(columns: list[Column], rows: Changes) -> str:
    """Return the table of how many trusted runs there are."""
    return rendered(Table(columns, [make(measure="duplicated", change="", summary=len) for make in rows], bold=False))


TABLES: Mapping[str, Callable[[], str]] = {
    "first-page": lambda: rendered(Table(ON_FIRST_PAGE, FIRST_PAGE, bold=False)),
    "summary": lambda: rendered(Table(ON_RESULTS, SUMMARY, bold=False)),
    "differences": lambda: rendered_differences(ON_RESULTS[1:], DIFFERENCES),
    "joins": lambda: rendered(Table(WITH_SHORT, THREE_JOIN)),
    "kills": lambda: rendered(Table(WITH_SHORT, KILLS)),
    "three-servers": lambda: rendered(Table(WITH_SHORT, joins_of(EARLIER, "scale-out-three"))),
    "far": lambda: rendered(Table(WITH_SHORT, joins_of(MAIN, "far-10ms"))),
    "near": lambda: rendered(Table([OURS, SHORT], joins_of(EARLIER, "far-1ms"))),
    "earlier": lambda: rendered(Table(ON_RESULTS, EARLIER_SUMMARY, bold=False)),
    "heartbeats": lambda: rendered(Table(INTERVALS, HEARTBEATS, turned=True)),
    "shorter": lambda: rendered(Table([OURS, SHORTEST], joins_of(SHORTER, "scale-out"))),
    "steady": lambda: rendered(Table(WITH_SHORT, STEADILY)),
    "steadily": lambda: rendered_differences(WITH_SHORT[1:], [row for row in STEADILY if row is not BROKER]),
    "again": lambda: rendered(Table(WITH_SHORT, JOINED_AGAIN)),
    "steady-again": lambda: rendered(Table(WITH_SHORT, STEADILY_AGAIN)),
    "differences-again": lambda: rendered_differences(WITH_SHORT[1:], DIFFERENCES_AGAIN),
    "failures": lambda: of_each_measure(WITH_SHORT, FAILURES),
    "changes": lambda: of_each_measure(WITH_SHORT, CHANGES),
    "defaults": lambda: of_each_measure(COMPARED, DEFAULTS),
    "other-clients": lambda: rendered(Table([OURS, KIP, RANGE, *OTHER_CLIENTS, *GATEWAY], JAVA, bold=False)),
    "backlog": lambda: rendered(Table(COMPARED, BACKLOG, bold=False)),
    "groups": lambda: rendered(Table(WITH_SHORT, GROUPS, bold=False)),
    "upgrade": lambda: rendered(Table(UPGRADED, UPGRADE, bold=False)),
    "skewed": lambda: rendered(Table(LOADED, SKEWED, bold=False)),
    "slow-disk": lambda: rendered(Table([OURS, SHORT], ON_SLOW_DISK, bold=False)),
    "old-broker": lambda: rendered(Table(OLD, ON_OLD_BROKER, bold=False)),
}


@cache
def content(name: str) -> str:
    """Return a table by its name."""
    return TABLES[name]()


def pages() -> dict[str, Callable[[], str]]:
    """Return path -> the function that makes the text, of each page with such tables and files of the same runs."""
    return {
        **{path: partial(_with_tables, path) for path in PAGES},
        **{f"docs/data/{table}": partial(comparison_csv, file) for file, table in REPORTS.items()},
        "docs/experiments-frontier.svg": partial(frontier_picture, SWEEP, "scale-out"),
    }


def _with_tables(path: str) -> str:
    return filled((ROOT / path).read_text(), content)
