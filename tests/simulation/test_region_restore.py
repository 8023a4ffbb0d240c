"""Regions whose tree is lost and put back: each record is in one state, once, wherever the restore is killed."""

from __future__ import annotations

from collections import Counter

from tests.simulation.region_restore import RESTORES, RestoredRun
from tests.support import examples

SEEDS = examples.count() // 8


def test_no_records_effect_is_lost_or_doubled_by_a_restore() -> None:
    seen = Counter[str]()
    for seed in range(SEEDS):
        run = RestoredRun(seed)
        run.run()
        seen += run.seen
    assert seen["restores complete"] == seen["restores"] == RESTORES * SEEDS
    assert seen["restores killed"] >= SEEDS
    assert seen["checkpoints"] >= SEEDS
