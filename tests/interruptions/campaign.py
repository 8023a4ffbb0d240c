"""Interrupts plans: every shape, mode and schedule, at every step, at every actor, in every way."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.interruptions.shapes import Shape
from tests.interruptions.world import Interruption, PlanWorld, Schedule, Step
from zkrebalancer.protocol.settings import EAGER, INCREMENTAL

MODES = (INCREMENTAL, EAGER)
_CONSUMER = re.compile(rb"(c\d+)-[\d.]+")
_UUID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class BrokenPromiseError(AssertionError):
    """An invariant was broken; the text names the plan, the step and the violation."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan to interrupt."""

    shape: Shape
    mode: str
    schedule: Schedule

    def __str__(self) -> str:
        """Return the plan in one line."""
        return f"{self.shape}; {self.mode}; {self.schedule.name}"


@dataclass(slots=True)
class Tally:
    """Counts of what was tried."""

    plans: int = 0
    steps: int = 0
    runs: Counter[str] = field(default_factory=Counter)
    states: set[bytes] = field(default_factory=set)  # digests of ZooKeeper's content at the steps

    def add(self, other: Tally) -> None:
        """Add the counts of `other`."""
        self.plans += other.plans
        self.steps += other.steps
        self.runs += other.runs
        self.states |= other.states


def plans(shapes: Iterator[Shape]) -> Iterator[Plan]:
    """Return every plan over these shapes."""
    for shape in shapes:
        for mode in MODES:
            for schedule in Schedule:
                yield Plan(shape, mode, schedule)


def interrupt_everywhere(plan: Plan) -> Tally:
    """Run a plan, and again from each of its steps for every way to interrupt it there.

    Raises:
        BrokenPromiseError: an invariant was broken, or the goal was not reached in time.

    """
    tally = Tally(plans=1)
    world = PlanWorld(plan.shape, plan.mode, plan.schedule)
    world.prepare()
    for number, step in enumerate(world.steps(world.is_done)):
        tally.steps += 1
        tally.states.add(_digest(world))
        frozen = world.freeze()
        for interruption, other in _ways(world, step):
            tally.runs[interruption.name] += 1
            _run_interrupted(plan, PlanWorld.thaw(frozen), number, step, interruption, other)
    return tally


def _ways(world: PlanWorld, step: Step) -> Iterator[tuple[Interruption, int]]:
    for interruption in Interruption:
        if interruption is not Interruption.OTHER_DIED:
            yield interruption, step.actor
            continue
        for other in range(len(world.actors())):
            if other != step.actor:
                yield interruption, other


def _run_interrupted(
    plan: Plan, world: PlanWorld, number: int, step: Step, interruption: Interruption, other: int
) -> None:
    try:
        world.interrupt(interruption, step.actor, other)
        world.run(world.is_done)
    except AssertionError as error:
        raise BrokenPromiseError(
            f"{plan}\n  step {number}, actor {step.actor}: {step.call}\n"
            f"  {interruption.name} ({interruption.value}), actor {other}\n  {error}"
        ) from error


def _digest(world: PlanWorld) -> bytes:
    """Return a digest of ZooKeeper's content without the names that differ between runs."""
    hashed = hashlib.sha256()
    for path, node in sorted(world.cluster.zk.nodes.items()):
        for text in (path.encode(), node.content):
            hashed.update(_UUID.sub(b"uuid", _CONSUMER.sub(rb"\1", text)) + b"\0")
    return hashed.digest()[:8]
