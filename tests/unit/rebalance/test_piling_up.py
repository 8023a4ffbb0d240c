"""Nodes that the leader may not read, in a group that changes all the time: calls that are repeated do not pile up."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace

from tests.support.groups import world_with
from tests.support.region_world import SETTINGS, RegionWorld
from tests.support.world import GROUP
from tests.support.zk_model import Right
from zkrebalancer.protocol import ownership, paths, registration
from zkrebalancer.protocol.calls import Create, Done, Multi, SetContent
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.protocol.settings import GroupSettings

CHANGES = 60


def repeated(due: Iterable[tuple[str, Hashable]]) -> int:
    return sum(isinstance(name, tuple) and name[0] == "refused" for _owner, name in due)


def test_a_registration_that_may_not_be_read_while_others_come_and_go() -> None:
    """In `Scheduler._repeat_later`, give each call a timer of its own."""
    world = world_with(GroupSettings(), "a")
    path = paths.ids(GROUP, "x")
    world.zk.denied.add(("", path, Right.READ))
    about = registration.encode(world.agents["a"].registration)
    record = ownership.encode_owners(OwnersRecord(0, None, {}))
    session = world.zk.open()
    nodes = (
        Create(paths.channel(GROUP, "x")),
        Create(path, about, ephemeral=True),
        Create(paths.owners(GROUP, "x"), record, ephemeral=True),
    )
    assert isinstance(world.zk.perform(Multi(nodes), session.session_id), Done)
    for number in range(CHANGES):
        agent = world.add_agent(f"b{number}")
        world.pass_time(100)
        world.kill_agent(agent)
        world.pass_time(100)
    machine = world.leader().machine
    assert repeated(machine.scheduler.due) + len(machine.scheduler.awaited) <= 5
    world.zk.denied.clear()
    world.pass_time(40_000)
    assert "x" in machine.groups[GROUP].view.members


def test_a_command_that_may_not_be_read_of_a_member_that_writes_its_record_again_and_again() -> None:
    """As above: reading the record asks for the command, too."""
    world = world_with(GroupSettings(rebalance_timeout_ms=3_600_000), "a")
    command = f"{paths.channel(GROUP, 'a-1')}/command-9"
    world.agents["a"].silent = True
    world.zk.denied.add(("", command, Right.READ))
    world.zk.perform(Multi((Create(command),)))
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    world.pass_time(1_000)
    path = paths.owners(GROUP, "a-1")
    for _ in range(CHANGES):
        world.zk.perform(Multi((SetContent(path, world.zk.nodes[path].content),)))
        world.pass_time(100)
    machine = world.leader().machine
    assert repeated(machine.scheduler.due) + len(machine.scheduler.awaited) <= 3


def test_members_of_a_region_that_may_not_be_read_while_others_come_and_go() -> None:
    """As above. In `Region._members_listed`, pass something of the list to `_member_read`."""
    region = RegionWorld("a", "b")
    denied = "", paths.region(GROUP, "members", "a"), Right.READ
    region.world.zk.denied.add(denied)
    for number in range(CHANGES):
        region.register(f"x{number}")
        region.pass_time(100)
        region.world.zk.end(region.sessions.pop(f"x{number}"))
        region.pass_time(100)
    machine = region.world.leader().machine
    assert repeated(machine.scheduler.due) + len(machine.scheduler.awaited) <= 1
    region.world.zk.denied.discard(denied)
    region.register("c")
    region.pass_time(1_000)
    assert region.order().members.keys() == {"a", "b", "c"}


def test_a_checkpoint_that_may_not_be_read_of_a_region_that_is_read_again_and_again() -> None:
    """As above. In `Region._read_merge`, pass something of the reading to `_piece_read`."""
    region = RegionWorld("a", settings=replace(SETTINGS, recovery="forced"))
    number = region.complete_checkpoint()
    region.world.kill_agent(region.world.agents["a"])  # a group without consumers is not reconciled
    denied = "", paths.region(GROUP, "merged", f"{number}.0"), Right.READ
    region.world.zk.denied.add(denied)
    region.replace_leader()
    region.pass_time(2 * 3_600_000)
    machine = region.world.leader().machine
    assert repeated(machine.scheduler.due) + len(machine.scheduler.awaited) == 1
    region.world.zk.denied.discard(denied)
    region.pass_time(60_000)
    region.register("b")
    region.pass_time(1_000)
    assert region.order().members.keys() == {"a", "b"}
