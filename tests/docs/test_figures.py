"""Published runs are sound, tables follow from them, and sentences have their figures."""

from __future__ import annotations

import csv
import json
import re
import statistics
from collections import Counter
from dataclasses import replace

import pytest

from tests.docs import figures, tables
from tests.docs.figures import (
    DATA,
    SETTLED,
    SHOWN,
    Column,
    Row,
    Table,
    filled,
    rendered,
    rendered_differences,
    values,
)
from tests.docs.sentences import AT_REST, PUBLISHED, SENTENCES, every, of_group
from tests.docs.tables import COOPERATIVE, KIP, MAIN, OLD_BROKER, OURS, WITH_SHORT
from tests.style.sources import ROOT
from zkrebalancer.experiments.protocols import PROTOCOLS
from zkrebalancer.experiments.scenarios import SCENARIOS
from zkrebalancer.pipeline.report.statistics import ALPHA, difference

PAGES = {path: (ROOT / path).read_text() for path in (*tables.PAGES, "docs/ideas/when-to-use.md")}


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


@pytest.mark.parametrize("page", SENTENCES)
def test_sentences_have_the_figures_of_the_runs(page: str) -> None:
    text = " ".join(PAGES[page].split())
    assert [words for words in SENTENCES[page]() if words not in text] == []
