"""Random orders as in `test_interleavings.py`, with all that a cluster can do to a group at once.

Two topics that come and go, static members, wildcards and several consumer threads; operators who freeze, pause, write
nonsense, delete nodes or the whole group; coordinators that resign; every other server lags behind.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support import examples
from tests.support.world import GROUP, Agent
from tests.unit.rebalance.test_interleavings import SETTINGS, Chaos
from zkrebalancer.protocol import paths, registration, settings
from zkrebalancer.protocol.calls import Delete, Multi, Operation, SetContent
from zkrebalancer.rebalance.effects import ShutDown

SEEDS = examples.count(2)
BLOCKS = 4
STEPS = 600
MEDDLING_PROBABILITY = 0.003
CALM_MS = 200_000  # less than the periodic reconciliation, which would heal what was lost
RECONCILED_MS = 310_000
OBSTRUCTING = (
    b'{"version":1,"frozen":true}',
    b'{"version":1,"starts_paused":true}',
    b'{"version":1,"strategy":"nonsense"}',
    b'{"version":1,"rebalance_timeout_ms":300,"max_rebalance_retries":0}',
    b'{"version":1,"static_grace_ms":400}',
)


class WideChaos(Chaos):
    """Meddles with nodes now and then."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.world.set_topic("u", 3)
        self.world.agents.clear()
        self._agents_so_far = 0
        for _ in range(3):
            self._new_agent()

    def step(self) -> None:
        super().step()
        if self.random.random() < MEDDLING_PROBABILITY:
            self._meddle()
            self.world.check()

    def _meddle(self) -> None:
        choices: list[Callable[[], None]] = [
            self._write_garbage,
            self._delete_registration,
            self._change_registration,
            self._change_other_topic,
            self._delete_commands,
            self._recreate_group,
            self._resign,
        ]
        self.random.choice(choices)()

    def _new_agent(self) -> None:
        if len(self.world.agents) >= 4:
            return
        self._agents_so_far += 1
        client, kind = f"n{self._agents_so_far}", self.random.choice(["plain", "threads", "static", "wildcard"])
        threads = 2 if kind == "threads" else 1
        instance = self.random.choice(["i1", "i2"])
        if kind == "wildcard":
            self.world.add_agent(client, {"^[tu]$": self.random.choice([1, 2])}, pattern="white_list")
        elif kind == "static":
            self.world.add_agent(client, {"t": 1, "u": 1}, instance_id=instance)
        else:
            self.world.add_agent(client, {"t": threads, "u": threads})

    def _registered(self) -> Agent | None:
        """Return an agent whose registration stands, for meddling with it."""
        registered = [
            a for a in self.world.agents.values() if a.name and paths.ids(GROUP, a.name) in self.world.zk.nodes
        ]
        return self.random.choice(registered) if registered else None

    def _write(self, *operations: Operation) -> None:
        self.world.zk.perform(Multi(operations))

    def _configure(self) -> None:
        self.world.configure(self.random.choice(SETTINGS + OBSTRUCTING))

    def _write_garbage(self) -> None:
        agent = self._registered()
        if agent is not None:
            node = self.random.choice([paths.ids, paths.owners])(GROUP, agent.name)
            self._write(SetContent(node, self.random.choice([b"{}", b"\xff", b'{"version":2}'])))

    def _delete_registration(self) -> None:
        """Of a consumer that a leader knows: one that was never seen waits for the periodic reconciliation."""
        agent = self._registered()
        groups = [c.machine.groups[GROUP] for c in self.world.coordinators if c.alive and GROUP in c.machine.groups]
        if agent is not None and any(agent.name in group.view.members for group in groups):
            self._write(Delete(paths.ids(GROUP, agent.name)))

    def _change_registration(self) -> None:
        agent = self._registered()
        if agent is not None:
            changed = {"t": self.random.choice([1, 2]), "u": 1}
            agent.registration = agent.registration._replace(pattern="static", subscription=changed)
            self._write(SetContent(paths.ids(GROUP, agent.name), registration.encode(agent.registration)))

    def _change_other_topic(self) -> None:
        if self.random.random() < 0.5:
            self.world.delete_topic("u")
        else:
            self.topic_ids += 1
            self.world.set_topic("u", self.random.randrange(1, 5), f"id-{self.topic_ids}")

    def _delete_commands(self) -> None:
        agent = self._registered()
        if agent is not None:
            agent.reading = None
            channel = paths.channel(GROUP, agent.name)
            self._write(*(Delete(f"{channel}/{name}") for name in self.world.zk.children(channel)))

    def _recreate_group(self) -> None:
        """All consumers leave, the group is deleted, and soon it is created again."""
        world = self.world
        for agent in world.agents.values():
            world.leave(agent)
        group = [path for path in world.zk.nodes if path.startswith(paths.group(GROUP))]
        self._write(*(Delete(path) for path in sorted(group, key=len, reverse=True)))
        world.evictions_seen.clear()
        for _ in range(self.random.choice([0, 0, 5, 30])):
            self._move_a_coordinator()
        world.create_group()

    def _resign(self) -> None:
        process = self._coordinator()
        self.world.feed(process, ShutDown())
        self.world.add_coordinator()
        self.world.run()
        assert not process.alive, "it was asked to stop and did not"

    def calm_down(self) -> None:
        """Correct what nobody but an operator can; nothing else is touched, as that would ask for a rebalance."""
        world = self.world
        for agent in world.agents.values():
            agent.silent = False
            if agent.name and not self._is_readable(paths.ids(GROUP, agent.name)):
                self._write(SetContent(paths.ids(GROUP, agent.name), registration.encode(agent.registration)))
        if paths.topic("u") not in world.zk.nodes:
            world.set_topic("u", 3, f"id-{self.topic_ids}")
        group = settings.decode(world.zk.nodes[paths.group(GROUP)].content)
        if group.frozen or group.starts_paused or group.strategy != "sticky":  # the others do not balance over topics
            world.configure(b"")
        for milliseconds in (CALM_MS, RECONCILED_MS):
            world.pass_time(milliseconds)
            world.assert_settled()
        world.assert_nothing_left()
        deadlines = {
            name for c in world.coordinators if c.alive for owner, name in c.machine.scheduler.due if owner == GROUP
        }
        assert deadlines <= {"reconcile", "look"}, f"still waiting for {deadlines}"

    def _is_readable(self, path: str) -> bool:
        node = self.world.zk.nodes.get(path)
        return node is None or b'"subscription"' in node.content


@pytest.mark.drawn
@pytest.mark.parametrize("block", range(BLOCKS))
def test_wide_interleavings(block: int) -> None:
    for seed in range(block, SEEDS, BLOCKS):
        chaos = WideChaos(seed)
        try:
            for _ in range(STEPS):
                chaos.step()
            chaos.calm_down()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
