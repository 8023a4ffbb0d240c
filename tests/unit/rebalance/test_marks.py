"""Two marks show which topic offsets belong to; a foreign write to one of them deletes no offset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

import pytest

from tests.support.groups import copies, world_with
from tests.support.world import GROUP, World
from tests.support.zk_model import Right, Session
from zkrebalancer.protocol import paths, settings
from zkrebalancer.protocol.calls import (
    Children,
    Create,
    Delete,
    ListChildren,
    Multi,
    Operation,
    Refusal,
    Refused,
    SetContent,
)
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance import topic_reset
from zkrebalancer.rebalance.reader import GroupReader
from zkrebalancer.rebalance.states import GroupState
from zkrebalancer.rebalance.view import GroupView

MARK, RECORD = paths.offsets(GROUP, "t"), paths.incarnations(GROUP, "t")


def world_with_an_offset() -> World:
    world = world_with(GroupSettings(), "a")
    world.zk.perform(Multi((Create(paths.offsets(GROUP, "t", 0), b"4711"),)))
    return world


def write_while_nobody_leads(world: World, *operations: Operation) -> None:
    world.kill_coordinator(world.leader())
    world.zk.perform(Multi(operations))
    world.add_coordinator()
    world.pass_time(3_000)


def stored(world: World) -> list[str]:
    return [world.zk.nodes[path].content.decode() for path in (MARK, RECORD)]


@pytest.mark.parametrize("is_pause_seen", [True, False])
def test_offsets_that_are_stored_after_an_interrupted_deletion_are_marked(is_pause_seen: bool) -> None:
    """In `Group._settings_read`, do not read the group after a pause: offsets without a mark fit each later topic.

    Do not look at versions there: a pause that is over when the settings are read shows only in these.
    """
    world = world_with(GroupSettings(), "a")
    world.leave(world.agents["a"])
    world.agents["a"].alive = False
    world.pass_time(1_000)
    world.configure(settings.encode(GroupSettings(starts_paused=True, paused_by="deletion/1")))
    if is_pause_seen:
        world.pass_time(100)
    world.zk.perform(Multi((Delete(MARK), Delete(RECORD))))
    world.configure(settings.encode(GroupSettings()))
    world.pass_time(1_000)
    world.add_agent("b")
    world.pass_time(1_000)
    assert len(world.owned()["b-1"]) == 4
    assert [path in world.zk.nodes and b"id-1" in world.zk.nodes[path].content for path in (MARK, RECORD)] == [True] * 2


@pytest.mark.parametrize("junk", [b"null", b"\xff", b"", b"id-9", b"id-9 czxid-99"])
@pytest.mark.parametrize("path", [MARK, RECORD])
def test_what_somebody_writes_over_one_of_the_two_is_put_right(path: str, junk: bytes) -> None:
    """In `OffsetMarks.is_stale`, believe either alone; in `OffsetMarks.names_to_store`, look at one of them."""
    world = world_with_an_offset()
    before, generation, said = world.owned(), world.generation(), stored(world)
    write_while_nobody_leads(world, SetContent(path, junk))
    assert world.zk.children(MARK) == ["0"]
    assert (world.owned(), world.generation(), stored(world), copies(world)) == (before, generation, said, [])


@pytest.mark.parametrize("junk", [b"null", b"\xff", b""])
@pytest.mark.parametrize("path", [MARK, RECORD])
def test_offsets_of_a_former_topic_are_deleted_whatever_one_of_the_two_says(path: str, junk: bytes) -> None:
    """In `OffsetMarks.is_stale`, look at one of the two only."""
    world = world_with_an_offset()
    world.kill_coordinator(world.leader())
    world.delete_topic("t")
    world.set_topic("t", 4, "id-2")
    world.zk.perform(Multi((SetContent(path, junk),)))
    world.add_coordinator()
    world.pass_time(3_000)
    assert world.zk.children(MARK) == []
    assert [copy.offsets for copy in copies(world)] == [{0: 4711}]
    assert {names.split()[0] for names in stored(world)} == {"id-2"}
    world.assert_settled()


@pytest.mark.parametrize(
    ("mark", "is_kept"), [(None, True), (b"null", True), (b"id-0", True), (b"", True), (b"id-0 czxid-1", False)]
)
def test_before_there_is_a_record_a_mark_counts_if_a_coordinator_can_have_written_it(
    mark: bytes | None, is_kept: bool
) -> None:
    """An older version wrote no records. In `OffsetMarks.is_stale`, believe any mark."""
    world = world_with_an_offset()
    writes: list[Operation] = [Delete(RECORD)]
    writes += [SetContent(MARK, mark)] if mark is not None else []
    write_while_nobody_leads(world, *writes)
    assert world.zk.children(MARK) == (["0"] if is_kept else [])
    world.set_topic("t", 5)
    world.pass_time(2_000)
    assert len(set(stored(world))) == 1
    world.assert_settled()


def test_what_an_older_version_has_reset_is_not_reset_again() -> None:
    """It writes the mark alone. In `OffsetMarks.is_stale`, believe the record alone."""
    world = world_with_an_offset()
    world.kill_coordinator(world.leader())
    world.delete_topic("t")
    world.set_topic("t", 4, "id-2")
    world.zk.perform(Multi((SetContent(MARK, world.topics()["t"].incarnation.encode()),)))
    world.add_coordinator()
    world.pass_time(3_000)
    assert world.zk.children(MARK) == ["0"]
    assert {names.split()[0] for names in stored(world)} == {"id-2"}


def test_the_record_goes_with_the_offsets_of_a_topic_that_stays_deleted() -> None:
    """In `TopicReset._operations`, leave it."""
    world = world_with_an_offset()
    world.delete_topic("t")
    world.pass_time(4_000_000)
    assert not world.zk.children(paths.offsets(GROUP))
    assert not world.zk.children(paths.incarnations(GROUP))


def test_a_record_that_is_gone_when_it_is_read_is_created_and_not_replaced() -> None:
    """In `GroupReader._recorded_incarnation_read`, keep its name."""
    reader = GroupReader(GROUP, {}, watch=True)
    reader._incarnations_listed(Children(("t",)))
    reader._recorded_incarnation_read("t", Refused(Refusal.NO_NODE))
    (record, _mark) = topic_reset.stores(reader.view, "t", "id-1")
    assert isinstance(record, Create)


def test_many_records_are_written_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an upgrade there are none. In `TopicReset._renamed`, do not go on."""
    monkeypatch.setattr(topic_reset, "MAX_RENAMES", 2)
    world = world_with()
    topics = [f"t{number}" for number in range(5)]
    for topic in topics:
        world.set_topic(topic, 1)
    world.add_agent("a", dict.fromkeys(topics, 1))
    world.pass_time(2_000)
    transactions = len(world.zk.transactions)
    write_while_nobody_leads(world, *(Delete(paths.incarnations(GROUP, topic)) for topic in topics))
    assert world.zk.children(paths.incarnations(GROUP)) == topics
    writes = [
        sum(isinstance(each, Create) and each.path.startswith(paths.incarnations(GROUP)) for each in operations)
        for operations in world.zk.transactions[transactions:]
    ]
    assert [count for count in writes if count] == [2, 2, 1]


