from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from tests.support.pipeline_run import COMPARED, FEW, Made
from tests.support.run_folders import FakeRun
from zkrebalancer.observe.measures import measure
from zkrebalancer.observe.reading import EventFiles, Problems
from zkrebalancer.pipeline.report import compare, output
from zkrebalancer.pipeline.report.compare import Comparison
from zkrebalancer.pipeline.report.folders import find_runs
from zkrebalancer.pipeline.report.sentences import LAG, MEASURES, OF_A_CHANGE
from zkrebalancer.protocol.errors import ConfigurationError


def test_runs_are_compared_and_losses_come_first(made: Made) -> None:
    found, document, out = made.comparison, made.document, made.out
    assert (document["runs"], document["page"]) == (len(COMPARED), str(out / output.PAGE))
    assert "loses" in {verdict["outcome"] for verdict in document["verdicts"]}

    rows = pd.read_parquet(out / "runs.parquet").to_dict("records")
    assert len(rows) == len(COMPARED) == len(pd.read_csv(out / "runs.csv"))
    runs = {(row["protocol"], row["seed"]): row for row in rows if row["broker"] == "kafka-3.9"}
    ours = runs["central-incremental", 2]
    assert (ours["settled_ms"], ours["unowned_partition_s"], ours["lost"], ours["overlaps"]) == (2_020.0, 4.04, 0, 0)
    assert ours["delay_max_ms"] == pytest.approx(2_025, rel=0.01)
    folder = made.runs / "kafka-3.9" / "central-incremental" / "crash" / "default-m3-p6-s2"
    told, _steps = measure(EventFiles(folder / "events", Problems()))
    assert ours["load_peak"] == told["load_peak"] == pytest.approx(4 / 3, rel=0.01), (
        "one of two members has four of six partitions"
    )
    assert not runs["classic-range", 8]["trusted"]
    first_ms = ours["first_record_ms"]
    assert first_ms == told["first_record_ms"] == pytest.approx(2_025, rel=0.01)

    rows = pd.read_csv(out / "comparison.csv").to_dict("records")
    settled = {
        (row["protocol"], row["broker"]): (row["n"], row["median"], row["outcome"])
        for row in rows
        if row["measure"] == "settled_ms" and row["settings"] == "default"
    }
    assert {row["measure"] for row in rows} >= {"settled_ms", "delay_max_ms", "lost", "moved_above_least", "overlaps"}
    assert settled["kip848", "kafka-3.9"] == (7, 540.0, "loses")
    assert settled["classic-range", "kafka-3.9"] == (7, 6_040.0, "wins")
    n, median, outcome = settled["kip848", "kafka-4"]
    assert (n, median) == (2, pytest.approx((700 + 150_000) / 2)), "what did not settle counts with its limit"
    assert pd.isna(outcome), "another broker is another setting"

    page = (out / output.PAGE).read_text()
    lost = page[page.index("Where this project loses") : page.index("How often it wins")]
    assert "time to settled: 2,040 ms against kip848 540 ms (ours 3.78 times worse)" in lost
    assert "classic-range" not in lost
    assert '<td class="bad">540 ms<small>' in page
    before = page[: page.index("Where this project loses")]
    assert (
        "kafka-3.9: time to settled 2,040 ms for central-incremental; kip848 540 ms (ours 3.78 times worse; 7 pairs"
        in before
    )
    assert "<td>7</td><td>2,040 ms</td><td>2,070 ms</td><td>2,070 ms</td>" in before, "half, 95 % and the longest"
    assert "classic-range, seed 8: the machine stalled" in page
    every = page[page.index("Default settings</h3>") : page.index("Versions</h3>")]
    protocols = ("central-incremental", "classic-range", "kip848")
    assert f"<td>member group.protocol</td>{''.join(f'<td>{one}</td>' for one in protocols)}" in every
    assert "<td>broker kind</td><td>kafka-3.9</td>" in every
    assert page.count("<svg") == 16  # the primary measure; of each setting: runs, delays, owners
    assert all(fetching not in page for fetching in ('href="http', "src=", "@import"))

    curve = next(iter(found.curves.values()))
    peaks = curve.groupby("protocol")["delay_max_ms"].max()
    assert peaks["classic-range"] > peaks["central-incremental"] > peaks["kip848"]
    assert {rows["partition"].nunique() for rows in next(iter(found.timelines.values())).values()} == {6}


