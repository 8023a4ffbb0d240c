"""A coordinator process: the real machine, and what `coordinator.service` does around it."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.host import Host
from tests.simulation.network import Connection, Ensemble
from tests.simulation.schedule import Schedule
from zkrebalancer.assignment import STRATEGIES
from zkrebalancer.protocol.calls import Replied
from zkrebalancer.rebalance.coordinator import Coordinator
from zkrebalancer.rebalance.effects import (
    Compute,
    Computed,
    Effect,
    Emit,
    Event,
    Now,
    Request,
    ShutDown,
    Stopped,
    Tick,
    Warn,
)
from zkrebalancer.rebalance.election import Identity

COMPUTING_US = (100, 4_000)


class CoordinatorHost(Host):
    """One life of a coordinator; whoever is restarted is another one."""

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
        self.machine = Coordinator(Identity(int(name.split("-")[1]), name))
        self.connection = Connection(ensemble, self, session_timeout_ms, self.feed)
        self._on_emit = on_emit

    def feed(self, event: Event) -> None:
        if not self.alive:
            return
        if self.schedule.tells:
            self.tell(f"<- {_short(event)}")
        for effect in self.machine.step(event, Now(self.clock_us(), self.wall_ms())):
            self._perform(effect)
        self.plan_tick()

    def _perform(self, effect: Effect) -> None:
        if self.schedule.tells:
            self.tell(f"-> {_short(effect)}")
        if isinstance(effect, Request):
            self.connection.request(effect.call_id, effect.call)
        elif isinstance(effect, Compute):
            self.after(self.random.randrange(*COMPUTING_US), self._compute, effect)
        elif isinstance(effect, Emit):
            self._on_emit(effect)
        elif isinstance(effect, Stopped):
            self.kill()
            self.connection.close()
        elif isinstance(effect, Warn):
            pass

    def _compute(self, effect: Compute) -> None:
        strategy = STRATEGIES.get(effect.strategy)
        if strategy is None:
            self.feed(Computed(effect.group, effect.ticket, None, 0, f"unknown strategy {effect.strategy}"))
        else:
            self.feed(Computed(effect.group, effect.ticket, strategy(effect.problem), 7))

    def deadline_us(self) -> int | None:
        return self.machine.desk.next_deadline_us()

    def tick(self) -> None:
        self.feed(Tick())

    def shut_down(self) -> None:
        self.feed(ShutDown())


def _short(what: Event | Effect) -> str:
    if isinstance(what, Request):
        return f"{what.call_id}: {what.call}"
    if isinstance(what, Replied):
        return f"{what.call_id}: {what.reply}"
    if isinstance(what, Compute):
        return f"Compute {what.group} {what.ticket}"
    return str(what)
