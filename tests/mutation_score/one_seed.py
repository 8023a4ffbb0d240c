"""Short runs of the simulation to try on a mutant: one seed each."""

from __future__ import annotations

import pytest

from tests.simulation.plan import HOSTILE_WEIGHTS, make_plan
from tests.simulation.run import run


@pytest.mark.parametrize("seed", range(8))
def test_friendly(seed: int) -> None:
    assert run(make_plan(seed))[1] is None


@pytest.mark.parametrize("seed", range(6))
def test_hostile(seed: int) -> None:
    assert run(make_plan(seed, HOSTILE_WEIGHTS))[1] is None
