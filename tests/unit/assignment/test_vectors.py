"""Known cases of Kafka's assignors, run through the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.assignment.conftest import Run

VECTORS = Path(__file__).parents[2] / "vectors" / "assignors.json"
CASES = json.loads(VECTORS.read_text())["cases"]
EXPECTATIONS = {"expect", "sizes", "member_sizes", "kept", "must_hold"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['strategy']}: {case['name']}")
def test_vector(case: dict[str, Any], run: Run) -> None:
    expected = case.keys() - {"name", "strategy", "input"}
    assert expected, "a case without an expectation proves nothing"
    assert expected <= EXPECTATIONS, "a case with an expectation that this test does not check"

    outcome = run("--json", strategy=case["strategy"], content=json.dumps(case["input"]))
    assert outcome.exit_code == 0, outcome.stderr
    output = json.loads(outcome.stdout)
    assignment = output["assignment"]
    member_sizes = {name: sum(map(len, topics.values())) for name, topics in assignment.items()}
    assert output["strategy"] == case["strategy"]
    assert assignment.keys() == case["input"]["members"].keys()
    if "expect" in case:
        assert assignment == case["expect"]
    if "sizes" in case:
        assert sorted(member_sizes.values()) == sorted(case["sizes"])
    if "member_sizes" in case:
        assert member_sizes == case["member_sizes"]
    if "kept" in case:
        assert output["kept"] == case["kept"]
    for name, topics in case.get("must_hold", {}).items():
        for topic, partitions in topics.items():
            assert set(partitions) <= set(assignment[name].get(topic, []))
