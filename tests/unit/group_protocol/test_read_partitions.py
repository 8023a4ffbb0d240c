"""Which partitions the members that a gateway serves read: it keeps their offsets from being forgotten."""

from __future__ import annotations

from tests.support.group_coordinator import GROUP, Coordinator
from tests.support.kip848_group import Client, coordinator_with
from zkrebalancer.group_protocol.effects import Targeted
from zkrebalancer.group_protocol.settings import GroupProtocolSettings


def test_a_partition_is_read_by_members_that_hold_it() -> None:
    """In `figures.reads`, look at the group's topics only: agents of a central group read the others."""
    coordinator = coordinator_with({"t": 2}, GroupProtocolSettings(assigns_centrally=True))
    client = Client(coordinator, "a")
    client.beat()
    given = Targeted(GROUP, "a", 1, frozenset({("t", 1)}))
    coordinator.step(given)
    client.beat()
    is_read = coordinator.machine.is_read
    assert [is_read(GROUP, topic, number) for topic, number in (("t", 0), ("t", 1), ("u", 1))] == [False, True, False]
    client.beat(-1)
    assert not is_read(GROUP, "t", 1)
    assert not is_read("x", "t", 1)


def test_any_partition_may_be_read_by_members_of_a_classic_group() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a")
    assert coordinator.machine.is_read(GROUP, "t", 1)
    coordinator.leave(*ids.values())
    assert not coordinator.machine.is_read(GROUP, "t", 1)