def test_all_topics_are_looked_at_only_while_a_group_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at each acknowledgement, also of a topic that was made anew: then each of them took 24 ms with 3,000 topics.

    In `Group._note_released`, look at all topics whenever something was let go, or something stale.
    """
    states: list[GroupState] = []
    world = world_with(GroupSettings(), "a", partitions=8)
    renamed = GroupView.renamed_topics

    def noted(view: GroupView, limit: int, but: Container[str] = ()) -> dict[str, str]:
        states.append(world.leader().machine.groups[view.group].state)
        return renamed(view, limit, but)

    monkeypatch.setattr(GroupView, "renamed_topics", noted)
    for name in "bcd":
        world.add_agent(name)
        world.pass_time(2_000)
    world.delete_topic("t")
    world.set_topic("t", 8, "id-2")
    world.pass_time(3_000)
    world.assert_settled()
    assert set(states) == {GroupState.IDLE}


def test_a_refused_name_is_not_stored_once_the_topic_was_made_anew() -> None:
    """In `TopicReset._rename`, let the scheduler repeat the refused write."""
    world = world_with_an_offset()
    denied = "", RECORD, Right.WRITE
    world.kill_coordinator(world.leader())
    world.zk.perform(Multi((SetContent(RECORD, b"id-9"),)))
    world.zk.denied.add(denied)
    world.add_coordinator()
    world.pass_time(20_000)
    world.delete_topic("t")
    world.set_topic("t", 4, "id-2")
    world.pass_time(1_000)
    before = len(world.zk.transactions)
    world.zk.denied.discard(denied)
    world.pass_time(60_000)
    written = [each for done in world.zk.transactions[before:] for each in done if each.path == RECORD]
    assert [each.content for each in written if isinstance(each, SetContent | Create) and b"id-1" in each.content] == []
    assert all("id-2" in each for each in stored(world))


def test_many_topics_that_are_made_anew_are_reset_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `TopicReset._begin_some`, begin with all, or with no more."""
    monkeypatch.setattr(topic_reset, "MAX_BEGUN", 2)
    world = world_with()
    marks = {f"t{number}": paths.offsets(GROUP, f"t{number}") for number in range(5)}
    for topic in marks:
        world.set_topic(topic, 1)
    world.add_agent("a", dict.fromkeys(marks, 1))
    world.pass_time(2_000)
    offsets = [Create(f"{mark}/0", b"7") for mark in marks.values()]
    world.zk.perform(Multi((Create(paths.deleted_offsets(GROUP)), *offsets)))
    perform_next, begun = world.zk.perform_next, Counter[int]()

    def noted(session: Session) -> None:
        _call_id, call = session.sent[0]
        begun[world.now_us] += isinstance(call, ListChildren) and call.path in marks.values()
        perform_next(session)

    monkeypatch.setattr(world.zk, "perform_next", noted)
    for topic in marks:
        world.delete_topic(topic)
        world.set_topic(topic, 1, "id-2")
    world.pass_time(3_000)
    assert (max(begun.values()), begun.total()) == (2, 5)
    assert not any(map(world.zk.children, marks.values()))
    assert len(world.owned()["a-1"]) == 5
