"""Worlds with one group, and helpers for tests of them."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.world import GROUP, Agent, CoordinatorProcess, World
from tests.support.zk_model import Session
from zkrebalancer.protocol import command, offset_copy, paths, settings
from zkrebalancer.protocol.calls import Create, Get, ListChildren, Multi
from zkrebalancer.protocol.requests import RequestLimit
from zkrebalancer.protocol.settings import GroupSettings

DEFAULTS = GroupSettings()
SMALL_LIMIT = RequestLimit(max_bytes=20_000)
LONG_NAMES = [f"{'t' * 240}{number:03d}" for number in range(100)]  # more than fit into a record of this limit


def world_with(group: GroupSettings = DEFAULTS, *clients: str, partitions: int = 4) -> World:
    world = World()
    world.set_topic("t", partitions)
    world.create_group(settings.encode(group))
    world.add_coordinator()
    for client in clients:
        world.add_agent(client)
    world.pass_time(2_000)
    return world


def world_of_two_topics(group: GroupSettings | None = None, *clients: str) -> World:
    """Return a world with topics `t` and `u` of two partitions each, which all clients read; None: without settings."""
    world = World()
    for topic in "tu":
        world.set_topic(topic, 2)
    world.create_group(*([] if group is None else [settings.encode(group)]))
    world.add_coordinator()
    for client in clients:
        world.add_agent(client, {"t": 1, "u": 1})
    if clients:
        world.pass_time(2_000)
    return world


def a_group_with_a_large_share(mode: str) -> World:
    """Return a world where `a` reads more topics than can be recorded, and no member the topic `short`."""
    world = World()
    for name in LONG_NAMES:
        world.set_topic(name, 1)
    world.set_topic("short", 4)
    world.create_group(settings.encode(GroupSettings(mode=mode)))
    world.add_coordinator(limit=SMALL_LIMIT)
    world.add_agent("a", dict.fromkeys(LONG_NAMES, 1))
    world.pass_time(10_000)
    return world


def commands(world: World, agent: Agent) -> list[command.Command]:
    channel = paths.channel(GROUP, agent.name or "")
    return [command.decode(world.zk.nodes[f"{channel}/{node}"].content) for node in sorted(world.zk.children(channel))]


def read_paths(world: World) -> list[str]:
    """Return a list to which the path of each later read is added, by whomever."""
    found: list[str] = []
    perform_next = world.zk.perform_next

    def record(session: Session) -> None:
        _call_id, call = session.sent[0]
        found.extend([call.path] if isinstance(call, Get | ListChildren) else [])
        perform_next(session)

    world.zk.perform_next = record  # type: ignore[method-assign]
    return found


def events(world: World, kind: str) -> list[dict[str, object]]:
    return [dict(event.fields) for event in world.events if event.kind == kind]


def owner_of(world: World, partition: tuple[str, int]) -> str | None:
    return next((name for name, owned in world.owned().items() if partition in owned), None)


def copies(world: World) -> list[offset_copy.OffsetCopy]:
    """Return the copies of deleted offsets, oldest first."""
    above = paths.deleted_offsets(GROUP)
    return [offset_copy.decode(world.zk.nodes[f"{above}/{name}"].content) for name in sorted(world.zk.children(above))]


def answer_one(world: World, process: CoordinatorProcess) -> bool:
    """Perform one call of a coordinator to ZooKeeper, or else deliver one answer; return whether there was any."""
    if process.session.sent:
        world.zk.perform_next(process.session)
    elif process.session.inbox:
        world.deliver(process)
    else:
        return False
    return True


def require_eviction_despite(world: World, consumer: str, write: Callable[[], None]) -> None:
    """Require that the leader evicts a consumer although `write` changes the consumer's record before each step."""
    for _ in range(200):
        if paths.owners(GROUP, consumer) not in world.zk.nodes:
            return
        write()
        answer_one(world, world.leader())
    raise AssertionError(f"{consumer} was not evicted")


def run_until_commands_are_sent(world: World, process: CoordinatorProcess) -> None:
    """Run one coordinator until it has sent a transaction of commands that ZooKeeper has not performed."""
    while not any(
        isinstance(call, Multi) and isinstance(call.operations[-1], Create) for _id, call in process.session.sent
    ):
        if not answer_one(world, process):
            world.compute(process)


def run_until_computing(world: World, process: CoordinatorProcess) -> None:
    """Run one coordinator until a strategy computes for it."""
    for _ in range(1_000):
        if process.computing:
            return
        if not world.move(process):
            world.now_us = max(world.now_us, world.next_deadline_us() or 0)
            world.tick()
    raise AssertionError("nothing is computed")


def deliver_until_idle(world: World, process: CoordinatorProcess) -> None:
    """Answer one coordinator's calls to ZooKeeper; leave computations waiting."""
    while answer_one(world, process):
        pass
