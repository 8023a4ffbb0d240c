"""How a worker ends: killed or suspended when it reaches a step for the N-th time. `kill:committed:3`."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass

KILL, FREEZE = "kill", "freeze"
MAX_COUNT = 6  # how often a step is reached at most before it ends its worker
# Steps of a worker in its sink, in their order; `drain` is in `on_revoke`, while a plan waits for it.
SINK_STEPS = ("batch", "claim", "claimed", "begun", "written", "committed", "drain")
# Failpoints of the agent (`consumer_agent/runtime/failpoints.py`); `before-commit` is of the group's offsets.
AGENT_STEPS = ("after-registration", "before-ack", "after-ack", "before-commit", "before-stop-ack", "after-stop-ack")
# Steps of a member with a state of its own: before and after its copy is stored, before and after it is restored.
STATE_STEPS = ("batch", "contribute", "contributed", "reset", "restored")
STATE_ZOMBIE_STEPS = ("batch", "contribute", "reset")
MAX_STATE_COUNT = 20  # all go back at each kill, so it may not come too often
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


def draw(random_: random.Random) -> list[Fate]:
    """Return the fates of one worker: it is killed, sometimes after it was suspended."""
    steps = [*SINK_STEPS, *AGENT_STEPS]
    fates = []
    if random_.random() < 0.25:
        fates.append(Fate(FREEZE, random_.choice(ZOMBIE_STEPS), 1))
    step = random_.choice(steps)
    return [*fates, Fate(KILL, step, 1 if step in RARE else random_.randint(1, MAX_COUNT))]


def draw_for_state(random_: random.Random) -> list[Fate]:
    """Return the fates of a member with a state of its own."""
    fates = []
    if random_.random() < 0.25:
        fates.append(Fate(FREEZE, random_.choice(STATE_ZOMBIE_STEPS), 1))
    step = random_.choice([*STATE_STEPS[:3] * 3, *STATE_STEPS[3:], *AGENT_STEPS])  # checkpoints have to complete
    is_rare = step in RARE or step in {"reset", "restored"}
    return [*fates, Fate(KILL, step, 1 if is_rare else random_.randint(1, MAX_STATE_COUNT))]


def of_agent(fates: Sequence[Fate]) -> Fate | None:
    """Return the fate that the agent itself fulfils."""
    return next((fate for fate in fates if fate.step in AGENT_STEPS), None)


class Fates:
    """The fate of this process."""

    def __init__(self, fates: Sequence[Fate]) -> None:
        self._waiting = list(fates)
        self._left = fates[0].count if fates else 0

    def reach(self, step: str) -> None:
        """Kill or suspend this process if that is its fate here and now."""
        if not self._waiting or self._waiting[0].step != step:
            return
        self._left -= 1
        if self._left == 0:
            fate = self._waiting.pop(0)
            self._left = self._waiting[0].count if self._waiting else 0
            print(f"reached {fate}", flush=True)  # noqa: T201  # its log, which the campaign reads
            os.kill(os.getpid(), signal.SIGKILL if fate.action == KILL else signal.SIGSTOP)
