"""Reports from published results, without events and without Spark."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.support.run_folders import FakeRun
from zkrebalancer.observe.measures import measure
from zkrebalancer.observe.reading import EventFiles, Problems
from zkrebalancer.pipeline.report import output, pictures, results
from zkrebalancer.pipeline.report.compare import Comparison, compare
from zkrebalancer.pipeline.report.folders import Setting, find_runs
from zkrebalancer.protocol.errors import ConfigurationError

PAIRS = range(1, 8)
SETTING = Setting("crash", "default", 3, 6, "kafka-3.9")
BACKLOG = {
    "delivered_per_s": [5_000, 9_000],
    "lag_max_per_s": [4_000, 600],
    "delivered_per_s_min": 4_000,
    "lag_max": 4_000,
}
NEVER = {**BACKLOG, "lag_back_ms": None}


def published(run: FakeRun, folder: Path, of_steps: Mapping[str, Any], record_bytes: int | None) -> str:
    """Return the result of an invented run as a line."""
    written = run.write(folder)
    result = json.loads((written / "result.json").read_text())
    figures, steps = measure(EventFiles(written / "events", Problems()))
    figures |= dict.fromkeys(("lost", "duplicated", "out_of_order", "overlaps"), 0)
    result["details"]["record_bytes"] = record_bytes
    return json.dumps({**result, "steps": [{**step, **of_steps} for step in steps], "measures": figures}) + "\n"


def report_of(lines: list[str], folder: Path) -> tuple[Comparison, str]:
    file = folder / "published.jsonl"
    file.write_text("".join(lines))
    out = folder / "out"
    out.mkdir()
    found = compare(None, find_runs([file]), [], out)
    output.write(found, out)
    return found, (out / output.PAGE).read_text()


def test_published_results_are_compared_as_their_runs_would_be(tmp_path: Path) -> None:
    runs = [FakeRun("central-incremental", 500 + 10 * seed, seed) for seed in PAIRS]
    runs += [FakeRun("kip848", 2_000 + 10 * seed, seed) for seed in PAIRS]
    lines = [published(run, tmp_path, {}, None) for run in runs]
    found, page = report_of([*lines, published(FakeRun("kip848", 1, 8, trusted=False), tmp_path, {}, None)], tmp_path)
    settled = (
        "time to settled 540 ms for central-incremental; kip848 2,040 ms (ours 3.78 times better; 7 pairs, p 0.016)"
    )
    assert settled in page
    assert "kip848, seed 8: the machine stalled" in page
    assert "15 runs are known from published results only" in page
    assert page.count("<svg") == 2, "the primary measure, and all runs of the setting"
    assert "at the median; bars: its interval of 95%, each for itself, from 6 runs on; a logarithmic scale." in page
    row = pd.read_csv(tmp_path / "out" / "runs.csv").iloc[0]
    assert (row["settled_ms"], row["unowned_partition_s"], row["lost"]) == (510.0, 1.02, 0)
    assert row[["rss_mb", "rest_cpu_ms_per_s", "cpu_ms", "lag_max"]].isna().all()
    assert {verdict.outcome for verdict in found.verdicts if verdict.measure == "settled_ms"} == {"wins"}


def test_costs_are_those_of_results_with_and_without_events(tmp_path: Path) -> None:
    spent = {"requests": 5, "zookeeper_bytes": 70, "cpu_ms": 9.5, "cpu_without_producers_ms": 8.5}
    at_rest = {"rest_requests_per_s": 3.0, "rest_zookeeper_bytes_per_s": 40.0, "rest_cpu_ms_per_s": 7.0}
    at_rest |= {"rest_cpu_member_ms_per_s": 2.0, "rss_mb": 50.0}
    result = json.loads(published(FakeRun("kip848", 100), tmp_path / "runs", spent, None))
    result["measures"] |= at_rest
    file = next((tmp_path / "runs").rglob("result.json"))
    file.write_text(json.dumps(result))
    (tmp_path / "published.jsonl").write_text(json.dumps(result))
    for place in (tmp_path / "runs", tmp_path / "published.jsonl"):
        (row,) = results.costs(find_runs([place])).drop(columns="run").to_dict("records")
        assert pd.isna(row.pop("cpu_all_ms")), "the same with the producers"
        assert row == {"requests": 5.0, "zookeeper_bytes": 70.0, "cpu_ms": 8.5, **at_rest}
    for step in result["steps"]:
        del step["cpu_without_producers_ms"]  # as in older results
    file.write_text(json.dumps(result))
    (older,) = results.costs(find_runs([tmp_path / "runs"])).to_dict("records")
    assert pd.isna(older["cpu_ms"])
    assert older["cpu_all_ms"] == 9.5


def test_a_group_that_reads_a_backlog_is_not_at_rest(tmp_path: Path) -> None:
    """In `_costs`, take costs at rest of every run: those of `backlog` are of 500,000 records a second."""
    result = json.loads(published(FakeRun("kip848", 100), tmp_path / "runs", {"requests": 5}, 100))
    result["measures"] |= dict.fromkeys(results.AT_REST, 7.0)
    (tmp_path / "published.jsonl").write_text(json.dumps(result))
    (row,) = results.costs(find_runs([tmp_path / "published.jsonl"])).to_dict("records")
    assert row["requests"] == 5.0
    assert all(pd.isna(row[name]) for name in results.AT_REST)


def published_with_heartbeats(folder: Path) -> list[str]:
    """Return results of this project and of a rival with 50 ms, 500 ms and, resting longer between changes, 3 s."""
    pauses = {
        ("central-incremental", "tuned"): 500,
        ("kip848", "tuned"): 2_000,
        ("kip848", "heartbeat-50"): 900,
        ("kip848", "heartbeat-3000"): 4_000,
    }
    lines = []
    for (protocol, settings), pause_ms in pauses.items():
        for seed in PAIRS:
            run = FakeRun(protocol, pause_ms + 10 * seed, seed, settings=settings)
            result = json.loads(published(run, folder, {}, None))
            result["details"]["quiet_s"] = 6 if settings == "heartbeat-3000" else 2
            result["details"]["topic_mirror"] = {"interval_s": 1} if protocol == "central-incremental" else None
            lines.append(json.dumps(result) + "\n")
    return lines


def test_rivals_with_other_heartbeats_are_compared_with_our_tuned_runs(tmp_path: Path) -> None:
    """In `_beside_ours`, return the values as they are: the quickest setting of a rival is compared with nothing."""
    found, page = report_of(published_with_heartbeats(tmp_path), tmp_path)
    primary = {verdict.rival: verdict for verdict in found.verdicts if verdict.is_primary}
    assert primary.keys() == {"kip848", "kip848, 50 ms", "kip848, 3000 ms"}
    assert {verdict.p for verdict in primary.values()} == {3 * 2 / 2**7}, "all of them count"
    assert {verdict.outcome for verdict in primary.values()} == {"wins"}
    rows = pd.read_csv(tmp_path / "out" / "comparison.csv").query("measure == 'settled_ms'")
    columns = ["protocol", "settings", "median", "against", "against_settings", "pairs"]
    assert rows[columns].astype(object).where(rows[columns].notna(), "").to_numpy().tolist() == [
        ["central-incremental", "tuned", 540.0, "", "", ""],
        ["kip848", "tuned", 2_040.0, "central-incremental", "tuned", 7.0],
        ["kip848", "heartbeat-50", 940.0, "central-incremental", "tuned", 7.0],
        ["kip848", "heartbeat-3000", 4_040.0, "central-incremental", "tuned", 7.0],
    ]
    head = page[: page.index("Where this project loses")]
    assert (
        "crash, heartbeat-50 settings, 3 members, 6 partitions, kafka-3.9: time to settled 540 ms for "
        "central-incremental, tuned; kip848, 50 ms 940 ms (ours 1.74 times better; 7 pairs, p 0.047)"
    ) in head
    assert "<td>settled</td><td>kip848, 50 ms</td><td>7</td><td>940 ms</td>" in head
    assert "<th>central-incremental, tuned</th><th>kip848, 50 ms</th>" in page
    assert re.search(r"<text [^>]*>kip848, 50 ms</text>", head), "in the picture, too"
    assert "<td>against kip848, 50 ms</td>" in page
    assert output.TUNED_BESIDE.format("central-incremental") in page
    assert "<td>topic_mirror interval_s</td><td>1</td><td>-</td>" in page
    assert "<td>run quiet_s</td><td>2</td><td>2</td>" in page


def test_runs_that_rest_longer_are_not_compared_in_what_rest_dilutes(tmp_path: Path) -> None:
    """In `_beside_ours`, take every measure: a longer rest has more requests, and fewer of its records are late."""
    found, _page = report_of(published_with_heartbeats(tmp_path), tmp_path)
    compared: dict[str, set[str]] = {}
    for verdict in found.verdicts:
        compared.setdefault(verdict.rival, set()).add(verdict.measure)
    assert {"settled_ms", "first_record_ms", "delay_p99_ms"} <= compared["kip848, 50 ms"] == compared["kip848"]
    assert compared["kip848, 50 ms"] - compared["kip848, 3000 ms"] == {"delay_p50_ms", "delay_p99_ms", "delay_max_ms"}


def test_the_time_to_the_first_record_is_beside_the_time_to_settled(tmp_path: Path) -> None:
    """In `_first_sentences` and `_every_change`, leave it out: where settling is quick, records may yet be late."""
    first = {"central-incremental": 700, "kip848": 600}
    lines = []
    for protocol, first_ms in first.items():
        for seed in PAIRS:
            line = published(FakeRun(protocol, 100, seed), tmp_path, {"first_record_ms": first_ms}, None)
            result = json.loads(line)
            result["measures"]["first_record_ms"] = first_ms
            steps = [{**step, "name": name} for name in ("kill-member", "return") for step in result["steps"][1:]]
            for number, step in enumerate(steps, 2):
                step.update({"number": number} | ({"first_record_ms": None} if (seed, number) == (1, 3) else {}))
            lines.append(json.dumps({**result, "steps": [result["steps"][0], *steps]}) + "\n")
    _found, page = report_of(lines, tmp_path)
    head = page[: page.index("Where this project loses")]
    for change in ("kill-member", "return"):
        assert f"time to settled after {change} 100 ms for central-incremental; kip848 100 ms (equal; " in head
        first_record = f"first record after {change} 700 ms for central-incremental; kip848 600 ms (no difference"
        assert f"). The time to the {first_record}" in head
    settled = "<td>100 ms</td>" * 3
    assert f"<td>settled after kill-member</td><td>kip848</td><td>7</td>{settled}<td>600 ms</td>" in head
    fewer = "<td>600 ms<small>of 6 changes</small></td>"
    assert f"<td>settled after return</td><td>kip848</td><td>7</td>{settled}{fewer}" in head


def test_too_few_runs_are_no_proof_that_nothing_is_lost(tmp_path: Path) -> None:
    """In `_not_shown`, say only that no loss is shown: with two runs, none can be."""
    lines = []
    for protocol, pause_ms in (("central-incremental", 500), ("kip848", 100)):
        lines += [published(FakeRun(protocol, pause_ms + seed, seed), tmp_path, {}, None) for seed in (1, 2)]
    found, page = report_of(lines, tmp_path)
    count = len(found.verdicts)
    worse = sum(verdict.behind > 0 for verdict in found.verdicts)
    assert worse > 0
    assert "kip848 102 ms (no difference is shown; 2 pairs, too few to test)." in page
    assert f"No loss is shown. In {worse} of {count} comparisons, this project's median is worse, but" in page
    assert f"{count} of {count} comparisons have fewer than 6 pairs and can show nothing, a loss neither." in page
    rows = pd.read_csv(tmp_path / "out" / "comparison.csv")
    assert rows["p"].isna().all()
    assert set(rows["outcome"].dropna()) == {"open"}


def test_in_backlog_the_lag_comes_first(tmp_path: Path) -> None:
    lines = []
    for seed in PAIRS:
        for protocol, of_steps in (("central-incremental", {**BACKLOG, "lag_back_ms": 900 + seed}), ("kip848", NEVER)):
            lines.append(published(FakeRun(protocol, 100, seed, scenario="backlog"), tmp_path, of_steps, 100))
    found, page = report_of(lines, tmp_path)
    (primary,) = (verdict for verdict in found.verdicts if verdict.is_primary)
    assert primary.measure == "lag_back_ms"
    assert primary.other_values == (2_000.0,) * len(PAIRS), "the time until the next step"
    head = page[: page.index("Where this project loses")]
    assert "time until the group has caught up 904 ms for central-incremental; kip848 2,000 ms" in head
    assert "<td>caught up</td><td>kip848</td><td>7</td><td>2,000 ms</td>" in head
    assert "<td>records delivered in the poorest second</td>" in page
    assert page.count("<svg") == 3, "also records per second, and the lag"
    assert output.THROUGHPUT_CAPTION in page


def test_a_report_begins_with_one_sentence_and_one_picture(tmp_path: Path) -> None:
    """In `_headline`, say each comparison first: who opens the page reads for minutes before seeing what came out."""
    _found, page = report_of(published_with_heartbeats(tmp_path), tmp_path)
    begin = page[page.index("</h1>") + len("</h1>") :].lstrip()
    sentence, rest = begin.split("</p>", 1)
    assert sentence == (
        "<p>In the time to settled, this project is better in 3 of 3 comparisons, worse in 0, and in 0 no difference "
        "is shown."
    )
    assert rest.lstrip().startswith("<figure><svg")
    assert (page.count("not significant"), page.count(output.NOT_SHOWN)) == (0, 3), "once for each table"


def test_the_first_picture_has_all_heartbeats_of_a_setting_in_one_panel() -> None:
    """In `_primary`, keep settings apart: a report with six heartbeats begins with six panels of this project."""

    def of(count: int, value: float) -> dict[str, dict[tuple[int, int], float]]:
        return {"settled_ms": {(seed, 0): value + seed for seed in range(count)}}

    tuned, short = (replace(SETTING, settings=settings) for settings in ("tuned", "heartbeat-50"))
    other = replace(SETTING, scenario="seldom")
    ours = of(7, 100)
    values = {
        tuned: {"central-incremental": ours, "kip848": of(7, 500)},
        short: {"central-incremental": ours, "kip848": of(7, 90)},
        other: {"central-incremental": of(2, 1), "kip848": of(2, 1)},
    }
    figure = pictures.draw_primary(values, pictures.colours(["central-incremental", "kip848"]))
    assert figure is not None
    (axis,) = figure.axes
    names = [label.get_text() for label in axis.get_yticklabels()]
    assert names == ["kip848, 50 ms", "kip848", "central-incremental"]
    widths = Counter(line.get_linewidth() for line in axis.get_lines())
    assert widths[7] == len(names), "an interval each"
    alone = pictures.draw_primary({other: values[other]}, pictures.colours(["central-incremental", "kip848"]))
    assert alone is not None
    assert len(alone.axes) == 1


@pytest.mark.parametrize(("lowest", "scale"), [(70.0, "log"), (0.0, "symlog")])
def test_the_first_picture_begins_near_the_lowest_value(lowest: float, scale: str) -> None:
    """In `_draw_measure`, begin at 0: a logarithmic axis then begins at 1e-300, and all dots are in one place."""
    values = {SETTING: {"kip848": {"settled_ms": {(1, 0): 500.0}}, "classic": {"settled_ms": {(1, 0): lowest}}}}
    figure = pictures.draw_primary(values, pictures.colours(["kip848", "classic"]))
    assert figure is not None
    (axis,) = figure.axes
    begin, end = axis.get_xlim()
    assert axis.get_xscale() == scale
    assert lowest / 2 - 1 < begin < end < 1_000


def test_the_poorest_second_counts_with_many_records_only(tmp_path: Path) -> None:
    line = published(FakeRun("kip848", 100), tmp_path, {**BACKLOG, "lag_back_ms": 0}, None)
    found, _page = report_of([line], tmp_path)
    (values,) = found.values.values()
    assert values["kip848"]["lag_max"] == {(1, 0): 4_000.0}
    assert values["kip848"]["lag_back_ms"] == {(1, 0): 0.0}
    assert "delivered_per_s_min" not in values["kip848"]


def test_what_is_no_result_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "published.jsonl"
    file.write_text(published(FakeRun("kip848", 100), tmp_path, {}, None) + "{}\n")
    with pytest.raises(ConfigurationError, match=r"published\.jsonl:2: protocol is missing"):
        find_runs([file])
    file.write_text("")
    with pytest.raises(ConfigurationError, match=r"published\.jsonl has no run"):
        find_runs([file])


@pytest.mark.parametrize(
    "name", ["unowned_partition_ms", "moved", "moved_least", "requests", "cpu_ms", "lag_back_ms", "number"]
)
def test_a_result_with_a_step_that_lacks_a_figure_is_named(tmp_path: Path, name: str) -> None:
    result = json.loads(published(FakeRun("kip848", 100), tmp_path, NEVER, None))
    file = tmp_path / "published.jsonl"
    file.write_text(json.dumps(result))
    (run,) = find_runs([file])
    assert run.steps == result["steps"]
    del result["steps"][1][name]
    file.write_text(json.dumps(result))
    with pytest.raises(ConfigurationError, match=rf"published\.jsonl:1.*: {name} is missing"):
        find_runs([file])


def test_steps_of_another_form_are_named(tmp_path: Path) -> None:
    folder = FakeRun("kip848", 100).write(tmp_path)
    result = json.loads((folder / "result.json").read_text())
    for name, value in (("steps", {"1": 1}), ("steps", [1]), ("measures", [1])):
        (folder / "result.json").write_text(json.dumps({**result, name: value}))
        with pytest.raises(ConfigurationError, match=r"result\.json: \w+ is missing or of another type"):
            find_runs([tmp_path])


def test_a_result_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "result.json").mkdir()
    with pytest.raises(ConfigurationError, match=r"result\.json: cannot be read \(Is a directory\)"):
        find_runs([tmp_path])


def test_a_run_counts_once_wherever_it_is(tmp_path: Path) -> None:
    """In `find_runs`, look at folders only: with a file of the same runs, every run would be two."""
    result = json.loads(published(FakeRun("kip848", 100), tmp_path / "runs", {}, None))
    ones = [{**result, "started_at": f"2026-11-27T20:00:0{second}+00:00"} for second in (1, 2)]
    (tmp_path / "runs/kafka-3.9/kip848/crash/default-m3-p6-s1/result.json").write_text(json.dumps(ones[0]))
    one, both, other = (tmp_path / f"{name}.jsonl" for name in ("one", "both", "other"))
    one.write_text(json.dumps(ones[0]))
    both.write_text("\n".join(map(json.dumps, ones)))
    other.write_text(json.dumps(ones[1]))
    assert len(find_runs([tmp_path / "runs", other])) == len(find_runs([both])) == 2, "the same seed, again"
    (tmp_path / "link").symlink_to(one)
    assert len(find_runs([one, tmp_path / "link"])) == 1
    for paths in ([one, both], [tmp_path / "runs", one]):
        with pytest.raises(
            ConfigurationError, match=r" and .* are the same run, started at .*01\+00:00; leave one out"
        ):
            find_runs(paths)


def test_the_owners_are_drawn_until_the_slowest_has_settled() -> None:
    """In `timeline_end_s`, end with the quickest: the others' last changes are left out."""
    timelines = {name: pd.DataFrame({"to_s": [1.0, to_s]}) for name, to_s in (("quick", 6.0), ("slow", 9.0))}
    assert output.timeline_end_s(timelines) == 9.0
    assert output.timeline_end_s({"endless": pd.DataFrame({"to_s": [500.0]})}) == output.TIMELINE_S


def test_settings_are_sorted_by_number(tmp_path: Path) -> None:
    lines = [published(FakeRun("kip848", 100, members=members), tmp_path, {}, None) for members in (20, 3)]
    file = tmp_path / "published.jsonl"
    file.write_text("".join(lines))
    assert [run.setting.members for run in find_runs([file])] == [3, 20]


def test_a_picture_with_zeros_says_how_it_is_scaled(tmp_path: Path) -> None:
    run = FakeRun("kip848", 100, scenario="backlog")
    _found, page = report_of([published(run, tmp_path, {**BACKLOG, "lag_back_ms": 0}, 100)], tmp_path)
    assert "from 6 runs on; a scale that is linear near 0 and logarithmic beyond." in page
