"""A backup of a running group, and trees into which it is restored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

from tests.support.client import Client
from tests.support.groups import world_with
from tests.support.secured_model import COORDINATOR, OPERATOR
from tests.support.world import GROUP, World
from zkrebalancer.operations import backup as operation
from zkrebalancer.operations.backup import Restored
from zkrebalancer.operations.backup_file import check
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Content, Create, Get, Multi
from zkrebalancer.runtime.zk import BlockingZk

PARTITIONS = 4
OFFSETS = {number: 100 + number for number in range(PARTITIONS)}


def nothing(_count: int, _total: int | None) -> None:
    pass


def client(world: World, calls: int = 10_000, principal: str = OPERATOR) -> BlockingZk:
    """Return a client that is refused what a secured tree refuses to `principal`."""
    found = Client(world, calls)
    found.principal = principal
    return cast("BlockingZk", found)


def backed_up(tmp_path: Path) -> Path:
    """Return the backup of a running group that has a member and offsets."""
    world = world_with(partitions=PARTITIONS)
    world.add_agent("a", instance_id="i")
    world.pass_time(1_000)
    for number, offset in OFFSETS.items():
        world.zk.perform(Multi((Create(paths.offsets(GROUP, "t", number), str(offset).encode()),)))
    file = tmp_path / "backup"
    assert operation.back_up(client(world), file, 1, nothing) == check(file)
    return file


def restored(
    world: World,
    file: Path,
    calls: int = 10_000,
    progress: Callable[[int, int | None], None] = nothing,
    *,
    is_last_lost: bool = True,
    now_ms: int = 1,
    **options: bool,
) -> Restored:
    wanted = {"overwrite": False, "adopt_topics": False, **options}
    restoring, session = Client(world, calls, is_last_lost=is_last_lost), world.zk.open()
    restoring.principal, restoring.session_id = COORDINATOR, session.session_id
    try:
        return operation.restore(cast("BlockingZk", restoring), file, now_ms=now_ms, progress=progress, **wanted)
    finally:
        world.zk.end(session)


def empty_world(topic_id: str = "id-1") -> World:
    """Return another ensemble: its transactions have other numbers."""
    world = World()
    world.set_topic("other", 1)
    world.set_topic("t", PARTITIONS, topic_id)
    return world


def offsets(world: World) -> dict[int, int]:
    nodes = {number: world.zk.perform(Get(paths.offsets(GROUP, "t", number))) for number in range(PARTITIONS)}
    return {number: int(node.content) for number, node in nodes.items() if isinstance(node, Content)}
