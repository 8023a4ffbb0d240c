"""The page of the pipeline has what the model gives, beside what was measured."""

from __future__ import annotations

from statistics import median

from tests.style.sources import ROOT
from zkrebalancer.pipeline.fleet.replay import AS_RECORDED, SETTINGS, Setting, Step, replay

PAGE = ROOT / "docs/how-to/pipeline.md"
SEEDS = 10  # "medians of ten draws"
APART_US = 60_000_000
ANSWER_MS = 5.0


def joins(first: int, count: int) -> list[Step]:
    """Return joins of so many members, one after the other, of which `first` have joined before."""
    numbers = range(first, first + count)
    return [Step(n * APART_US, f"m{n:02}", "m", joins=True, partitions=120, mode="incremental") for n in numbers]


def spent_s(setting: Setting, seed: int) -> float:
    """Return the time without an owner while three members join a group of ten."""
    both, before = (replay(steps, setting, ANSWER_MS, str(seed)) for steps in (joins(0, 13), joins(0, 10)))
    return both.unowned_partition_s - before.unowned_partition_s


def test_the_page_has_what_the_model_gives_beside_what_was_measured() -> None:
    """In `SETTINGS`, change a heartbeat, or in the model a rule: the page's table is of others."""
    text = PAGE.read_text()
    for setting in SETTINGS:
        if setting.name == AS_RECORDED or setting.name.startswith("Kafka"):
            title = "incremental" if setting.name == AS_RECORDED else setting.name.removeprefix("Kafka, ")
            assert f"| {title} | {median(spent_s(setting, seed) for seed in range(SEEDS)):.1f} s |" in text
