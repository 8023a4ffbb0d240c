"""How a worker ends: killed or suspended when it reaches a step for the N-th time. `kill:committed:3`."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass

KILL, FREEZE = "kill", "freeze"
SUSPENDED_SHARE = 0.25
# Failpoints of the agent (`consumer_agent/runtime/failpoints.py`); `before-commit` is of the group's offsets.
AGENT_STEPS = ("after-registration", "before-ack", "after-ack", "before-commit", "before-stop-ack", "after-stop-ack")


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


@dataclass(frozen=True, slots=True)
class Steps:
    """Where members of one kind may end."""

    often: tuple[str, ...]  # reached again and again
    rare: tuple[str, ...]  # once or twice in a life
    suspended: tuple[str, ...]  # at which of them a member is suspended
    most: int  # how often one that is reached often is reached at most
    weight: int = 1  # of the first ones

    def draw(self, random_: random.Random) -> list[Fate]:
        """Return the fates of one worker: it is killed, sometimes after it was suspended."""
        fates = []
        if random_.random() < SUSPENDED_SHARE:
            fates.append(Fate(FREEZE, random_.choice(self.suspended)))
        step = random_.choice([*self.often * self.weight, *self.rare])
        return [*fates, Fate(KILL, step, 1 if step in self.rare else random_.randint(1, self.most))]


# In its sink; `drain` is in `on_revoke`, while a plan waits for it.
SINK = Steps(
    often=("batch", "begun", "written", "committed"),
    rare=("claim", "claimed", "drain", *AGENT_STEPS),
    suspended=("batch", "claim", "begun", "written", "committed"),
    most=6,
)
# A state of its own: around the storing of its copy, after each piece of its answer, around the end of older copies and
# around a reset. All members go back at each kill, so it may not come too often: checkpoints have to complete.
_STATE = ("batch", "contribute", "contributed", "piece", "retire", "retired")
STATE = Steps(
    often=_STATE,
    rare=("reset", "restored", *AGENT_STEPS),
    suspended=("batch", "contribute", "piece", "reset"),
    most=20,
    weight=2,
)
# An unmodified client: around its callbacks, its placing and its commits, too.
CLASSIC = Steps(
    often=(*_STATE, "commit", "after-commit"),
    rare=("reset", "restored", "assign", "assigned", "revoke", "revoked", "place", "placed"),
    suspended=("batch", "contribute", "piece", "reset", "assigned", "revoked", "place"),
    most=30,
    weight=2,
)
BY_KIND = {"region": SINK, "kafka": SINK, "state": STATE, "classic": CLASSIC}


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
