"""Who changed a group: an event once, and a name in the history."""

from __future__ import annotations

import pytest

from tests.support.groups import events, world_with
from tests.support.world import GROUP, World
from zkrebalancer.protocol import history, last_change, paths, settings
from zkrebalancer.protocol.calls import Create, Delete, Multi, SetContent
from zkrebalancer.protocol.history import Reason
from zkrebalancer.protocol.last_change import MAX_WHAT, LastChange
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance import coordinator

CHANGE = LastChange("eve@ops1", 1_700_000_000_000, "changed mode")
EAGER = settings.encode(GroupSettings(mode="eager"))


def write(world: World, content: bytes, change: LastChange | None = CHANGE) -> None:
    """Write the settings as an operator's command does; None: as a program that does not know authors."""
    node = world.zk.nodes[paths.group(GROUP)]
    named = content if change is None else last_change.noted(content, change, node.version)
    world.zk.perform(Multi((SetContent(paths.group(GROUP), named, node.version),)))
    world.pass_time(2_000)


def reported(world: World) -> list[tuple[object, ...]]:
    return [(one["by"], one["at_ms"], one["what"]) for one in events(world, "operator_changed")]


def reasons(world: World) -> tuple[Reason, ...]:
    return history.decode(world.zk.nodes[paths.history(GROUP)].content).rebalances[-1].reasons


def test_a_change_names_its_author_in_an_event_and_in_the_history() -> None:
    world = world_with(GroupSettings(), "a", "b")
    write(world, EAGER)
    assert reported(world) == [("eve@ops1", 1_700_000_000_000, "changed mode")]
    world.add_agent("c")
    world.pass_time(2_000)
    assert reasons(world) == (Reason("member-joined", "c-1"),)
    assert len(reported(world)) == 1


def test_the_rebalance_that_a_change_causes_names_the_author() -> None:
    """In `causes._reason`, leave out the author: then the history does not know who drained it."""
    world = world_with(GroupSettings(), "a", "b")
    write(world, settings.encode(GroupSettings(drained_members=("a-1",))))
    assert reasons(world) == (Reason("settings-changed", "drained_members", "eve@ops1"),)
    assert reasons(world)[0].text == "settings-changed drained_members (by eve@ops1)"


def test_a_request_for_a_check_says_what_was_asked() -> None:
    world = world_with(GroupSettings(), "a", "b")
    before = world.zk.nodes[paths.group(GROUP)].content
    world.zk.perform(Multi((Delete(paths.ids(GROUP, "a-1")),)))
    write(world, before, LastChange("eve@ops1", 5, "evicted a-1"))
    assert Reason("operator-request", "evicted a-1", "eve@ops1") in reasons(world)


def test_a_connection_that_breaks_before_a_group_is_read_makes_no_old_change_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In `Coordinator._read_everything`, leave `_is_listed` as it is: the group is then taken for one just created."""
    world = world_with(GroupSettings(), "a")
    monkeypatch.setattr(coordinator, "MAX_LOADING", 0)
    world.kill_coordinator(world.leader())
    write(world, EAGER)
    leader = world.add_coordinator()
    world.pass_time(10_000)
    assert leader.machine.groups_to_load
    world.zk.disconnect(leader.session)
    world.zk.reconnect(leader.session)
    while leader.session.inbox:
        world.deliver(leader)
    monkeypatch.undo()
    world.pass_time(10_000)
    assert leader.machine.groups.keys() == {GROUP}
    assert reported(world) == []


def test_a_program_that_keeps_the_author_of_another_one_is_not_taken_for_it() -> None:
    """In `last_change.read`, ignore the version: then the second change is eve's, too."""
    world = world_with(GroupSettings(), "a", "b")
    write(world, EAGER)
    kept = settings.changed(world.zk.nodes[paths.group(GROUP)].content, {"drained_members": ["a-1"]})
    write(world, kept, change=None)
    assert len(reported(world)) == 1
    assert reasons(world) == (Reason("settings-changed", "drained_members"),)


def test_the_next_leader_and_a_reading_anew_do_not_report_it_again() -> None:
    """In `Authors.adopt`, adopt nothing: then each leader reports it."""
    world = world_with(GroupSettings(), "a", "b")
    write(world, EAGER)
    world.pass_time(400_000)  # a reconciliation
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    world.pass_time(20_000)
    assert len(reported(world)) == 1
    write(world, settings.encode(GroupSettings()), LastChange("bob@ops2", 6, "changed mode"))
    assert [by for by, *_rest in reported(world)] == ["eve@ops1", "bob@ops2"]


def test_who_created_a_group_is_reported() -> None:
    world = world_with(GroupSettings(), "a")
    path = paths.group("new")
    nodes = [Create(path, last_change.noted(b"", CHANGE, -1)), *(Create(f"{path}/{n}") for n in paths.GROUP_CHILDREN)]
    world.zk.perform(Multi(tuple(nodes)))
    world.pass_time(2_000)
    assert [one.group for one in world.events if one.kind == "operator_changed"] == ["new"]


@pytest.mark.parametrize(
    "found",
    [
        b'"last_change"',
        b'{"last_change": 5}',
        b'{"last_change": {"by": "a", "at_ms": 1, "what": "b"}}',
        b'{"last_change": {"by": 7, "at_ms": 1, "what": "b", "version": 3}}',
        b'{"last_change": {"by": "a", "at_ms": -1, "what": "b", "version": 3}}',
    ],
)
def test_what_no_command_has_written_names_nobody(found: bytes) -> None:
    assert last_change.read(found, 3) is None


def test_a_text_stays_one_short_line() -> None:
    """A line of the coordinator's log, a table's cell and the page show it."""
    long = LastChange("a\nb", 1, "x" * 10_000)
    read = last_change.read(last_change.noted(b"", long, 2), 3)
    assert read == LastChange("a?b", 1, "x" * MAX_WHAT)


def test_a_change_during_a_broken_connection_is_reported() -> None:
    """In `Authors.adopt`, adopt each time: a leader that reads the group again reports nothing."""
    world = world_with(GroupSettings(), "a", "b")
    session = world.leader().session
    world.zk.disconnect(session)
    node = world.zk.nodes[paths.group(GROUP)]
    content = last_change.noted(EAGER, CHANGE, node.version)
    world.zk.perform(Multi((SetContent(paths.group(GROUP), content, node.version),)))
    world.zk.reconnect(session)
    world.pass_time(5_000)
    assert [by for by, *_rest in reported(world)] == ["eve@ops1"]
