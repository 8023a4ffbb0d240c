"""Coordinator processes that share shards, around a ZooKeeper in memory."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import cast

from tests.support.requests import requests
from tests.support.secured_model import COORDINATOR, require_allowed
from tests.support.zk_model import Session, ZkModel
from zkrebalancer.assignment import STRATEGIES
from zkrebalancer.operations import change_shards
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Call, Create, Multi, Refusal, Reply
from zkrebalancer.protocol.refusals import require_expected
from zkrebalancer.rebalance.all_shards import AllShards
from zkrebalancer.rebalance.coordinator import Coordinator
from zkrebalancer.rebalance.effects import (
    Compute,
    Computed,
    Effect,
    Emit,
    Event,
    Now,
    Request,
    RequestEach,
    Stopped,
    Tick,
    Warn,
)
from zkrebalancer.rebalance.election import ElectionState, Identity
from zkrebalancer.rebalance.planning import answer
from zkrebalancer.runtime.zk import BlockingZk


class Client:
    """An operator's client, who has a coordinator's login."""

    def __init__(self, zk: ZkModel) -> None:
        self._zk = zk

    def perform(self, call: Call, expected: Collection[Refusal] = ()) -> Reply:
        require_allowed(call, COORDINATOR)
        reply = self._zk.perform(call)
        require_expected(call, reply, expected)
        return reply

    def perform_all(self, calls: list[Call], expected: Collection[Refusal] = ()) -> list[Reply]:
        return [self.perform(call, expected) for call in calls]


@dataclass(slots=True)
class ShardProcess:
    machine: AllShards
    session: Session
    computing: list[Compute] = field(default_factory=list)
    alive: bool = True

    def leading(self) -> list[Coordinator]:
        return [one for one in self.machine.machines if one.coordinator_elector.state is ElectionState.LEADING]

    def led(self) -> set[int]:
        return {one.shard.number for one in self.leading()} if self.alive else set()

    def groups(self) -> set[str]:
        return {name for one in self.machine.machines for name in one.groups}


@dataclass(slots=True)
class ShardWorld:
    zk: ZkModel = field(default_factory=ZkModel)
    now_us: int = 1_000_000
    processes: list[ShardProcess] = field(default_factory=list)
    events: list[Emit] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    led_at: list[tuple[int, str, int]] = field(default_factory=list)  # time, kind, shard of elections and resignations

    def prepare(self, shards: int, groups: int = 20) -> None:
        """Create topics and groups, and set the number of shards."""
        nodes = ("/brokers", paths.BROKER_TOPICS, paths.CONSUMERS, paths.GROUPS)
        for path in [*nodes, *(paths.group(f"g-{number}") for number in range(groups))]:
            self.zk.perform(Multi((Create(path),)))
        if shards > 1:
            self.set_shards(shards)

    def set_shards(self, count: int) -> int | None:
        return change_shards.change(cast("BlockingZk", Client(self.zk)), count)

    def add(self, capacity: int = 1) -> ShardProcess:
        machine = AllShards(Identity(len(self.processes) + 1, "host"), capacity=capacity)
        process = ShardProcess(machine, self.zk.open())
        self.processes.append(process)
        return process

    def feed(self, process: ShardProcess, event: Event) -> None:
        for effect in process.machine.step(event, Now(self.now_us, self.now_us // 1_000)):
            self._perform(process, effect)
        for one in process.machine.machines:
            assert not one.quarantine.failures, self.warnings

    def _perform(self, process: ShardProcess, effect: Effect) -> None:
        if isinstance(effect, Request | RequestEach):
            for one in requests(effect):
                self.zk.send(process.session, *one)
        elif isinstance(effect, Compute):
            process.computing.append(effect)
        elif isinstance(effect, Emit):
            self.events.append(effect)
            if effect.kind.startswith("leader_"):
                self.led_at.append((self.now_us, effect.kind, int(str(effect.fields.get("shard", 0)))))
        elif isinstance(effect, Warn):
            self.warnings.append(effect.text)
        elif isinstance(effect, Stopped):
            self.kill(process)

    def kill(self, process: ShardProcess) -> None:
        process.alive = False
        self.zk.kill(process.session)

    def run(self, limit: int = 200_000) -> None:
        """Run all processes until nothing is left to do, without advancing time."""
        for _ in range(limit):
            moved = [self._move(process) for process in self.processes if process.alive]
            if not any(moved):
                return
        raise AssertionError("the processes still have work")

    def _move(self, process: ShardProcess) -> bool:
        session = process.session
        if session.sent:
            self.zk.perform_next(session)
        elif session.inbox:
            self.feed(process, session.take())
        elif process.computing:
            task = process.computing.pop(0)
            self.feed(process, Computed(task.group, task.ticket, answer(task, STRATEGIES), 7))
        else:
            return False
        return True

    def pass_time(self, milliseconds: int) -> None:
        """Advance time from deadline to deadline."""
        end_us = self.now_us + milliseconds * 1_000
        self.run()
        while (at_us := self._deadline_us()) is not None and at_us <= end_us:
            self.now_us = max(self.now_us, at_us)
            for process in self.processes:
                if process.alive:
                    self.feed(process, Tick())
            self.run()
        self.now_us = end_us

    def _deadline_us(self) -> int | None:
        known = [process.machine.next_deadline_us() for process in self.processes if process.alive]
        return min((at_us for at_us in known if at_us is not None), default=None)

    def assert_shared(self, shards: int, *counts: int) -> None:
        """Assert that each shard has one leader, and how many each process leads."""
        led = [process.led() for process in self.processes]
        assert sorted(number for each in led for number in each) == list(range(shards)), led
        assert tuple(map(len, led)) == counts, led
