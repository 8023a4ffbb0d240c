"""A coordinator process: the real machine, and a replacement for `coordinator.service`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from tests.simulation.conservation import check_machine
from tests.simulation.ensemble import Ensemble
from tests.simulation.host import Host
from tests.simulation.network import Connection
from tests.simulation.schedule import Schedule
from tests.support.kept_problems import assert_kept_as_made_anew, assert_placed_as_anew
from tests.support.requests import requests
from zkrebalancer.assignment import STRATEGIES, WEIGHING
from zkrebalancer.assignment.loads import UNKNOWN
from zkrebalancer.protocol.calls import Replied, RepliedAll
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.rebalance.all_shards import AllShards
from zkrebalancer.rebalance.coordinator import Coordinator
from zkrebalancer.rebalance.effects import (
    Compute,
    Computed,
    Effect,
    Emit,
    Event,
    LoadsRead,
    Now,
    ReadLoads,
    Request,
    RequestEach,
    ShutDown,
    Stopped,
    Tick,
    Warn,
)
from zkrebalancer.rebalance.election import Identity
from zkrebalancer.rebalance.planning import answer

COMPUTING_US = (100, 4_000)
READING_US = (1_000, 3_000_000)
UNREADABLE = 0.2  # share of the readings
HANGING_US = 100_000


class Broken:
    """Replaces a group's scheduler: every use raises."""

    def __getattr__(self, name: str) -> None:
        raise LookupError(f"a bug: {name}")


class CoordinatorHost(Host):
    """One life of a coordinator; a restart creates another one."""

    def __init__(
        self,
        name: str,
        schedule: Schedule,
        seed: int,
        ensemble: Ensemble,
        session_timeout_ms: int,
        on_emit: Callable[[Emit], None],
    ) -> None:
        super().__init__(name, schedule, seed)
        self._identity = Identity(int(name.split("-")[1]), name)
        self.machine: Coordinator | AllShards = Coordinator(self._identity, WEIGHING)
        self.connection = Connection(ensemble, self, session_timeout_ms, self.feed, replies_as_one=True)
        self._on_emit = on_emit
        self.is_checked = False  # after every step
        self.hanging: set[str] = set()  # groups whose strategies hang
        self.broken: set[str] = set()  # groups whose every step raises
        self.computing: Counter[str] = Counter()  # by group; more than one if the group is read again meanwhile

    def share(self) -> None:
        """Take part in leading several shards of groups; call it before the first event."""
        self.machine = AllShards(self._identity, WEIGHING)

    @property
    def machines(self) -> Sequence[Coordinator]:
        return (self.machine,) if isinstance(self.machine, Coordinator) else self.machine.machines

    def leading(self) -> list[Coordinator]:
        return [machine for machine in self.machines if machine.leadership is not None]

    def feed(self, event: Event) -> None:
        if not self.alive:
            return
        if self.schedule.tells:
            self.tell(f"<- {_short(event)}")
        for machine in self.machines:
            for name, group in machine.groups.items():
                scheduler = Broken() if name in self.broken else machine.scheduler
                group._scheduler._scheduler = scheduler  # type: ignore[assignment]
        failures = sum(machine.quarantine.failures for machine in self.machines)
        effects = self.machine.step(event, Now(self.clock_us(), self.wall_ms()))
        if sum(machine.quarantine.failures for machine in self.machines) > failures and not self.broken:
            raise AssertionError([effect.text for effect in effects if isinstance(effect, Warn)])
        for effect in effects:
            self._perform(effect)
        self.plan_tick()
        if self.is_checked and self.connection.online:
            for machine in self.machines:
                check_machine(machine, set(+self.computing))

    def _perform(self, effect: Effect) -> None:
        if self.schedule.tells:
            self.tell(f"-> {_short(effect)}")
        if isinstance(effect, Request | RequestEach):
            for one in requests(effect):
                self.connection.request(*one)
        elif isinstance(effect, Compute):
            for machine in self.machines:
                assert_kept_as_made_anew(machine.groups, effect)
            self.computing[effect.group] += 1
            self.after(self.random.randrange(*COMPUTING_US), self._compute, effect)
        elif isinstance(effect, ReadLoads):
            self.after(self.random.randrange(*READING_US), self._read_loads, effect)
        elif isinstance(effect, Emit):
            self._on_emit(effect)
        elif isinstance(effect, Stopped):
            self.kill()
            self.connection.close()
        elif isinstance(effect, Warn):
            pass

    def _compute(self, effect: Compute) -> None:
        if effect.group in self.hanging:
            self.after(HANGING_US, self._compute, effect)
            return
        self.computing[effect.group] -= 1
        try:
            transition = answer(effect, STRATEGIES)
        except RebalancerError as error:
            self.feed(Computed(effect.group, effect.ticket, None, 0, str(error)))
        else:
            assert_placed_as_anew(STRATEGIES[effect.strategy], effect, transition)
            self.feed(Computed(effect.group, effect.ticket, transition, 7))

    def _read_loads(self, effect: ReadLoads) -> None:
        """Draw arbitrary lags and rates: promises hold for all of them."""
        ends = {
            topic: np.array([self.random.randrange(UNKNOWN, self.schedule.now_us) for _ in range(count)], np.int64)
            for topic, count in effect.topics.items()
        }
        committed = {topic: values // 2 for topic, values in ends.items()}
        error = "no broker answers" if self.random.random() < UNREADABLE else None
        self.feed(LoadsRead(effect.group, self.clock_us(), ends, committed, error))

    def deadline_us(self) -> int | None:
        if isinstance(self.machine, AllShards):
            return self.machine.next_deadline_us()
        return self.machine.scheduler.next_deadline_us()

    def tick(self) -> None:
        self.feed(Tick())

    def shut_down(self) -> None:
        self.feed(ShutDown())


def _short(what: Event | Effect) -> str:
    if isinstance(what, Request):
        return f"{what.call_id}: {what.call}"
    if isinstance(what, Replied):
        return f"{what.call_id}: {what.reply}"
    if isinstance(what, RepliedAll):
        return " AND ".join(map(_short, what.each()))
    if isinstance(what, Compute):
        return f"Compute {what.group} {what.ticket}"
    return str(what)
