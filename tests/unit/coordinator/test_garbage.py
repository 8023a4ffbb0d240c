"""When a coordinator's process looks for garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from zkrebalancer.coordinator.garbage import MANY_GROUPS, Garbage
from zkrebalancer.protocol.calls import Children, Replied, RepliedAll
from zkrebalancer.rebalance.all_shards import AllShards
from zkrebalancer.rebalance.coordinator import Coordinator
from zkrebalancer.rebalance.effects import Tick
from zkrebalancer.rebalance.election import Identity

READ = RepliedAll((Replied(1, Children(())),))


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    was_enabled, thresholds = gc.isenabled(), gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
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