def test_published_results_give_the_same_primary_comparison(made: Made, tmp_path: Path) -> None:
    """In `results.changes`, round or leave out a change: what others read again is not what was published."""
    results = []
    for path in sorted(made.runs.rglob("result.json")):
        figures, steps = measure(EventFiles(path.parent / "events", Problems()))
        results.append(json.dumps({**json.loads(path.read_text()), "steps": steps, "measures": figures}))
    (tmp_path / "published.jsonl").write_text("\n".join(results))
    again = compare.compare(None, find_runs([tmp_path / "published.jsonl"]), [], tmp_path)
    primary, primary_again = (
        {(verdict.setting, verdict.rival): verdict for verdict in found.verdicts if verdict.is_primary}
        for found in (made.comparison, again)
    )
    assert primary == primary_again
    assert {rival for _setting, rival in primary} == {"classic-range", "kip848", "kip848, 50 ms", "kip848, 200 ms"}
    assert {one.pairs for one in primary.values() if one.setting.heartbeat} == {len(FEW)}
    assert again.changes_ms == made.comparison.changes_ms
    assert again.first_records_ms == made.comparison.first_records_ms


def test_a_report_without_trusted_runs_says_so(tmp_path: Path) -> None:
    FakeRun("kip848", 1, trusted=False).write(tmp_path / "runs")
    runs = find_runs([tmp_path / "runs"])
    output.write(Comparison(runs, [], pd.DataFrame({"run": [runs[0].name]}), {}, [], {}, {}, {}, {}), tmp_path)
    page = (tmp_path / output.PAGE).read_text()
    assert "0 runs of 0 protocols under 0 settings. 1 more are not trusted and left out" in page
    assert output.NOTHING_COMPARED in page
    assert "Where this project loses" not in page
    assert "kip848, seed 1: the machine stalled" in page
    assert pd.read_csv(tmp_path / "comparison.csv").empty


def test_kinds_of_change_are_told_apart_as_the_run_is_told() -> None:
    """In `_of_each_kind`, take the median of all: time without an owner is a sum, as the page says."""
    times = {
        "settled_ms": [10.0, 30.0, 5.0],
        "first_record_ms": [1.0, 3.0, 2.0],
        "unowned_partition_s": [4.0, 6.0, 9.0],
        **{key: [0.0, 8.0, 1.0] for key in LAG},
    }
    found = compare._of_each_kind(pd.DataFrame({"name": ["kill", "kill", "return"], **times}))
    assert found["settled_ms after kill"] == 20.0
    assert found["unowned_partition_s after kill"] == 10.0
    assert found["unowned_partition_s after return"] == 9.0
    assert found["lag_max after kill"] == 4.0


KINDS = ("kill", "return")


def test_a_folder_without_runs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"has no run: no result\.json below it"):
        find_runs([tmp_path])


def test_each_run_counts_once(tmp_path: Path) -> None:
    folder = FakeRun("kip848", 1).write(tmp_path)
    assert len(find_runs([tmp_path, tmp_path])) == 1
    with pytest.raises(ConfigurationError, match=r"is below .* and .*; name only one"):
        find_runs([tmp_path, folder.parent])


def test_runs_with_different_processes_are_not_combined(tmp_path: Path) -> None:
    FakeRun("classic-range", 1).write(tmp_path)
    folder = FakeRun("classic-range", 1, seed=2).write(tmp_path)
    result = json.loads((folder / "result.json").read_text())
    result["details"]["members_per_process"] = 1
    (folder / "result.json").write_text(json.dumps(result))
    with pytest.raises(ConfigurationError, match=r"had 5 members in a process, .* had 1 .*: compare them separately"):
        find_runs([tmp_path])
    (folder / "result.json").write_text(json.dumps(result | {"trusted": False}))
    assert len(find_runs([tmp_path])) == 2, "runs that are not trusted do not matter"


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("versions", {"kafka": "3.9.1", "zkrebalancer": "2"}, "versions"),
        ("details", {"run": {"pause": 4}}, "run pause"),
        ("details", {"quiet_s": 6}, "run quiet_s"),
        ("details", {"topic_mirror": {"interval_s": 0.2}}, "topic_mirror interval_s"),
        ("details", {"broker": {"kind": "kafka-3.9", "linger": "0"}}, "broker linger"),
    ],
)
def test_runs_with_other_settings_or_versions_are_not_pooled(
    tmp_path: Path, key: str, value: dict[str, object], named: str
) -> None:
    FakeRun("kip848", 1).write(tmp_path)
    result = json.loads((FakeRun("kip848", 1, seed=2).write(tmp_path) / "result.json").read_text())
    result[key] = {**result[key], **value}
    (tmp_path / "other.jsonl").write_text(json.dumps(result) + "\n")
    shutil.rmtree(tmp_path / "kafka-3.9" / "kip848" / "crash" / "default-m3-p6-s2")
    with pytest.raises(ConfigurationError, match=rf"differ in {named}: compare them separately"):
        find_runs([tmp_path / "kafka-3.9", tmp_path / "other.jsonl"])


