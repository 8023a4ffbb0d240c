"""Reports from published results, without events and without Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
    assert "with a line at the median; a logarithmic scale." in page
    row = pd.read_csv(tmp_path / "out" / "runs.csv").iloc[0]
    assert (row["settled_ms"], row["unowned_partition_s"], row["lost"]) == (510.0, 1.02, 0)
    assert row[["rss_mb", "rest_cpu_ms_per_s", "cpu_ms", "lag_max"]].isna().all()
    assert {verdict.outcome for verdict in found.verdicts if verdict.measure == "settled_ms"} == {"wins"}


def test_costs_are_those_of_results_with_and_without_events(tmp_path: Path) -> None:
    spent = {"requests": 5, "zookeeper_bytes": 70, "cpu_ms": 9.5, "cpu_without_producers_ms": 8.5}
    at_rest = {"rest_requests_per_s": 3.0, "rest_zookeeper_bytes_per_s": 40.0, "rest_cpu_ms_per_s": 7.0, "rss_mb": 50.0}
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
    assert "with a line at the median; a scale that is linear near 0 and logarithmic beyond." in page
