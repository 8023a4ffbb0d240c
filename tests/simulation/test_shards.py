"""Coordinators share shards of groups, and their number changes: every promise holds for each shard."""

from __future__ import annotations

import pytest

from tests.simulation.__main__ import STORY_LINES, tell
from tests.simulation.plan import SHARD_WEIGHTS, make_plan
from tests.simulation.run import run
from tests.simulation.shrink import shrink
from tests.support import examples

SEEDS = examples.count() // 3


@pytest.mark.drawn
@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_promise_holds_for_each_shard(seed: int) -> None:
    _result, failure = run(make_plan(seed, SHARD_WEIGHTS))

    assert failure is None, "\n".join(tell(shrink(failure), STORY_LINES))