def test_protocols_whose_servers_had_other_options_are_not_compared(tmp_path: Path) -> None:
    """In `find_runs`, leave `_require_same_servers`: a server without the optimizing compiler is taken for a rival."""
    for protocol, settings, options in (("central-incremental", "tuned", "-a"), ("kip848", "heartbeat-50", "-a -b")):
        folder = FakeRun(protocol, 1, settings=settings).write(tmp_path)
        result = json.loads((folder / "result.json").read_text())
        result["details"]["run"] = {"options of each JVM": options}
        (folder / "result.json").write_text(json.dumps(result))
    with pytest.raises(ConfigurationError, match=r"had -a, .* had -a -b for JVMs: compare them separately"):
        find_runs([tmp_path])
    (folder / "result.json").write_text(json.dumps(result | {"scenario": "scale-out"}))
    assert len(find_runs([tmp_path])) == 2, "other scenarios may have other servers"


def test_an_invalid_result_is_an_error(tmp_path: Path) -> None:
    folder = FakeRun("kip848", 1).write(tmp_path)
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(result | {"members": "3"}))
    with pytest.raises(ConfigurationError, match=r"result\.json: members is missing or of another type"):
        find_runs([tmp_path])
    (folder / "result.json").write_text(json.dumps(result | {"details": {}}))
    with pytest.raises(ConfigurationError, match=r"result\.json: details of broker .* missing"):
        find_runs([tmp_path])


def test_an_interrupted_run_is_not_trusted(tmp_path: Path) -> None:
    folder = FakeRun("kip848", 1).write(tmp_path)
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(result | {"complete": False}))
    assert find_runs([tmp_path])[0].doubts == ("it did not finish",)


def test_the_first_table_keeps_kinds_of_change_apart(tmp_path: Path) -> None:
    """In `_changes_ms`, combine all changes of a run: the median of a kill and a return is of neither."""
    FakeRun("kip848", 1).write(tmp_path)
    (run,) = find_runs([tmp_path])
    changes = pd.DataFrame({"run": [run.name] * 3, "name": ["kill", "return", "kill"], "settled_ms": [7.0, 1.0, 9.0]})
    found = compare._changes_ms(changes, [run])
    assert found == {
        run.setting: {
            "settled_ms after kill": {"kip848": [7.0, 9.0]},
            "settled_ms after return": {"kip848": [1.0]},
        }
    }
    of_one_kind = compare._changes_ms(changes[changes["name"] == "kill"], [run])
    assert of_one_kind == {run.setting: {"settled_ms": {"kip848": [7.0, 9.0]}}}


def test_values_are_paired_by_seed_and_repeated_seeds_in_their_order(tmp_path: Path) -> None:
    """In `_values`, number the runs of a protocol instead of those with one seed."""
    wanted: dict[str, list[list[int]]] = {"central-incremental": [[1, 2, 3], [3]], "kip848": [[3, 2], [2, 4]]}
    for protocol, folders in wanted.items():
        for place, seeds in enumerate(folders):
            for seed in seeds:
                FakeRun(protocol, 100 * seed + place, seed).write(tmp_path / str(place))
    runs = find_runs([tmp_path / "0", tmp_path / "1"])
    frame = pd.DataFrame({"run": [run.name for run in runs], **{name: [1.0] * len(runs) for name in MEASURES}})
    changes = pd.DataFrame({"run": [run.name for run in runs], "name": "kill-member"})
    (by_protocol,) = compare._values(frame, changes, runs).values()
    found = {protocol: sorted(of["settled_ms"]) for protocol, of in by_protocol.items()}
    assert found == {
        "central-incremental": [(1, 0), (2, 0), (3, 0), (3, 1)],
        "kip848": [(2, 0), (2, 1), (3, 0), (4, 0)],
    }


def test_kinds_of_change_are_told_apart_with_other_heartbeats_too(tmp_path: Path) -> None:
    """In `_values`, look only for kinds of the setting itself: a rival is compared with ours without heartbeats."""
    for protocol, settings in (("central-incremental", "tuned"), ("kip848", "heartbeat-50")):
        FakeRun(protocol, 1, settings=settings).write(tmp_path)
    runs = find_runs([tmp_path])
    frame = pd.DataFrame({"run": [run.name for run in runs], **{name: [1.0] * len(runs) for name in MEASURES}})
    of_each = [{"run": run.name, "name": kind, **dict.fromkeys(OF_A_CHANGE, 2.0)} for run in runs for kind in KINDS]
    values = compare._values(frame, pd.DataFrame(of_each), runs)
    for by_protocol in values.values():
        for of_protocol in by_protocol.values():
            assert "settled_ms" not in of_protocol
            assert [of_protocol[f"settled_ms after {kind}"] for kind in KINDS] == [{(1, 0): 2.0}] * 2
