"""Grids: which runs there are, which are passed over, and that one that fails does not end the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zkrebalancer.experiments import grid
from zkrebalancer.experiments.grid import Grid
from zkrebalancer.experiments.play import is_dealt
from zkrebalancer.experiments.protocols import PROTOCOLS, TUNINGS
from zkrebalancer.experiments.run import Plan, Result, Run, RunFailedError
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


class Told:
    """What a grid has told."""

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


def test_every_run_has_its_place_and_each_protocol_its_own_broker() -> None:
    plans = make().plans()
    assert [str(plan.folder) for plan in plans] == [
        "central-incremental/crash/tuned-m4-p24-s1",
        "kip848/crash/tuned-m4-p24-s1",
        "central-incremental/crash/tuned-m4-p24-s2",
        "kip848/crash/tuned-m4-p24-s2",
    ]
    assert [plan.broker for plan in plans[:2]] == ["kafka-3.9", "kafka-4"]
    assert {plan.broker for plan in make(broker="kafka-4").plans()} == {"kafka-4"}
    with pytest.raises(ConfigurationError, match="kip848 works on kafka-4 only"):
        make(broker="kafka-3.9").plans()


@pytest.mark.parametrize("failure", [RunFailedError("kafka ended"), OSError("kafka ended")])
def test_what_is_there_is_passed_over_and_a_failure_does_not_end_the_grid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    plans = make().plans()
    run: list[Plan] = []

    def perform(self: Run) -> Result:
        run.append(self.plan)
        if self.plan.cast.seed == 2 and self.plan.protocol.is_central:
            raise failure
        return {"protocol": self.plan.protocol.name, "measures": {}, "doubts": ["late"], "elapsed_s": 1.0}

    monkeypatch.setattr(Run, "perform", perform)
    for plan, is_complete in ((plans[0], True), (plans[1], False)):
        write_result(tmp_path / plan.folder, plan.broker, is_complete=is_complete)
    told = Told()
    results, failures = grid.perform(plans, tmp_path, told)
    assert run == plans[1:]
    assert results[0]["complete"]
    assert [result["protocol"] for result in results[1:]] == ["kip848", "kip848"]
    assert failures == ["central-incremental, crash (tuned, seed 2): kafka ended"]
    assert told.lines[1] == "is there already"
    assert told.lines[3] == "nothing changed, 1 s; not to be trusted: late"
    assert told.lines[5] == "failed: kafka ended"


@pytest.mark.parametrize("failure", [RunFailedError("kafka does not end"), OSError("disk full")])
def test_an_interrupt_ends_the_grid_also_when_cleaning_up_behind_it_fails(
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
        grid.perform(make().plans(), tmp_path, Told())
    assert len(run) == 1


def test_a_result_that_cannot_be_read_or_is_of_another_broker_is_named(tmp_path: Path) -> None:
    (plan,) = make(seeds=[1], protocols=[PROTOCOLS["classic-range"]]).plans()
    file = write_result(tmp_path / plan.folder, "kafka-4")
    others = json.dumps({"complete": True, "details": {"broker": {"kind": "kafka-3.9"}, "members_per_process": 1}})
    for text, told in (
        ("{", "not a result"),
        ("[]", "not a result"),
        (file.read_text(), "is of a run on kafka-4 with 5 members in a process, not on kafka-3.9 with 5"),
        (others, "is of a run on kafka-3.9 with 1 members in a process, not on kafka-3.9 with 5"),
    ):
        file.write_text(text)
        results, failures = grid.perform([plan], tmp_path, Told())
        assert results == []
        assert str(file) in failures[0]
        assert told in failures[0]


def test_a_group_is_dealt_when_everybody_who_should_has_something() -> None:
    owners = {("t", 0): "a", ("t", 1): "b", ("t", 2): "a"}
    wanted = set(owners)
    assert is_dealt(owners, wanted, {"a", "b"})
    assert not is_dealt(owners, wanted, {"a", "b", "c"}), "the newcomer has nothing yet"
    assert not is_dealt(owners, wanted, {"a"}), "somebody who has left has something"
    assert not is_dealt(owners, wanted | {("t", 3)}, {"a", "b"}), "a partition has no owner"
    assert not is_dealt({**owners, ("u", 0): "a"}, wanted, {"a", "b"})
    assert is_dealt({("t", 0): "a"}, {("t", 0)}, {"a", "b"}), "one partition does not go round"


def test_hot_partitions_are_balanced_where_central_is_tuned() -> None:
    central, classic = PROTOCOLS["central-eager"], PROTOCOLS["classic-range"]
    strategies = {
        (tuning, is_skewed): group.strategy
        for tuning in TUNINGS
        for is_skewed in (False, True)
        if (group := central.group(tuning, is_skewed=is_skewed)) is not None and group.mode == EAGER
    }
    assert strategies == {key: "balanced" if key == ("tuned", True) else "sticky" for key in strategies}
    assert len(strategies) == 4
    assert classic.group("tuned", is_skewed=True) is None
