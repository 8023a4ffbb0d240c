"""The demo's script as plain data: the moves of one group, in order, with their targets.

It is written before anything runs, so the number of steps is known, and the same seed gives the same script.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal

MoveKind = Literal["join", "leave", "kill", "freeze", "thaw", "grow", "create", "kill-leader", "restart-coordinator"]
MIN_MEMBERS = 2
FIRST_TOPIC = "demo-orders"
PATTERN = "^demo-"


@dataclass(frozen=True, slots=True)
class Move:
    """One move; `target` is a consumer or a topic ("" for coordinators), `partitions` the topic's new number."""

    kind: MoveKind
    group: str
    target: str = ""
    partitions: int = 0

    @property
    def title(self) -> str:
        """A description for people."""
        return _TITLES[self.kind].format(target=self.target, partitions=self.partitions)


_TITLES: dict[MoveKind, str] = {
    "join": "{target} joins",
    "leave": "{target} leaves",
    "kill": "{target} is killed (kill -9)",
    "freeze": "{target} is suspended until its session expires",
    "thaw": "{target} resumes, finds its partitions lost and joins again",
    "grow": "{target} grows (partitions: {partitions})",
    "create": "{target} is created (partitions: {partitions}) and matches the pattern",
    "kill-leader": "the leading coordinator is killed (kill -9), a standby takes over",
    "restart-coordinator": "the killed coordinator comes back as a standby",
}


@dataclass(slots=True)
class _Cast:
    """The consumers of one group while its script is written."""

    group: str
    random: Random
    present: list[str]
    count: int = 0

    def join(self) -> Move:
        self.count += 1
        self.present.append(f"{self.group}-{self.count}")
        return Move("join", self.group, self.present[-1])

    def lose(self, kind: MoveKind) -> list[Move]:
        """Remove a member; if none would be left to take over, another joins first."""
        moves = [] if len(self.present) >= MIN_MEMBERS else [self.join()]
        target = self.random.choice(self.present)
        self.present.remove(target)
        return [*moves, Move(kind, self.group, target)]


def write_script(group: str, members: int, partitions: int, new_topic: str, random: Random) -> list[Move]:
    """Return the moves of one group.

    `members` (at least MIN_MEMBERS) consumers join one by one. FIRST_TOPIC starts with `partitions` and grows by a
    quarter; `new_topic` gets as many partitions as that adds.
    """
    cast = _Cast(group, random, [])
    added = max(1, partitions // 4)
    moves = [cast.join() for _ in range(members)]
    moves += cast.lose("leave")
    moves += cast.lose("kill")
    moves += cast.lose("freeze")
    moves.append(Move("thaw", group, moves[-1].target))
    cast.present.append(moves[-1].target)
    moves.append(Move("grow", group, FIRST_TOPIC, partitions + added))
    moves.append(Move("create", group, new_topic, added))
    moves += [Move("kill-leader", group), cast.join(), Move("restart-coordinator", group)]
    return moves
