"""The members of a group: each lives until its fate is fulfilled, and is followed by another one."""

from __future__ import annotations

import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.exactly_once import fates
from tests.exactly_once.fates import FREEZE, KILL, Fate
from tests.exactly_once.groups import Way
from zkrebalancer.localcluster import faults
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.server import Program

MAX_LIFE_S = 25.0  # then it is killed wherever it is
THAW_AFTER_S = (0.5, 6.0)  # after the end of the session of a suspended member
CONTROL_FATES = {
    "naive": [Fate(KILL, "committed", 2)],
    "offsets-outside": [Fate(KILL, "committed", 2)],
    "fence-off": [Fate(FREEZE, "batch", 2), Fate(KILL, "batch", 40)],  # the first batch claims
    "kafka-outside": [Fate(KILL, "outside", 2)],
    "no-reset": [Fate(KILL, "batch", 20)],
}
UNTIL_MAX_LIFE = [Fate(KILL, "batch", 1_000_000)]
WITH_SURVIVORS = ("fence-off", "no-reset")  # controls whose other members go on meanwhile


@dataclass(slots=True)
class Slot:
    """One place in a group, its present member, and how it goes on."""

    program: Program
    file: Path
    fates: list[Fate] = field(default_factory=list)
    began_s: float = 0.0
    thaw_at_s: float | None = None  # it is suspended until then
    was_thawed: bool = False


@dataclass(slots=True)
class Members:
    """All members of one group; `tick` lets their fates take their course."""

    group: str
    way: Way
    slots: list[Slot]
    random_: random.Random
    session_s: float
    ended: Counter[str] = field(default_factory=Counter)  # step -> members that were killed there
    suspended: Counter[str] = field(default_factory=Counter)  # step -> members that were suspended there, and thawed
    problems: list[str] = field(default_factory=list)
    is_proved: bool = False  # of a control: its sink is wrong

    @property
    def kind(self) -> str:
        """The kind of its workers."""
        return self.way.kind

    def tick(self) -> None:
        """Note who has ended or is suspended; thaw, kill and replace."""
        now = time.monotonic()
        for slot in self.slots:
            if not slot.program.is_running:
                self._note_end(slot)
                self._begin(slot)
            elif slot.thaw_at_s is not None:
                if now >= slot.thaw_at_s:
                    slot.thaw_at_s, slot.was_thawed = None, True
                    slot.began_s = now
                    self.suspended[slot.fates[0].step] += 1
                    faults.thaw(slot.program.pid)
            elif slot.fates and slot.fates[0].action == FREEZE and not slot.was_thawed and _is_suspended(slot.program):
                later_s = THAW_AFTER_S[0] if self.kind in CONTROL_FATES else self.random_.uniform(*THAW_AFTER_S)
                slot.thaw_at_s = now + self.session_s + later_s
            elif slot.fates and now - slot.began_s > MAX_LIFE_S:
                slot.program.kill()
                slot.fates = [Fate(KILL, "anywhere")]

    def start(self) -> None:
        """Start every member."""
        for slot in self.slots:
            self._begin(slot)

    def live(self) -> None:
        """Replace every member by one that lives on."""
        self.kill()
        for slot in self.slots:
            slot.fates = []
            slot.file.write_text("")
            slot.program.spawn()

    def kill(self) -> None:
        """Kill all members, suspended ones too."""
        for slot in self.slots:
            slot.program.kill()

    def require_alive(self) -> None:
        """Note members that have ended although they were to live on, and replace them."""
        for slot in self.slots:
            if not slot.program.is_running:
                self.problems.append(_end_of(slot.program))
                slot.program.spawn()

    def _note_end(self, slot: Slot) -> None:
        if slot.program.exit_code == -signal.SIGKILL and slot.fates:
            self.ended[slot.fates[-1].step] += 1
        else:
            self.problems.append(_end_of(slot.program))

    def _begin(self, slot: Slot) -> None:
        drawn = CONTROL_FATES.get(self.kind) or fates.BY_KIND[self.kind].draw(self.random_)
        if self.kind in WITH_SURVIVORS and slot is not self.slots[0]:
            drawn = UNTIL_MAX_LIFE
        slot.fates, slot.began_s, slot.thaw_at_s, slot.was_thawed = list(drawn), time.monotonic(), None, False
        slot.file.write_text("\n".join(map(str, drawn)))
        slot.program.spawn()


def new_members(
    cluster: LocalCluster, group: str, way: Way, count: int, options: Mapping[str, object], seed: str
) -> Members:
    """Prepare the members of a group; `options` are those of the worker."""
    slots = []
    for number in range(1, count + 1):
        name = f"{group}-{number}"
        file = cluster.directory / f"{name}.fates"
        given = {"--group": group, "--kind": way.kind, "--client-id": name, "--fates": file, **options}
        command = [sys.executable, "-m", "tests.exactly_once.worker"]
        command += [text for key, value in given.items() for text in (key, str(value))]
        slots.append(Slot(cluster.program(name, command), file))
    session_s = float(str(options["--session-timeout-ms"])) / 1_000
    return Members(group, way, slots, random.Random(f"{seed}-{group}"), session_s)


def _is_suspended(program: Program) -> bool:
    try:
        status = Path(f"/proc/{program.pid}/stat").read_text()
    except FileNotFoundError:
        return False  # it has just ended
    return status.rpartition(")")[2].split()[0] == "T"


def _end_of(program: Program) -> str:
    last = program.log.read_text(errors="replace").splitlines()[-1:] or ["nothing was logged"]
    return f"{program.name} ended by itself with exit code {program.exit_code}: {last[0]}"
