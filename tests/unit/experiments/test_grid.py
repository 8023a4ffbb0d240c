"""Grids: their runs, which of them are skipped, and that a failed run does not end the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from zkrebalancer.cli.main import zkrebalancer
from zkrebalancer.experiments import grid
from zkrebalancer.experiments.grid import Grid
from zkrebalancer.experiments.plan import Plan
from zkrebalancer.experiments.play import is_assigned
from zkrebalancer.experiments.protocols import PROTOCOLS
from zkrebalancer.experiments.run import Result, Run, RunFailedError
from zkrebalancer.experiments.scenarios import SCENARIOS
from zkrebalancer.protocol.errors import ConfigurationError
from zkrebalancer.protocol.settings import EAGER


def make(**changes: Any) -> Grid:
    values: dict[str, Any] = {
        "protocols": [PROTOCOLS["central-incremental"], PROTOCOLS["kip848"]],
        "scenarios": [SCENARIOS["crash"]],
        "tunings": ["tuned"],
        "members": 4,
        "partitions": 24,
        "seeds": range(1, 3),
        "broker": None,
        "members_per_process": 5,
    }
    return Grid(**{**values, **changes})


class RecordedShow:
    """Records what a grid shows."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def begin(self, number: int, title: str) -> None:
        self.lines.append(f"{number} {title}")

    def detail(self, line: str) -> None:
        pass

    def end(self, line: str) -> None:
        self.lines.append(line)


def write_result(folder: Path, broker: str, *, is_complete: bool = True) -> Path:
    folder.mkdir(parents=True)
    file = folder / "result.json"
    details = {"broker": {"kind": broker}, "members_per_process": 5}
    file.write_text(json.dumps({"complete": is_complete, "details": details}))
    return file


def test_every_run_has_its_folder_and_each_protocol_its_own_broker() -> None:
    plans = make().plans()
    assert [sorted(str(plan.folder) for plan in of_seed) for of_seed in (plans[:2], plans[2:])] == [
        ["central-incremental/crash/tuned-m4-p24-s1", "kip848/crash/tuned-m4-p24-s1"],
        ["central-incremental/crash/tuned-m4-p24-s2", "kip848/crash/tuned-m4-p24-s2"],
    ]
    assert {(plan.protocol.name, plan.broker) for plan in plans} == {
        ("central-incremental", "kafka-3.9"),
        ("kip848", "kafka-4"),
    }
    assert {plan.broker for plan in make(broker="kafka-4").plans()} == {"kafka-4"}
    with pytest.raises(ConfigurationError, match="kip848 runs on kafka-4 only"):
        make(broker="kafka-3.9").plans()


def test_an_upgrade_leaves_out_protocols_without_one() -> None:
    chosen = [PROTOCOLS["classic-range"], PROTOCOLS["kip848"]]
    plans = make(protocols=chosen, scenarios=[SCENARIOS["upgrade"]], seeds=[1]).plans()
    assert [plan.protocol.name for plan in plans] == ["kip848"]


def test_settings_of_heartbeats_leave_out_protocols_without_any() -> None:
    plans = make(tunings=["tuned", "heartbeat-50"], seeds=[1]).plans()
    assert sorted((plan.tuning, plan.protocol.name) for plan in plans) == [
        ("heartbeat-50", "kip848"),
        ("tuned", "central-incremental"),
        ("tuned", "kip848"),
    ]


def test_seeds_draw_the_order_of_settings_too() -> None:
    """In `Grid._drawn`, draw for one tuning after the other: `tuned` always meets the machine before the heartbeats."""
    plans = make(tunings=["tuned", "heartbeat-50"], seeds=range(40)).plans()
    orders = [tuple((plan.tuning, plan.protocol.is_central) for plan in plans[at : at + 3]) for at in range(0, 120, 3)]
    assert len(set(orders)) == 6, "each order of the three runs of a seed"
    assert plans == make(tunings=["tuned", "heartbeat-50"], seeds=range(40)).plans()


def test_seeds_draw_the_order_of_protocols() -> None:
    """In `Grid.plans`, keep the order: the first protocol always meets the machine after a scenario's change."""
    plans = make(seeds=range(40)).plans()
    firsts = [plan.protocol.name for plan in plans[::2]]
    assert 10 < firsts.count("kip848") < 30
    assert plans == make(seeds=range(40)).plans(), "an interrupted grid goes on where it was"
    assert all(
        {one.cast.seed, other.cast.seed} == {one.cast.seed} for one, other in zip(plans[::2], plans[1::2], strict=True)
    )


def run_command(monkeypatch: pytest.MonkeyPatch, out: Path, *protocols: str) -> tuple[list[tuple[str, str]], str]:
    """Return which runs a command plans, as (protocol, tuning), and what it says."""
    plans: list[Plan] = []

    def perform(given: list[Plan], *_rest: object) -> tuple[list[Result], list[str]]:
        plans.extend(given)
        return [], []

    monkeypatch.setattr(grid, "perform", perform)
    named = [word for name in protocols for word in ("--protocol", name)]
    arguments = ["--scenario", "crash", "--settings", "tuned", "--repeat", "20", "--out", str(out), *named]
    outcome = CliRunner().invoke(zkrebalancer, ["experiment", "run", *arguments])
    return [(plan.protocol.name, plan.tuning) for plan in plans], outcome.output


