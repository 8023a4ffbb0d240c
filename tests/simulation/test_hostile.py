"""The hostile profile: what the code stands, it stands in these runs; what it does not stand is in one table."""

from __future__ import annotations

import pytest

from tests.simulation import limits
from tests.simulation.__main__ import STORY_LINES, tell
from tests.simulation.known import KNOWN_DEFECTS, WORKING
from tests.simulation.plan import HOSTILE_WEIGHTS, TINY_LIMITS, make_plan
from tests.simulation.run import run
from tests.simulation.shrink import shrink

SEEDS = 20
SEEDS_OF_A_DEFECT = 60


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_promise_holds_in_a_hostile_world(seed: int) -> None:
    _result, failure = run(make_plan(seed, WORKING))

    assert failure is None, "\n".join(tell(shrink(failure), STORY_LINES))


@pytest.mark.long
@pytest.mark.parametrize("kind", KNOWN_DEFECTS)
def test_a_known_defect_is_found(kind: str) -> None:
    assert any(run(make_plan(seed, [kind]))[1] for seed in range(SEEDS_OF_A_DEFECT)), f"{kind}: delete its line"


def test_the_table_names_kinds_that_there_are() -> None:
    assert KNOWN_DEFECTS.keys() < HOSTILE_WEIGHTS.keys()


def test_a_limit_that_is_nowhere_is_an_error() -> None:
    with pytest.raises(AssertionError, match="no module has a limit MAX_NONSENSE"), limits.set_to({"MAX_NONSENSE": 1}):
        pass


def test_every_limit_is_somewhere() -> None:
    with limits.set_to(TINY_LIMITS):
        pass
