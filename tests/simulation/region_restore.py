"""Regions whose tree is lost and put back: the real restore, call by call, while members and coordinators start.

The operator stops everybody before. The restore may be killed between any two calls; then, and when it is refused
because of somebody who came too early, those are stopped, and it is repeated.
"""

from __future__ import annotations

from random import Random

from tests.simulation.region import STEPS, RegionRun
from tests.simulation.stepped_restore import RepeatedRestore, in_memory

RESTORES = 2  # in one run
CALM = 600  # steps without a restore at the end of the faults
MAX_COORDINATORS = 2
BEGUN, EARLY = 0.3, 0.01  # in each step, let a process start; also before the restore keeps it from writing
MOVING = 0.4  # share of the steps in which the restore makes a call


class RestoredRun(RegionRun):
    """A run with restores; what concerns them is drawn apart."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.drawn = Random(f"{seed}/restores")
        self.moments = sorted(self.drawn.randrange(STEPS - CALM) for _ in range(RESTORES))
        self.steps = 0
        self.restore: RepeatedRestore | None = None

    def run(self) -> None:
        with in_memory(self.drawn):
            super().run()

    def step(self) -> None:
        self.steps += 1
        if self.restore is None and self.moments and self.steps >= self.moments[0]:
            self.moments.pop(0)
            self._stop()
            self.restore = RepeatedRestore(self.world.zk, self.drawn)
            self.world.evictions_seen.clear()  # they may be lost
            self.seen["restores"] += 1
        if self.restore is not None:
            self._restore(self.restore)
        super().step()

    def fault(self) -> None:
        if self.restore is None:  # an operator who restores does nothing else
            super().fault()

    def _stop(self, *, only_registered: bool = False) -> None:
        for member in self.running():
            if member.member.zxid is not None or not only_registered:
                member.kill()
        for process in self.world.coordinators:
            if process.alive and not only_registered:
                self.world.kill_coordinator(process)

    def _restore(self, restore: RepeatedRestore) -> None:
        if self.drawn.random() < (BEGUN if restore.is_barred else EARLY):
            self._start_one()
        if self.drawn.random() < MOVING and restore.move():
            self._stop(only_registered=restore.is_barred)  # the others wait
        if restore.is_complete:
            self.restore = None
            self.seen["restores complete"] += 1
            self.seen["restores killed"] += restore.kills
            for _ in range(MAX_COORDINATORS + len(self.names)):
                self._start_one()

    def _start_one(self) -> None:
        if sum(process.alive for process in self.world.coordinators) < MAX_COORDINATORS:
            self.world.add_coordinator()
        else:
            self.join()
