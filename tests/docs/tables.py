"""Which figures the tables of the pages have; `figures` computes them.

After new runs: put their results, one in each line, into `docs/data`, name the files below, run `python -m tests.docs`,
and write what `test_figures` misses in the sentences. The runs in which differences are shown are one report, in one
file; its comparison and the pictures are made of it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial

from tests.docs.figures import (
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

PAGES = ("docs/experiments.md", "docs/results.md")
MAIN = "experiments-2026-11-28-compared.jsonl"  # those of the first page; with other heartbeats: two of each
COMPARISON = "experiments-2026-11-28-comparison.csv"
OTHERS, ZOOKEEPERS = "experiments-2026-11-28-others.jsonl", "experiments-2026-11-28-zookeeper.jsonl"  # any phase
ONE_RUN = "experiments-2026-11-27-others.jsonl"
UNREAD = "experiments-2026-11-27-load.jsonl"  # a member joins while many records are unread

OURS, KIP, RANGE, COOPERATIVE = COMPARED = [
    Column(name, name) for name in ("central-incremental", "kip848", "classic-range", "classic-cooperative")
]
RIVALS = COMPARED[1:]
EAGER = Column("central-eager", "central-eager")
SHORT = Column("kip848, 50 ms", "kip848", "heartbeat-50")
WITH_SHORT = [OURS, KIP, SHORT, RANGE, COOPERATIVE]
NAMED = ["this project, incremental", "KIP-848", "KIP-848, 50 ms", "classic range", "classic cooperative"]
ON_RESULTS = [Column(name, of.protocol, of.settings) for name, of in zip(NAMED, WITH_SHORT, strict=True)]
SERVERS = "[three servers of each kind](experiments.md#with-three-servers-of-each-kind)"
NETWORK = "[round trips of 10 ms](experiments.md#with-a-network-between-hosts)"
UNOWNED = partial(Row, measure="unowned_partition_ms", unit=1_000, digits=1)
KILL, RETURN = "kill-member", "restart-member"
CPU = "cpu_without_producers_ms"

scale_out = partial(Row, file=MAIN, scenario="scale-out")
crash = partial(Row, file=MAIN, scenario="crash")
far = partial(Row, file=MAIN, scenario="far-10ms")
three = partial(Row, file=MAIN, scenario="scale-out-three")

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
    scale_out("time to the first record, ms", "first_record_ms"),
    UNOWNED("three join: partitions without a consumer, s", file=MAIN, scenario="scale-out"),
    *(scale_out(title, measure, digits=digits) for title, measure, digits in DELAYS),
    scale_out("stopped needlessly", "stopped_needlessly"),
    scale_out("requests to ZooKeeper and broker", "requests"),
    scale_out("processor time, ms", CPU),
    *AT_REST,
]
KILLS = [
    crash("killed: settled, ms, median", SETTLED, change=KILL),
    crash("longest", SETTLED, change=KILL, summary=max),
    crash("killed: time to the first record, ms", "first_record_ms", change=KILL),
    UNOWNED("killed: partitions without a consumer, s", file=MAIN, scenario="crash", change=KILL),
    crash("returns: settled, ms, median", SETTLED, change=RETURN),
    crash("longest", SETTLED, change=RETURN, summary=max),
    UNOWNED("returns: partitions without a consumer, s", file=MAIN, scenario="crash", change=RETURN),
    crash("records delivered twice, median of a run", "duplicated"),
    crash("processor time, ms", CPU),
]
FAR, THREE_SERVERS = (
    [
        joins("settled, ms: median", SETTLED),
        joins("longest", SETTLED, summary=max),
        joins("time to the first record, ms", "first_record_ms"),
        UNOWNED("partitions without a consumer, s", file=MAIN, scenario=scenario),
        joins("longest delay, ms", "delay_max_ms"),
        joins("processor time, ms", CPU),
    ]
    for scenario, joins in (("far-10ms", far), ("scale-out-three", three))
)
SUMMARY = [
    THREE_JOIN[0],
    scale_out("a member joins: settled, ms, 95th percentile", SETTLED, summary=late),
    three(f"a member joins, with {SERVERS}: settled, ms, median", SETTLED),
    far(f"a member joins, with {NETWORK}: settled, ms, median", SETTLED),
    scale_out("three join: time to the first record, ms", "first_record_ms"),
    UNOWNED("three join: partitions without an owner, s", file=MAIN, scenario="scale-out"),
    *(scale_out(f"three join: {title}", measure, digits=digits) for title, measure, digits in DELAYS),
    crash("a member is killed: settled, ms", SETTLED, change=KILL),
    UNOWNED("killed: partitions without an owner, s", file=MAIN, scenario="crash", change=KILL),
    crash("it returns: settled, ms", SETTLED, change=RETURN),
    *AT_REST,
]
DIFFERENCES = [
    scale_out("settled, ms", SETTLED),
    scale_out("first record, ms", "first_record_ms"),
    scale_out("partitions without an owner, s", "unowned_partition_s", digits=1),
    *(scale_out(title, measure, digits=digits) for title, measure, digits in DELAYS),
    *AT_REST,
]

INTERVALS = [
    *(
        Column(f"kip848, {ms:,} ms", "kip848", "tuned" if ms == 500 else f"heartbeat-{ms}")
        for ms in (50, 100, 200, 500, 1_000, 3_000)
    ),
    *(Column(f"{of.protocol}, 500 ms", of.protocol) for of in (RANGE, COOPERATIVE)),
    OURS,
]
HEARTBEATS = [
    scale_out("settled, ms", SETTLED),
    scale_out("first record, ms", "first_record_ms"),
    UNOWNED("partitions without a consumer, s", file=MAIN, scenario="scale-out"),
    scale_out("requests per second at rest", "rest_requests_per_s"),
    scale_out("processor time at rest, ms per s", "rest_cpu_ms_per_s"),
]

Changes = list[Callable[..., Row]]
zookeeper = partial(Row, file=ZOOKEEPERS, scenario="zookeeper-failover")
FAILURES: Changes = [
    *(partial(Row, f"`{name}`", file=OTHERS, scenario=name) for name in ("coordinator-failover", "broker-failover")),
    partial(zookeeper, "`zookeeper-failover`, fail-leader", change="fail-leader"),
    partial(zookeeper, "`zookeeper-failover`, lose-quorum", change="lose-quorum"),
    *(partial(Row, f"`{name}`", file=OTHERS, scenario=name) for name in ("churn", "partition-growth", "new-topic")),
    partial(Row, "`scale-out`, 100 members, three joins", file=OTHERS, scenario="scale-out", members=100),
]
pause = partial(Row, file=OTHERS, scenario="pause", settings="default")
PAUSES: Changes = [partial(pause, f"`pause`, pause-{of}", change=f"pause-{of}") for of in ("12s", "40s")]
SINGLE: Changes = [
    *(partial(Row, f"`{name}`", file=ONE_RUN, scenario=name) for name in ("scale-in", "join-storm")),
    *(
        partial(Row, f"`freeze`, {change}", file=ONE_RUN, scenario="freeze", change=change)
        for change in ("freeze-member", "thaw-member")
    ),
    *(
        partial(Row, f"`{name}`", file=ONE_RUN, scenario=name)
        for name in ("rolling-deploy", "rolling-deploy-static", "slow-consumer")
    ),
]
TITLES = {  # the title of a table -> its measure, how many of its units the table's has, and digits
    "Time to settled, ms": (SETTLED, 1, 0),
    "Time to the first record, ms": ("first_record_ms", 1, 0),
    "Partitions without a consumer, s": ("unowned_partition_ms", 1_000, 1),
    "Longest delay, ms": ("delay_max_ms", 1, 0),
    "Processor time of everything, producers included, ms": ("cpu_ms", 1, 0),
}

java = partial(Row, file=OTHERS, scenario="scale-out")
JAVA = [
    java("settled, ms: median of six joins", SETTLED),
    java("longest", SETTLED, summary=max),
    java("time to the first record, ms", "first_record_ms"),
    UNOWNED("partitions without a consumer, s", file=OTHERS, scenario="scale-out"),
    java("delay of 99 % of the records, ms", "delay_p99_ms"),
    java("requests to ZooKeeper and broker", "requests"),
    java("processor time, producers included, ms", "cpu_ms"),
    java("records delivered twice", "duplicated"),
]
OTHER_CLIENTS = [Column(name, name) for name in ("helix", "java-848", "java-cooperative", "gateway-central")]

backlog = partial(Row, file=OTHERS, scenario="backlog")
BACKLOG = [
    backlog("a member joins: settled, ms", SETTLED, change="add-member"),
    backlog("joins: most records not read", "lag_max", change="add-member"),
    backlog("joins: caught up after, s", "lag_back_ms", change="add-member", unit=1_000, digits=1),
    backlog("a member is killed: settled, ms", SETTLED, change=KILL),
    backlog("killed: most records not read", "lag_max", change=KILL),
    backlog("killed: caught up after, s", "lag_back_ms", change=KILL, unit=1_000, digits=1),
    backlog("it returns: settled, ms", SETTLED, change=RETURN),
    backlog("returns: most records not read", "lag_max", change=RETURN),
    backlog("delay of 99 % of the records after the join, ms", "delay_p99_ms", change="add-member"),
    backlog("records delivered twice", "duplicated"),
    backlog("processor time of everything, producers included, s", "cpu_ms", unit=1_000),
]
groups = partial(Row, file=OTHERS, scenario="many-groups", members=60)
GROUPS = [
    groups("each group gets a member: the last one settled, ms", SETTLED, change="add-members"),
    groups("of the groups, median, ms", "group_settled_p50_ms", change="add-members"),
    groups("the first record, ms", "first_record_ms", change="add-members"),
    groups("one group gets another member: settled, ms", SETTLED, change="add-member"),
    groups("processor time of everything, producers included, s", "cpu_ms", unit=1_000, digits=1),
]
upgrade = partial(Row, file=OTHERS, scenario="upgrade")
UPGRADE = [
    upgrade("a replacement: settled, ms", SETTLED),
    UNOWNED("partitions without a consumer, s", file=OTHERS, scenario="upgrade"),
    upgrade("stopped needlessly", "stopped_needlessly"),
    upgrade("processor time of everything, producers included, s", "cpu_ms", unit=1_000),
]
UPGRADED = [OURS, KIP, OTHER_CLIENTS[3], OTHER_CLIENTS[2]]
WHILE_UNREAD = [
    partial(backlog, file=UNREAD)("a member joins: records not read before", "lag_before", change="add-member"),
    partial(backlog, file=UNREAD)("settled, ms", SETTLED, change="add-member"),
]


def of_each_measure(columns: list[Column], rows_of: Callable[[str], Changes], *, bold: bool = True) -> str:
    """Return a table for each measure, with its title; `rows_of` says which rows it has."""
    parts = []
    for title, (measure, unit, digits) in TITLES.items():
        rows = [make(measure=measure, unit=unit, digits=digits) for make in rows_of(title)]
        parts += [f"**{title}**:\n\n{rendered(Table(columns, rows, bold=bold))}"] if rows else []
    return "\n\n".join(parts)


def with_pauses(title: str) -> Changes:
    """Return the rows of a table of failures and pauses, whose own time is given."""
    return FAILURES if title.startswith("Time") else [*FAILURES, *PAUSES]


def without_costs(title: str) -> Changes:
    """Return the rows of a table of runs whose topic mirror was not counted."""
    return [] if title.startswith(("Processor", "Time to the first record")) else SINGLE


TABLES: Mapping[str, Callable[[], str]] = {
    "summary": lambda: rendered(Table(ON_RESULTS, SUMMARY, bold=False)),
    "differences": lambda: rendered_differences(ON_RESULTS[1:], DIFFERENCES),
    "joins": lambda: rendered(Table(WITH_SHORT, THREE_JOIN)),
    "kills": lambda: rendered(Table(WITH_SHORT, KILLS)),
    "three-servers": lambda: rendered(Table(WITH_SHORT, THREE_SERVERS)),
    "far": lambda: rendered(Table(WITH_SHORT, FAR)),
    "heartbeats": lambda: rendered(Table(INTERVALS, HEARTBEATS, turned=True)),
    "failures": lambda: of_each_measure(COMPARED, with_pauses),
    "single": lambda: of_each_measure([*COMPARED, EAGER], without_costs, bold=False),
    "other-clients": lambda: rendered(Table(OTHER_CLIENTS, JAVA)),
    "backlog": lambda: rendered(Table(COMPARED, BACKLOG)),
    "while-unread": lambda: rendered(Table([OURS, KIP, COOPERATIVE], WHILE_UNREAD, bold=False)),
    "groups": lambda: rendered(Table(COMPARED, GROUPS)),
    "upgrade": lambda: rendered(Table(UPGRADED, UPGRADE)),
}


@cache
def content(name: str) -> str:
    """Return a table by its name."""
    return TABLES[name]()


def pages() -> dict[str, Callable[[], str]]:
    """Return path -> what makes the text, of every page that has such tables and of what is made of the same runs."""
    return {
        **{path: partial(_with_tables, path) for path in PAGES},
        f"docs/data/{COMPARISON}": partial(comparison_csv, MAIN),
        "docs/experiments-frontier.svg": partial(frontier_picture, MAIN, "scale-out"),
    }


def _with_tables(path: str) -> str:
    return filled((ROOT / path).read_text(), content)