def test_a_protocol_can_have_settings_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Grid._drawn`, put the pairs behind the others: a rival with other heartbeats always runs last."""
    names = ("central-incremental", "kip848", "kip848@heartbeat-50", "kip848@tuned")
    runs, _said = run_command(monkeypatch, tmp_path, *names)
    three = [("central-incremental", "tuned"), ("kip848", "tuned"), ("kip848", "heartbeat-50")]
    by_seed = [runs[place : place + 3] for place in range(0, len(runs), 3)]
    assert len(by_seed) == 20
    assert all(sorted(of_seed) == sorted(three) for of_seed in by_seed)
    assert {of_seed.index(three[2]) for of_seed in by_seed} == {0, 1, 2}
    assert set(run_command(monkeypatch, tmp_path, names[2])[0]) == {three[2]}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("kip848@slow", "kip848@slow: kip848 has the settings default, tuned, heartbeat-20"),
        ("central-incremental@heartbeat-50", "central-incremental has the settings default, tuned"),
        ("kip@tuned", "'kip' is not one of"),
        ("all@tuned", "all@tuned: name the protocol, or give --settings"),
    ],
)
def test_settings_that_a_protocol_does_not_have_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    runs, said = run_command(monkeypatch, tmp_path, name)
    assert runs == []
    assert message in " ".join(said.split())


@pytest.mark.parametrize("failure", [RunFailedError("kafka ended"), OSError("kafka ended")])
def test_complete_runs_are_skipped_and_a_failure_does_not_end_the_grid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    plans = sorted(make().plans(), key=lambda plan: (plan.cast.seed, plan.protocol.name))
    run: list[Plan] = []

    def perform(self: Run) -> Result:
        run.append(self.plan)
        if self.plan.cast.seed == 2 and self.plan.protocol.is_central:
            raise failure
        return {"protocol": self.plan.protocol.name, "measures": {}, "doubts": ["late"], "elapsed_s": 1.0}

    monkeypatch.setattr(Run, "perform", perform)
    for plan, is_complete in ((plans[0], True), (plans[1], False)):
        write_result(tmp_path / plan.folder, plan.broker, is_complete=is_complete)
    show = RecordedShow()
    results, failures = grid.perform(plans, tmp_path, show)
    assert run == plans[1:]
    assert results[0]["complete"]
    assert [result["protocol"] for result in results[1:]] == ["kip848", "kip848"]
    assert failures == ["central-incremental, crash (tuned, seed 2): kafka ended"]
    assert show.lines[1] == "already finished"
    assert show.lines[3] == "nothing changed, 1 s; untrusted: late"
    assert show.lines[5] == "failed: kafka ended"


@pytest.mark.parametrize("failure", [RunFailedError("kafka does not end"), OSError("disk full")])
def test_an_interrupt_ends_the_grid_even_if_the_cleanup_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    run: list[Plan] = []

    def perform(self: Run) -> Result:
        run.append(self.plan)
        try:
            raise KeyboardInterrupt
        finally:
            clean_up()

    def clean_up() -> None:
        try:
            raise failure
        except (RunFailedError, OSError) as error:
            raise RunFailedError(str(error)) from None

    monkeypatch.setattr(Run, "perform", perform)
    with pytest.raises(RunFailedError):
        grid.perform(make().plans(), tmp_path, RecordedShow())
    assert len(run) == 1


def test_an_invalid_result_or_one_of_another_broker_is_an_error(tmp_path: Path) -> None:
    (plan,) = make(seeds=[1], protocols=[PROTOCOLS["classic-range"]]).plans()
    file = write_result(tmp_path / plan.folder, "kafka-4")
    others = json.dumps({"complete": True, "details": {"broker": {"kind": "kafka-3.9"}, "members_per_process": 1}})
    for text, message in (
        ("{", "not a result"),
        ("[]", "not a result"),
        (file.read_text(), "is of a run on kafka-4 with 5 members in a process, not on kafka-3.9 with 5"),
        (others, "is of a run on kafka-3.9 with 1 members in a process, not on kafka-3.9 with 5"),
    ):
        file.write_text(text)
        results, failures = grid.perform([plan], tmp_path, RecordedShow())
        assert results == []
        assert str(file) in failures[0]
        assert message in failures[0]


def test_a_group_is_assigned_when_every_member_owns_something() -> None:
    owners = {("t", 0): "a", ("t", 1): "b", ("t", 2): "a"}
    wanted = set(owners)
    assert is_assigned(owners, wanted, {"a", "b"})
    assert not is_assigned(owners, wanted, {"a", "b", "c"}), "the new member owns nothing yet"
    assert not is_assigned(owners, wanted, {"a"}), "a member that has left owns something"
    assert not is_assigned(owners, wanted | {("t", 3)}, {"a", "b"}), "a partition has no owner"
    assert not is_assigned({**owners, ("u", 0): "a"}, wanted, {"a", "b"})
    assert is_assigned({("t", 0): "a"}, {("t", 0)}, {"a", "b"}), "one partition is not enough for two"


def test_a_skewed_load_uses_balanced_if_central_is_tuned() -> None:
    central, classic = PROTOCOLS["central-eager"], PROTOCOLS["classic-range"]
    strategies = {
        (tuning, is_skewed): group.strategy
        for tuning in central.settings
        for is_skewed in (False, True)
        if (group := central.group(tuning, is_skewed=is_skewed)) is not None and group.mode == EAGER
    }
    assert strategies == {key: "balanced" if key == ("tuned", True) else "sticky" for key in strategies}
    assert len(strategies) == 4
    assert classic.group("tuned", is_skewed=True) is None
