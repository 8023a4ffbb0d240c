"""A coordinator that is asked to stop ends at once, whatever happens to its last transaction."""

from __future__ import annotations

from tests.support.groups import DEFAULTS, events, world_with
from tests.support.world import World
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Delete, Multi, SetContent
from zkrebalancer.rebalance.effects import ShutDown


def test_it_ends_when_the_connection_breaks_meanwhile() -> None:
    """Fails when `CoordinatorElector.suspended` drops the answer to the resignation."""
    world = world_with(DEFAULTS, "a")
    process = world.leader()
    world.feed(process, ShutDown())
    world.zk.disconnect(process.session)
    world.run()
    assert not process.alive


def test_it_ends_when_its_session_expires_meanwhile() -> None:
    """Fails when `CoordinatorElector.session_lost` drops the answer to the resignation."""
    world = world_with(DEFAULTS, "a")
    process = world.leader()
    world.feed(process, ShutDown())
    world.zk.expire(process.session)
    world.run()
    assert not process.alive


def test_it_does_not_run_again_when_it_learns_that_it_is_deposed() -> None:
    """Its commands are refused while it resigns. Fails when `step_down` begins an election in any state."""
    world = world_with(DEFAULTS, "a")
    process = world.leader()
    agent = world.add_agent("b")
    world.act(agent)
    while not any(isinstance(call, Multi) for _call_id, call in process.session.sent):
        if process.session.sent:
            world.zk.perform_next(process.session)
        elif process.session.inbox:
            world.deliver(process)
        else:
            world.compute(process)

    world.zk.perform(Multi((SetContent(paths.COORDINATOR_EPOCH, b"7"),)))
    world.feed(process, ShutDown())
    world.run()

    assert not process.alive
    assert len(events(world, "leader_elected")) == 1


def test_a_leader_that_is_deposed_tells_its_own_epoch() -> None:
    """By then it has read that of the next one. In `CoordinatorElector._epoch_read`, set `epoch`."""
    world = World()
    world.add_coordinator()
    world.run()
    successor = world.add_coordinator()
    world.run()
    world.zk.perform(Multi((Delete(paths.COORDINATOR),)))
    while successor.session.sent or successor.session.inbox:
        if successor.session.sent:
            world.zk.perform_next(successor.session)
        else:
            world.deliver(successor)
    world.run()
    assert world.leader() is successor
    told = [(event.kind, event.fields["epoch"]) for event in world.events if event.kind.startswith("leader_")]
    assert told == [("leader_elected", 1), ("leader_elected", 2), ("leader_resigned", 1)]
