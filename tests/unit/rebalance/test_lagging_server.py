"""What a leader may believe after a broken connection: its next server may know less than the last one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.groups import events
from tests.support.world import CoordinatorProcess, World
from tests.support.zk_model import Session, ZkModel
from zkrebalancer.protocol.calls import Create, Multi, Refusal, Refused, Replied, Sync
from zkrebalancer.protocol.command import StartFetcher, decode

NO_DEBOUNCE = b'{"version":1,"rebalance_debounce_ms":0}'


def move(world: World, process: CoordinatorProcess) -> bool:
    """Let the leader's server apply one transaction, since it lags; False if there is none."""
    if not world.move(process):
        return False
    world.check()
    return True


def is_start(process: CoordinatorProcess) -> bool:
    """Whether the call that is performed next sends a start."""
    call = process.session.sent[0][1] if process.session.sent else None
    creates = (
        [operation for operation in call.operations if isinstance(operation, Create)] if isinstance(call, Multi) else []
    )
    return any(isinstance(decode(create.content), StartFetcher) for create in creates if create.sequence)


def run_until(world: World, process: CoordinatorProcess, is_reached: Callable[[], bool]) -> None:
    for _ in range(1_000):
        if is_reached():
            return
        if not move(world, process):
            world.zk.follow(process.session)
            for agent in world.agents.values():
                world.act(agent)
    raise AssertionError("never reached")


def refuse_to_sync(world: World, times: int) -> None:
    perform_next = world.zk.perform_next

    def refusing(session: Session) -> None:
        nonlocal times
        if times and isinstance(session.sent[0][1], Sync):
            times -= 1
            call_id, _call = session.sent.popleft()
            session.answer(Replied(call_id, Refused(Refusal.NOT_ALLOWED)))
        else:
            perform_next(session)

    world.zk.perform_next = refusing  # type: ignore[method-assign]


@pytest.mark.parametrize("refused", range(4))
def test_a_start_whose_reply_was_lost_is_found_although_the_next_server_has_not_heard_of_it(refused: int) -> None:
    """Fails when the election does not sync, or does not look whether it could: `a` gets what is started at `b`, too.

    `refused`: how often ZooKeeper refuses to sync, for example because it is overloaded.
    """
    world = World(ZkModel(lagging=True))
    world.set_topic("t", 2)
    world.create_group(NO_DEBOUNCE)
    process = world.add_coordinator()
    world.add_agent("x")
    world.pass_time(2_000)
    receiving = world.add_agent("b")
    run_until(world, process, lambda: is_start(process))

    receiving.silent = True
    world.act(world.add_agent("a"))
    world.zk.follow(process.session)
    while process.session.inbox:
        world.deliver(process)  # it hears of `a`
    world.zk.perform_next(process.session)  # the start is stored, and its reply is lost
    world.zk.disconnect(process.session)
    world.zk.reconnect(process.session)
    refuse_to_sync(world, refused)
    for _ in range(refused + 1):
        while move(world, process):
            pass
        world.now_us += 1_000_000
        world.tick()
    receiving.silent = False
    world.pass_time(60_000)
    world.assert_nothing_left()
    world.assert_settled()
    assert len(events(world, "leader_resigned")) == (refused > 0)


def test_a_leader_whose_commands_are_refused_because_of_a_death_goes_on_leading() -> None:
    """Only the fence deposes. Fails when `Leadership.is_deposed` takes any failed operation for the fence."""
    world = World()
    world.set_topic("t", 4)
    world.create_group(NO_DEBOUNCE)
    process = world.add_coordinator()
    dying = world.add_agent("a")
    world.add_agent("b")
    run_until(world, process, lambda: is_start(process))
    world.leave(dying)
    dying.alive = False
    world.zk.perform_next(process.session)
    event, _position = process.session.inbox[-1]
    assert isinstance(event, Replied)
    assert isinstance(event.reply, Refused)
    world.pass_time(2_000)

    assert not events(world, "leader_resigned")
    assert {name: len(owned) for name, owned in world.owned().items()} == {"b-1": 4}
