"""An exception in a step of one group is contained to it; any other still ends the process."""

from __future__ import annotations

from itertools import count

import pytest

from tests.support.groups import events, world_with
from tests.support.world import GROUP, World
from zkrebalancer.protocol import complaints, paths
from zkrebalancer.protocol.calls import Content, Create, Delete, Multi, Reply, SetContent, Stat
from zkrebalancer.rebalance import quarantine
from zkrebalancer.rebalance.awaited import Handler
from zkrebalancer.rebalance.election import CoordinatorElector
from zkrebalancer.rebalance.group import Group
from zkrebalancer.rebalance.loading import Loading
from zkrebalancer.rebalance.scheduler import MAX_PAUSE_US, Scheduler
from zkrebalancer.rebalance.topic_reset import TopicReset

OTHER = "other"
MAX_STEPS = 200
HOUR_MS = 3_600_000


class BugError(Exception):
    """Raised where nothing expects it."""


def with_broken(monkeypatch: pytest.MonkeyPatch, *steps: str) -> World:
    """Return a world with a group whose steps raise, beside the group of the agents."""

    def broken(self: Group, *_arguments: object) -> None:
        if self.name == OTHER:
            self._scheduler.warn("half done")
            raise BugError("x" * 100_000)
        real[step](self, *_arguments)  # the last one

    real = {step: getattr(Group, step) for step in steps}
    for step in steps:
        monkeypatch.setattr(Group, step, broken)
    world = World(has_bugs=True)
    world.set_topic("t", 4)
    world.create_group()
    nodes = [Create(paths.group(OTHER)), *(Create(f"{paths.group(OTHER)}/{name}") for name in paths.GROUP_CHILDREN)]
    world.zk.perform(Multi(tuple(nodes)))
    world.add_coordinator()
    return world


def run_with_a_bug(monkeypatch: pytest.MonkeyPatch, number: int) -> bool:
    """Live through joins, a death and a new topic while one step of the group fails at its end; whether one did."""
    done = 0

    def run(self: Scheduler, owner: str, step: Handler, *arguments: object) -> None:
        nonlocal done
        done += not owner.startswith("/")
        is_broken = done == number and not owner.startswith("/")
        real(self, owner, broken if is_broken else step, *((step, *arguments) if is_broken else arguments))

    def broken(step: Handler, *arguments: object) -> None:
        step(*arguments)
        raise BugError

    real = Scheduler.run
    with monkeypatch.context() as patch:
        patch.setattr(Scheduler, "run", run)
        world = World(has_bugs=True)
        world.set_topic("t", 4)
        world.create_group()
        world.add_coordinator()
        world.add_agent("a")
        world.pass_time(1_000)
        world.add_agent("b")
        world.pass_time(1_000)
        world.set_topic("t", 6)
        world.pass_time(1_000)
        world.kill_agent(world.agents["a"])
        world.pass_time(60_000)
    assert list(world.owned()) == ["b-1"]
    world.assert_settled()
    world.assert_nothing_left()
    assert world.leader().machine.consumer_groups_per_topic == {"t": {GROUP}}
    assert world.leader().machine.subscriptions.consumer_groups_per_topic["t"][GROUP] == 1
    assert world.leader().machine.quarantine.failures == (done >= number)
    return done >= number


def test_one_exception_at_the_end_of_any_step_of_a_group_delays_it_and_harms_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In `Scheduler.run`, keep the effects; in `Coordinator._drop`, forget less."""
    count = next(number for number in range(1, MAX_STEPS) if not run_with_a_bug(monkeypatch, number))
    assert count > 50  # the first step that there is not


@pytest.mark.parametrize("step", ["load", "_loaded", "begin_planning", "computed", "watched", "topics_changed"])
def test_a_group_whose_steps_always_fail_keeps_no_other_group_waiting(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each place of `Coordinator`, and in `Scheduler` itself, call the step without `Scheduler.run`."""
    world = with_broken(monkeypatch, step)
    world.add_agent("a")
    world.pass_time(1_000)
    world.zk.perform(Multi((SetContent(paths.group(OTHER), b""),)))
    world.set_topic("t", 5)
    world.pass_time(1_000)
    assert len(world.owned()["a-1"]) == 5


def test_it_is_tried_again_with_growing_pauses_and_logged_once_with_what_reproduces_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = with_broken(monkeypatch, "_loaded")
    world.pass_time(HOUR_MS)
    tries = world.leader().machine.quarantine.entries[OTHER].tries
    assert HOUR_MS * 1_000 / MAX_PAUSE_US - 10 < tries < HOUR_MS * 1_000 / MAX_PAUSE_US + 20
    assert events(world, "group_quarantined")[-1]["tries"] == tries
    (text,) = world.warnings
    for part in (f"group {OTHER} is in quarantine", "BugError", "step: ", "event: Replied(", "in broken"):
        assert part in text
    assert len(text) < 6 * quarantine.MAX_SHOWN


