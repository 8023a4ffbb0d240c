"""`zkrebalancer assign --strategy balanced`: lag, rate, racks and options as input; costs and reasons as output."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.assignment.conftest import Run

INPUT: dict[str, Any] = {
    "topics": {"orders": 4, "payments": 1, "unread": 1},
    "members": {
        "c1": {"topics": ["orders"], "owned": {"orders": [0, 1]}, "rack": "r1"},
        "c2": {"topics": ["orders", "payments"], "rack": "r2", "capacity": 2.0},
    },
    "lag": {"orders": [900, 300, 300], "nowhere": [1]},
    "rate": {"orders": [0, 0, 0, 5.5]},
    "racks": {"orders": [["r1"], ["r1"], ["r2"], ["r2"]]},
}


def test_json_contains_the_objective_and_the_reasons(run: Run) -> None:
    result = run("--json", "--reasons", strategy="balanced", content=json.dumps(INPUT))
    assert (result.exit_code, result.stderr) == (0, "")
    output = json.loads(result.stdout)
    assert output["assignment"] == {"c1": {"orders": [1, 2]}, "c2": {"orders": [0, 3], "payments": [0]}}
    assert (output["kept"], output["moved"]) == (1, 1)
    assert output["unassigned"] == {"unread": [{"partition": 0, "reason": "no subscriber"}]}
    assert output["objective"]["cost"]["total"] >= output["objective"]["bound"]["total"] > 0
    assert output["objective"]["gap"] >= 0
    assert output["reasons"]["payments"] == ["only subscriber"]
    assert output["reasons"]["orders"] == ["least loaded", "kept", "least loaded", "least loaded"]


def test_reasons_are_printed_only_on_request(run: Run) -> None:
    output = json.loads(run("--json", strategy="balanced", content=json.dumps(INPUT)).stdout)
    assert "reasons" not in output
    assert "objective" not in json.loads(run("--json", strategy="sticky", content=json.dumps(INPUT)).stdout)


def test_human_readable_output(run: Run) -> None:
    result = run("--reasons", strategy="balanced", content=json.dumps(INPUT))
    assert result.exit_code == 0
    assert "highest load " in result.stdout
    assert "kept: orders 1" in result.stdout
    assert "no subscriber: unread 0" in result.stdout


def test_options_take_effect(run: Run) -> None:
    content = json.dumps(INPUT | {"options": {"max_partitions_per_member": 2, "max_moves_per_rebalance": 0}})
    output = json.loads(run("--json", strategy="balanced", content=content).stdout)
    assert output["assignment"]["c1"] == {"orders": [0, 1]}
    assert output["unassigned"]["orders"] == [{"partition": 2, "reason": "no room at any subscriber"}]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"options": {"move_costs": 1}}, "options.move_costs: is unknown; known are peak_cost, "),
        (
            {"options": {"move_cost": "high"}},
            'options.move_cost: must be a number from 0 to 2147483647, not "high"',
        ),
        ({"rate": {"orders": [-1]}}, "rate.orders[0]: must be a number of at least 0, not -1"),
        ({"rate": [1]}, "rate: must be an object, not a list"),
    ],
)
def test_an_input_error_is_one_line_with_the_path(fields: dict[str, Any], message: str, run: Run) -> None:
    result = run("--json", strategy="balanced", content=json.dumps(INPUT | fields))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"Error: {message}")
    assert result.stderr.count("\n") == 1


def test_reasons_of_another_strategy_are_an_error(run: Run) -> None:
    result = run("--reasons", strategy="range", content=json.dumps(INPUT))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "Error: --reasons works with balanced only, not with range\n"
