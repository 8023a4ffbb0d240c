"""When a coordinator's process looks for garbage."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from tests.support.groups import world_with
from tests.support.world import GROUP
from zkrebalancer.coordinator.garbage import MANY_GROUPS, Garbage
from zkrebalancer.protocol.calls import Children, Replied, RepliedAll
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.all_shards import AllShards
from zkrebalancer.rebalance.coordinator import Coordinator
from zkrebalancer.rebalance.effects import Emit, Tick
from zkrebalancer.rebalance.election import Identity

READ = RepliedAll((Replied(1, Children(())),))


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    was_enabled, thresholds = gc.isenabled(), gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()
    (gc.enable if was_enabled else gc.disable)()


def test_nothing_is_collected_while_many_groups_wait_to_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read is put aside before collections go on: to examine half a million nodes at once takes a second."""
    frozen: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(gc.isenabled()))
    gc.enable()
    shards = AllShards(Identity(1, "h"))
    machine = Coordinator(Identity(1, "h"))
    shards.machines = (Coordinator(Identity(1, "h")), machine)
    garbage = Garbage(shards)
    garbage.begin()
    garbage.look(READ)
    assert gc.isenabled()
    machine.groups_to_load.extend([f"g{number}" for number in range(MANY_GROUPS + 1)], "leader-elected")
    garbage.look(Tick())
    assert gc.isenabled()  # no look at hundreds of shards after every event
    garbage.look(READ)
    assert (gc.isenabled(), frozen) == (False, [])
    machine.groups_to_load.next()
    garbage.look(Tick())
    assert (gc.isenabled(), frozen) == (True, [False])


def test_what_an_ended_leadership_has_read_is_freed_before_the_next_one_reads_as_much() -> None:
    """In `Garbage.look`, do not collect what is due."""
    world = world_with(GroupSettings(), "a")
    process = world.leader()
    shards = AllShards(Identity(1, "h"))
    shards.machines = (process.machine,)
    garbage = Garbage(shards)
    garbage.begin()
    gc.collect()
    gc.freeze()  # as after an election
    group = weakref.ref(process.machine.groups[GROUP])
    world.zk.expire(process.session)
    world.restart_session(process)
    for event in [*(process.session.take() for _ in range(len(process.session.inbox))), *[Tick()] * 5]:
        world.now_us += 1
        if any(isinstance(effect, Emit) and effect.kind == "leader_resigned" for effect in world.feed(process, event)):
            garbage.resigned()
        garbage.look(event)
    assert process.machine.leadership is None
    assert (group(), garbage.due.is_set()) == (None, False)


def test_other_shards_wait_for_no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Garbage.resigned`, do not look at the other machines."""
    collected: list[None] = []
    monkeypatch.setattr(gc, "collect", lambda: collected.append(None))
    shards = AllShards(Identity(1, "h"))
    shards.machines = (Coordinator(Identity(1, "h")), world_with().leader().machine)
    garbage = Garbage(shards)
    garbage.resigned()
    garbage.look(READ)
    assert (garbage.due.is_set(), collected) == (True, [])
    garbage.all()
    assert not garbage.due.is_set()
