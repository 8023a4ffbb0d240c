"""A process with a separate machine, clocks and random draws; it can be suspended, resumed and killed."""

from __future__ import annotations

from random import Random

from tests.simulation.schedule import Action, Schedule

MAX_DRIFT_PPM = 3_000  # less than the coordinator tolerates
EPOCH_MS = 1_700_000_000_000


class Host:
    """The base of every simulated process. When it resumes, it does everything that was due, in any order."""

    def __init__(self, name: str, schedule: Schedule, seed: int) -> None:
        self.name = name
        self.schedule = schedule
        self.random = Random(f"{seed}/{name}")
        self.alive = True
        self.suspended = False
        self.wall_offset_ms = EPOCH_MS + self.random.randrange(-60_000, 60_000)
        self._boot_us = self.random.randrange(10**9, 10**12)
        self._drift_ppm = self.random.randrange(-MAX_DRIFT_PPM, MAX_DRIFT_PPM + 1)
        self._waiting: list[tuple[Action, tuple[object, ...]]] = []
        self._tick_at_us: int | None = None

    def clock_us(self) -> int:
        """The monotonic clock, which also runs while the process is suspended."""
        now_us = self.schedule.now_us
        return self._boot_us + now_us + now_us * self._drift_ppm // 1_000_000

    def wall_ms(self) -> int:
        return self.wall_offset_ms + self.schedule.now_us // 1_000

    def moment_us(self, clock_us: int) -> int:
        """The moment of virtual time at which `clock_us` has this value."""
        elapsed_us = clock_us - self._boot_us
        return elapsed_us * 1_000_000 // (1_000_000 + self._drift_ppm) + 1

    def run(self, action: Action, *arguments: object) -> None:
        """Run an action as this process: never if it is dead, later if it is suspended."""
        if self.alive and self.suspended:
            self._waiting.append((action, arguments))
        elif self.alive:
            action(*arguments)

    def after(self, delay_us: int, action: Action, *arguments: object) -> None:
        self.schedule.after(delay_us, self.run, action, *arguments)

    def tell(self, text: str) -> None:
        self.schedule.tell(self.name, text)

    def suspend(self) -> None:
        self.suspended = True

    def resume(self) -> None:
        self.suspended = False
        waiting, self._waiting = self._waiting, []
        self.random.shuffle(waiting)
        for action, arguments in waiting:
            self.after(self.random.randrange(2_000), action, *arguments)

    def kill(self) -> None:
        self.alive = False
        self._waiting.clear()

    # Ticks ----------------------------------------------------------------------------------------------------------

    def deadline_us(self) -> int | None:
        """The process's next deadline, by its clock."""
        return None

    def tick(self) -> None:
        """Handle the deadline, then plan the next tick."""

    def plan_tick(self) -> None:
        """Plan the next tick; call this after every possible change of the deadline."""
        deadline_us = self.deadline_us()
        if deadline_us is None:
            return
        at_us = max(self.moment_us(deadline_us), self.schedule.now_us)
        if self._tick_at_us is None or at_us < self._tick_at_us:
            self._tick_at_us = at_us
            self.schedule.at(at_us, self.run, self._tick_due, at_us)

    def _tick_due(self, at_us: int) -> None:
        if at_us != self._tick_at_us:
            return
        self._tick_at_us = None
        deadline_us = self.deadline_us()
        if deadline_us is not None and deadline_us <= self.clock_us():
            self.tick()
        else:
            self.plan_tick()
