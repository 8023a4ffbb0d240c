"""Random orders of messages, deaths, broken connections and changes: never two holders, and groups converge.

After every step the stored truth is checked (`World.check`). One seed reproduces a run.
"""

from __future__ import annotations

import random

import pytest

from tests.support import examples
from tests.support.world import CoordinatorProcess, World
from tests.support.zk_model import ZkModel
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Create, Delete, Multi

SEEDS = examples.count(4)
STEPS = 700
CALM_MS = 120_000  # time for every limit, retry and lease in SETTINGS, but for no reconciliation, which would heal
RECONCILED_MS = 300_000  # only that finds the channel of a consumer that came and went between the lists of a load
SETTINGS = (
    b"",
    b'{"version":1,"mode":"eager"}',
    b'{"version":1,"rebalance_timeout_ms":500,"max_rebalance_retries":1}',
    b'{"version":1,"mode":"eager","rebalance_timeout_ms":500,"strategy":"range"}',
    b'{"version":1,"strategy":"round_robin"}',
)


class Chaos:
    """Draws what happens next."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World(ZkModel(lagging=self.random.random() < 0.5))
        self.world.set_topic("t", 4)
        self.world.create_group(self.random.choice(SETTINGS))
        for _ in range(2):
            self.world.add_coordinator()
        for name in "abc":
            self.world.add_agent(name)
        self.topic_ids = 1

    def step(self) -> None:
        draw = self.random.random()
        if draw < 0.68:
            self._move_a_coordinator()
        elif draw < 0.94:
            self.world.act(self.random.choice(list(self.world.agents.values())))
        elif draw < 0.985:
            self._pass_time()
        else:
            self._break_something()
        self.world.check()

    def _move_a_coordinator(self) -> None:
        process = self.random.choice([c for c in self.world.coordinators if c.alive])
        choices = []
        if self.world.zk.is_behind(process.session):
            choices.append(lambda: self.world.zk.follow(process.session, 1))
        if process.session.sent:
            choices.append(lambda: self.world.zk.perform_next(process.session))
        if process.session.inbox:
            choices.append(lambda: self.world.deliver(process))
        if process.computing:
            choices.append(lambda: self.world.compute(process))
        if choices:
            self.random.choice(choices)()

    def _pass_time(self) -> None:
        deadline = self.world.next_deadline_us()
        if deadline is not None and self.random.random() < 0.5 and deadline < self.world.now_us + 10_000_000:
            self.world.now_us = max(self.world.now_us, deadline)
        else:
            self.world.now_us += self.random.randrange(200_000)
        self.world.tick()

    def _break_something(self) -> None:
        self.random.choice(
            [
                self._lose_connection,
                self._expire_coordinator,
                self._kill_coordinator,
                self._kill_agent,
                self._close_agent,
                self._silence,
                self._change_topic,
                self._recreate_topic,
                self._configure,
                self._poison,
                self._depose,
                self._new_agent,
            ]
        )()

    def _coordinator(self) -> CoordinatorProcess:
        return self.random.choice([c for c in self.world.coordinators if c.alive])

    def _lose_connection(self) -> None:
        process = self._coordinator()
        if process.session.connected:
            while process.session.sent and self.random.random() < 0.5:
                self.world.zk.perform_next(process.session)  # performed, but the answer is lost
            self.world.zk.disconnect(process.session)
            self.world.zk.reconnect(process.session)

    def _expire_coordinator(self) -> None:
        process = self._coordinator()
        self.world.zk.expire(process.session)
        self.world.restart_session(process)

    def _kill_coordinator(self) -> None:
        self.world.kill_coordinator(self._coordinator())
        self.world.add_coordinator()

    def _kill_agent(self) -> None:
        agent = self.random.choice(list(self.world.agents.values()))
        self.world.kill_agent(agent)
        del self.world.agents[agent.client]
        self._new_agent()

    def _new_agent(self) -> None:
        if len(self.world.agents) < 4:
            self.world.add_agent(f"n{len(self.world.zk.sessions)}")

    def _close_agent(self) -> None:
        self.world.leave(self.random.choice(list(self.world.agents.values())))

    def _silence(self) -> None:
        agent = self.random.choice(list(self.world.agents.values()))
        agent.silent = not agent.silent

    def _change_topic(self) -> None:
        self.world.set_topic("t", self.random.randrange(4, 8), f"id-{self.topic_ids}")

    def _recreate_topic(self) -> None:
        self.world.delete_topic("t")
        self.topic_ids += 1
        self.world.set_topic("t", 4, f"id-{self.topic_ids}")

    def _configure(self) -> None:
        self.world.configure(self.random.choice(SETTINGS))

    def _poison(self) -> None:
        agent = self.random.choice(list(self.world.agents.values()))
        if agent.name is not None:
            prefix = f"{paths.channel('g', agent.name)}/{paths.COMMAND_PREFIX}"
            self.world.zk.perform(Multi((Create(prefix, b"\xc1", sequence=True),)))

    def _depose(self) -> None:
        """An operator deletes the leader's node: for a while two coordinators believe that they lead."""
        self.world.zk.perform(Multi((Delete(paths.COORDINATOR),)))

    def calm_down(self) -> None:
        """End all faults; everything is as it should be soon, and nothing is left over in the end."""
        for agent in self.world.agents.values():
            agent.silent = False
        self.world.pass_time(CALM_MS)
        self.world.assert_settled()
        self.world.pass_time(RECONCILED_MS)
        self.world.assert_settled()
        self.world.assert_nothing_left()


@pytest.mark.drawn
@pytest.mark.parametrize("block", range(8))
def test_random_interleavings(block: int) -> None:
    for seed in range(block * SEEDS // 8, (block + 1) * SEEDS // 8):
        chaos = Chaos(seed)
        try:
            for _ in range(STEPS):
                chaos.step()
            chaos.calm_down()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
