"""How a worker ends: killed or suspended when it reaches a step for the N-th time. `kill:committed:3`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

KILL, FREEZE = "kill", "freeze"
MAX_COUNT = 6  # how often a step is reached at most before it ends its worker
# Steps of a worker in its sink, in their order; `drain` is in `on_revoke`, while a plan waits for it.
SINK_STEPS = ("batch", "claim", "claimed", "begun", "written", "committed", "drain")
# Failpoints of the agent (`consumer_agent/runtime/failpoints.py`); `before-commit` is of the group's offsets.
AGENT_STEPS = ("after-registration", "before-ack", "after-ack", "before-commit", "before-stop-ack", "after-stop-ack")
RARE = frozenset({"claim", "claimed", "drain", *AGENT_STEPS})  # reached once or twice in a life
ZOMBIE_STEPS = ("batch", "claim", "begun", "written", "committed")


@dataclass(frozen=True, slots=True)
class Fate:
    """What happens to a worker at a step."""

    action: str
    step: str
    count: int = 1

    def __str__(self) -> str:
        """Return the form of the command line."""
        return f"{self.action}:{self.step}:{self.count}"


def parse(text: str) -> Fate:
    """Return the fate that `str` has written."""
    action, step, count = text.split(":")
    return Fate(action, step, int(count))


def draw(random_: random.Random, *, with_drains: bool) -> list[Fate]:
    """Return the fates of one worker: it is killed, sometimes after it was suspended.

    `with_drains`: whether partitions are taken from it while it lives.
    """
    steps = [*SINK_STEPS, *AGENT_STEPS]
    if not with_drains:
        steps = [step for step in steps if step != "drain" and "stop" not in step]
    fates = []
    if random_.random() < 0.25:
        fates.append(Fate(FREEZE, random_.choice(ZOMBIE_STEPS), 1))
    step = random_.choice(steps)
    return [*fates, Fate(KILL, step, 1 if step in RARE else random_.randint(1, MAX_COUNT))]


def of_agent(fates: Sequence[Fate]) -> Fate | None:
    """Return the fate that the agent itself fulfils."""
    return next((fate for fate in fates if fate.step in AGENT_STEPS), None)
