"""A list of a group's marks, or of records of given partitions, may not be read: all safe work continues.

Lists of static members are in `test_hidden.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.groups import events, owner_of, world_of_two_topics, world_with
from tests.support.world import GROUP, World
from tests.support.zk_model import Right
from zkrebalancer.protocol import obstacles, ownership, paths
from zkrebalancer.protocol.calls import Create, Multi, SetContent
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.protocol.settings import EAGER, INCREMENTAL, GroupSettings
from zkrebalancer.rebalance.states import REST, GroupState

MODES = pytest.mark.parametrize("mode", [EAGER, INCREMENTAL])
OFFSETS, INCARNATIONS, GIVEN = paths.offsets(GROUP), paths.incarnations(GROUP), paths.given(GROUP)
LISTS = pytest.mark.parametrize("lists", [(OFFSETS,), (INCARNATIONS,), (OFFSETS, INCARNATIONS)])
STORED = paths.offsets(GROUP, "t", 0)
SETTLED_MS = 5_000


def hide(world: World, *folders: str) -> None:
    """Let the next leader read the group without these folders."""
    for process in world.coordinators:
        world.kill_coordinator(process)
    world.zk.denied.update(("", folder, Right.READ) for folder in folders)
    world.add_coordinator()
    world.pass_time(SETTLED_MS)


def show_again(world: World) -> None:
    world.zk.denied.clear()
    world.pass_time(40_000)  # the pauses between tries are up to 30 s; reconciliations come later
    world.assert_settled()
    world.assert_nothing_left()
    assert not refused(world)


def end(world: World, *clients: str) -> None:
    for client in clients:
        world.kill_agent(world.agents[client])
        world.zk.expire(world.agents[client].session)


def is_at_rest(world: World) -> bool:
    return world.leader().machine.groups[GROUP].state in REST


def refused(world: World) -> list[str | None]:
    """Return the paths that `groups describe --state` names."""
    node = world.zk.nodes.get(paths.COORDINATOR_OBSTACLES)
    return [] if node is None else [each.path for each in obstacles.decode(node.content)[1]]


def count_logged(world: World, path: str) -> int:
    return sum(f"{path}: no permission" in text for text in world.warnings)


# ---- the marks of topics, and their records


def world_with_offsets(mode: str = INCREMENTAL) -> World:
    world = world_of_two_topics(GroupSettings(mode=mode), "a", "b")
    world.zk.perform(Multi((Create(STORED, b"4711"),)))
    return world


@MODES
@pytest.mark.parametrize("hidden", [OFFSETS, INCARNATIONS])
def test_topics_that_the_other_list_names_go_on(mode: str, hidden: str) -> None:
    """In `expected_refusals`, expect only that a list is missing: the group is read for as long as the right is.

    In `OffsetMarks.is_hidden_topic`, look at one of the two lists; in `names_to_store`, write what may be there.
    """
    world = world_with_offsets(mode)
    hide(world, hidden)
    assert (is_at_rest(world), refused(world)) == (True, [hidden])
    end(world, "b")
    world.pass_time(SETTLED_MS)
    assert len(world.owned()["a-1"]) == 4
    world.add_agent("c", {"t": 1, "u": 1})
    world.pass_time(300_000)
    assert (len(world.owned()["a-1"]), len(world.owned()["c-1"])) == (2, 2)
    assert (is_at_rest(world), count_logged(world, hidden)) == (True, 1)
    assert "outdated" not in [event["trigger"] for event in events(world, "rebalance_requested")]
    show_again(world)


@LISTS
def test_a_topic_that_no_list_names_is_not_started(lists: tuple[str, ...]) -> None:
    """In `OffsetMarks.is_hidden_topic`, count such a topic as known: its offsets may be of a former topic."""
    world = world_with_offsets()
    world.set_topic("v", 2)
    hide(world, *lists)
    before = world.owned()
    world.add_agent("c", {"v": 1})
    world.pass_time(SETTLED_MS)
    assert world.owned() == {**before, "c-1": {}}
    assert is_at_rest(world)
    show_again(world)


@MODES
def test_who_reads_topics_that_no_list_names_keeps_them(mode: str) -> None:
    """In `Planning._standing`, ask `hidden_topics` only; in `Planning._is_eager`, too: they would not start again."""
    world = world_with_offsets(mode)
    before = world.owned()
    hide(world, OFFSETS, INCARNATIONS)
    world.add_agent("c", {"t": 1, "u": 1})
    end(world, "b")
    world.pass_time(SETTLED_MS)
    assert world.owned() == {"a-1": before["a-1"], "c-1": {}}
    assert (is_at_rest(world), refused(world)) == (True, [INCARNATIONS, OFFSETS])
    show_again(world)


@LISTS
def test_offsets_of_a_former_topic_are_neither_read_nor_deleted_before_the_lists_are_shown(
    lists: tuple[str, ...],
) -> None:
    """In `OffsetMarks.is_stale`, judge by what is left; in `is_hidden_topic`, compare no names."""
    world = world_with_offsets()
    end(world, "a", "b")
    world.kill_coordinator(world.leader())
    world.delete_topic("t")
    world.set_topic("t", 2, "id-2")
    hide(world, *lists)
    world.add_agent("c", {"t": 1, "u": 1})
    world.pass_time(SETTLED_MS)
    assert not [tp for tp in world.owned()["c-1"] if tp[0] == "t"]
    assert STORED in world.zk.nodes
    show_again(world)
    assert STORED not in world.zk.nodes


def test_a_topic_that_is_made_anew_while_a_list_is_hidden_is_not_started() -> None:
    """In `OffsetMarks.is_hidden_topic`, compare no names: it was known when the list was read."""
    world = world_with_offsets()
    hide(world, OFFSETS)
    end(world, "a", "b")
    world.pass_time(SETTLED_MS)
    world.delete_topic("t")
    world.pass_time(SETTLED_MS)
    world.set_topic("t", 2, "id-2")
    world.add_agent("c", {"t": 1, "u": 1})
    world.pass_time(SETTLED_MS)
    assert world.owned()["c-1"].keys() == {("u", 0), ("u", 1)}
    assert STORED in world.zk.nodes
    show_again(world)


def test_offsets_of_an_absent_topic_are_not_deleted_while_a_list_is_hidden() -> None:
    """In `OffsetMarks.absent_topics`, count it: its record may say something else."""
    world = world_with_offsets()
    hide(world, INCARNATIONS)
    world.delete_topic("t")
    world.pass_time(7_200_000)
    assert STORED in world.zk.nodes
    world.zk.denied.clear()
    world.pass_time(4_000_000)
    assert STORED not in world.zk.nodes


def test_topics_that_a_group_does_not_read_cost_it_nothing_while_its_marks_are_hidden() -> None:
    """In `Planning.begin`, look at all topics of the cluster: each of a thousand groups kept ten thousand names."""
    world = world_with_offsets()
    for number in range(20):
        world.set_topic(f"v{number}", 1)
    hide(world, OFFSETS)
    planning = world.leader().machine.groups[GROUP].planning
    assert planning._resetting | planning._hidden.keys() == {"t", "u"}


def test_an_eviction_holds_deleted_topics_that_only_their_records_name() -> None:
    """In `Departures._eviction_record`, look at marks only: one that may hold anything may still read such a topic."""
    world = world_with(GroupSettings(rebalance_timeout_ms=4_000), "a")
    world.agents["a"].silent = True
    world.kill_coordinator(world.leader())
    world.delete_topic("t")
    world.set_topic("u", 1)
    world.zk.perform(Multi((SetContent(paths.owners(GROUP, "a-1"), b"?"), SetContent(GIVEN, b""))))
    hide(world, OFFSETS)
    record = ownership.decode_eviction(world.zk.nodes[paths.evicted(GROUP, "a-1")].content)
    assert record.topics == ("t", "u")


# ---- the records of partitions given to members


@MODES
def test_all_keep_what_they_hold_while_what_was_given_may_not_be_read(mode: str) -> None:
    """In `GroupReader._adopt_commands`, hide only what one record hides; in `Membership`, let newcomers be served.

    In `GivenRecords.look`, write: the mark would say that nothing is missing.
    """
    world = world_with(GroupSettings(mode=mode, rebalance_timeout_ms=2_000), "a", "b")
    before, mark = world.owned(), world.zk.nodes[GIVEN].content
    hide(world, GIVEN)
    world.add_agent("c")
    world.pass_time(100_000)
    assert world.owned() == {**before, "c-1": {}}
    assert (is_at_rest(world), refused(world), count_logged(world, GIVEN)) == (True, [GIVEN], 1)
    end(world, "b")
    world.pass_time(SETTLED_MS)
    assert world.owned() == {"a-1": before["a-1"], "c-1": {}}
    assert world.zk.nodes[GIVEN].content == mark
    show_again(world)
    assert not events(world, "false_claim")


def test_a_group_without_members_is_not_marked_while_what_was_given_may_not_be_read() -> None:
    """In `GivenRecords.look`, write: a later leader would believe the mark, and the records in an older one."""
    world = world_with(GroupSettings(), "a", "b")
    end(world, "a", "b")
    world.pass_time(SETTLED_MS)
    world.zk.perform(Multi((SetContent(GIVEN, b""),)))
    hide(world, GIVEN)
    world.pass_time(60_000)
    assert world.zk.nodes[GIVEN].content == b""
    show_again(world)


def test_what_somebody_claims_while_what_was_given_is_hidden_is_judged_as_soon_as_it_is_not() -> None:
    """In `GroupView.refresh`, note it as given: it would be true from then on."""
    world = world_with(GroupSettings(), "a", "b")
    world.agents["a"].silent = True
    world.rogues.add("a-1")
    claim = ownership.encode_owners(OwnersRecord(1, None, {("t", number): 0 for number in range(4)}))
    world.kill_coordinator(world.leader())
    world.zk.perform(Multi((SetContent(paths.owners(GROUP, "a-1"), claim),)))
    hide(world, GIVEN)
    world.pass_time(20_000)
    assert not events(world, "false_claim")
    world.zk.denied.clear()
    world.pass_time(60_000)
    assert len(events(world, "false_claim")) == 1
    assert [owner_of(world, ("t", number)) for number in range(4)] == ["b-1"] * 4


# ---- nodes without which a group is not served


@pytest.mark.parametrize("path_of", [paths.ids, paths.owners, paths.channel, paths.evicted, paths.generation])
def test_a_group_whose_holders_nobody_can_know_is_loading_and_says_why(path_of: Callable[[str], str]) -> None:
    """In `expected_refusals`, expect that they may not be read: partitions that are held would be free."""
    world = world_with(GroupSettings(), "a", "b")
    before, path = world.owned(), path_of(GROUP)
    hide(world, path)
    world.add_agent("c")
    world.pass_time(100_000)
    assert world.owned() == {**before, "c-1": {}}
    assert world.leader().machine.groups[GROUP].state is GroupState.LOADING
    assert (refused(world), count_logged(world, path)) == ([path], 1)
    show_again(world)
