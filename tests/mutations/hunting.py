"""Runs the simulation, seed by seed, with a deliberate bug in the code."""

from __future__ import annotations

from dataclasses import dataclass

from tests.mutations.bugs import MUTATIONS
from tests.mutations.editing import edited
from tests.simulation.plan import make_plan
from tests.simulation.region_restore import RestoredRun
from tests.simulation.run import run


@dataclass(frozen=True, slots=True)
class Hunt:
    """The result of one mutation: the first seed that found it and the broken invariant, or None and ""."""

    number: int  # in MUTATIONS
    seed: int | None
    invariant: str

    @property
    def is_as_stated(self) -> bool:
        """Whether it was found, or, for a redundant rule, not found."""
        return (self.seed is None) == bool(MUTATIONS[self.number].redundant)


def hunt(number: int, seeds: int | None = None) -> Hunt:
    """Run seeds from 0 on with a mutation until one fails; `seeds` None: the mutation's number."""
    mutation = MUTATIONS[number]
    with edited(mutation.edits):
        for seed in range(seeds or mutation.seeds):
            broken = _broken_in_region(seed) if mutation.in_regions else _broken(seed, mutation.hostile)
            if broken is not None:
                return Hunt(number, seed, broken)
    return Hunt(number, None, "")


def _broken(seed: int, hostile: str) -> str | None:
    _result, failure = run(make_plan(seed, hostile.split()))
    return None if failure is None else failure.name


def _broken_in_region(seed: int) -> str | None:
    try:
        RestoredRun(seed).run()
    except AssertionError as error:
        return str(error).partition(":")[0]
    return None
