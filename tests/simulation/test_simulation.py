"""The runs that every change has to pass; a seed can be repeated, and a failure shrunk and printed."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.mutations.bugs import MUTATIONS
from tests.mutations.editing import edited
from tests.simulation.__main__ import STORY_LINES, main, tell
from tests.simulation.plan import WEIGHTS, make_plan
from tests.simulation.run import run
from tests.simulation.shrink import shrink
from tests.support import examples

SEEDS = examples.count()
SEEDS_OF_ONE_TEST = 10
FIND_RARE_BUGS = (33, 77)  # the first seeds that find a deliberate bug which no earlier seed finds, up to 120


@pytest.mark.drawn
@pytest.mark.parametrize(
    "seeds",
    [FIND_RARE_BUGS, *(range(first, first + SEEDS_OF_ONE_TEST) for first in range(0, SEEDS, SEEDS_OF_ONE_TEST))],
    ids=lambda seeds: f"from {seeds[0]}",
)
def test_every_promise_holds(seeds: Sequence[int]) -> None:
    for seed in seeds:
        plan = make_plan(seed)
        result, failure = run(plan)
        assert failure is None, "\n".join(tell(shrink(failure), STORY_LINES))
        assert result.records > 0
        assert result.events["rebalance_finished"] > 0
        assert result.faults == Counter(fault.kind for fault in plan.faults)


def test_everything_goes_wrong_in_these_runs() -> None:
    assert {fault.kind for seed in range(SEEDS) for fault in make_plan(seed).faults} == WEIGHTS.keys()


def test_a_seed_is_a_run() -> None:
    stories = [run(make_plan(4), tells=True)[0].story for _ in range(2)]
    assert len(stories[0]) > 1_000
    assert stories[0] == stories[1]


def test_a_failure_is_made_shorter_and_told() -> None:
    hasty = next(mutation for mutation in MUTATIONS if mutation.name == "a start does not wait for the stop")
    with edited(hasty.edits):
        failures = (run(make_plan(seed))[1] for seed in range(hasty.seeds))
        failure = next(failure for failure in failures if failure is not None)
        shorter = shrink(failure)
    assert shorter.name == failure.name == "two holders"
    assert len(shorter.plan.faults) < len(failure.plan.faults) / 2
    told = list(tell(shorter, STORY_LINES))
    assert told[-2].startswith(f"seed {failure.plan.seed}, {len(shorter.plan.faults)} faults, at ")
    assert "is held by" in told[-1]
    assert sum(" FAULT " in line for line in told) >= len(shorter.plan.faults)


def test_the_command_line_tells_what_was_done() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--seeds", "3"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("3 seeds, ")
    assert "faults: " in done.stdout
    assert "transitions taken: " in done.stdout


def test_a_count_that_makes_no_sense_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--seeds", "0"])
    assert capsys.readouterr().err.endswith("--seeds has to be at least 1\n")