def test_the_report_shows_the_reply_of_a_row_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Loading._read_some`, add no note: the report shows only the first replies of the row."""

    def broken(name: str, _reply: Reply) -> None:
        if name == "c-49":
            raise BugError

    names = [f"c-{number}" for number in range(50)]
    row = [Content(f"of {name} {'x' * 1_000}".encode(), Stat(0, 1, 1, 0)) for name in names]
    monkeypatch.setattr(Loading, "_next_stage", lambda loading: loading._read_some(row, broken, names))
    world = with_broken(monkeypatch)
    world.pass_time(1_000)
    text = next(text for text in world.warnings if f"group {OTHER} is in quarantine" in text)
    assert "note: c-49: Content(content=b'of c-49 " in text
    assert len(text) < 6 * quarantine.MAX_SHOWN


def test_a_group_that_is_whole_again_is_served_and_its_pauses_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        world = with_broken(patch, "_loaded")
        world.pass_time(60_000)
        machine = world.leader().machine
        tries = machine.quarantine.entries[OTHER].tries
        assert OTHER not in machine.groups
    world.pass_time(30_000)
    assert OTHER in machine.groups
    world.pass_time(HOUR_MS)
    with monkeypatch.context() as patch:
        patch.setattr(TopicReset, "reset", lambda _self: 1 // 0)
        machine.scheduler.run(OTHER, machine.groups[OTHER].load, "reconciliation")
    assert machine.quarantine.entries[OTHER].tries == 1 < tries


def test_a_group_that_is_deleted_leaves_the_quarantine(monkeypatch: pytest.MonkeyPatch) -> None:
    world = with_broken(monkeypatch, "_loaded")
    world.pass_time(10_000)
    gone = sorted((path for path in world.zk.nodes if path.startswith(paths.group(OTHER))), key=len, reverse=True)
    world.zk.perform(Multi(tuple(Delete(path) for path in gone)))
    world.pass_time(1_000)
    assert not world.leader().machine.quarantine.entries
    world.pass_time(HOUR_MS)
    assert world.leader().machine.groups.keys() == {GROUP}


def test_a_new_group_lets_no_other_out_of_the_quarantine(monkeypatch: pytest.MonkeyPatch) -> None:
    world = with_broken(monkeypatch, "_loaded")
    world.pass_time(300_000)
    failures = world.leader().machine.quarantine.failures
    for number in range(20):
        world.zk.perform(Multi((Create(paths.group(f"new-{number}")),)))
        world.pass_time(100)
    assert world.leader().machine.quarantine.failures <= failures + 1
    assert "new-19" in world.leader().machine.groups


def test_a_standby_that_takes_over_contains_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    world = with_broken(monkeypatch, "_loaded")
    world.add_agent("a")
    world.add_coordinator()
    world.pass_time(5_000)
    world.kill_coordinator(world.leader())
    world.set_topic("t", 7)
    world.pass_time(5_000)
    assert len(world.owned()["a-1"]) == 7


@pytest.mark.parametrize("error", [BugError, MemoryError])
def test_an_exception_outside_of_any_group_and_the_lack_of_memory_end_the_process(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_self: object, *_arguments: object) -> None:
        raise error

    world = world_with()
    world.has_bugs = True
    monkeypatch.setattr(CoordinatorElector if error is BugError else Group, "watched", broken)
    path = paths.COORDINATOR if error is BugError else paths.group(GROUP)
    world.zk.perform(Multi((SetContent(path, world.zk.nodes[path].content),)))
    with pytest.raises(error):
        world.run()


def test_an_error_with_another_number_each_time_is_logged_at_growing_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Quarantine.contain`, log each text that differs from the last one."""
    numbers = count()

    def broken(_self: Group, *_arguments: object) -> None:
        raise BugError(f"at {next(numbers)}")

    world = with_broken(monkeypatch)
    monkeypatch.setattr(Group, "_loaded", broken)
    world.pass_time(HOUR_MS)
    assert next(numbers) > 100
    assert 10 < len(world.warnings) < 30, "of two groups"


def test_a_bug_that_shows_in_all_groups_fills_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Quarantine.contain`, log a report of each group at once; or take what was left out for logged."""
    monkeypatch.setattr(complaints, "MAX_BURST", 3)
    monkeypatch.setattr(complaints, "LINES_PER_S", 0)
    monkeypatch.setattr(Group, "load", lambda _self, _trigger: 1 // 0)
    world = with_broken(monkeypatch)
    for number in range(8):
        world.zk.perform(Multi((Create(paths.group(f"group-{number}")),)))
    world.pass_time(60_000)
    assert len(world.leader().machine.quarantine.entries) == 10
    assert len(world.warnings) == 3
    monkeypatch.setattr(complaints, "LINES_PER_S", 20)
    world.pass_time(300_000)
    assert len(world.warnings) == 10, "each group has been reported, once"


def test_a_group_that_is_deleted_while_it_is_out_and_the_connection_is_broken_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In `Coordinator._read_everything`, list those that are served: it would count as being loaded, for ever."""
    world = with_broken(monkeypatch, "_loaded")
    world.pass_time(1_000)
    leader = world.leader()
    world.zk.disconnect(leader.session)
    for path in sorted((path for path in world.zk.nodes if path.startswith(paths.group(OTHER))), reverse=True):
        world.zk.perform(Multi((Delete(path),)))
    world.zk.reconnect(leader.session)
    world.pass_time(2 * MAX_PAUSE_US // 1_000)
    assert leader.machine.groups.keys() == {GROUP}
    assert OTHER not in leader.machine.quarantine.entries
