"""What other programs do to a group, and a leader that has to lead once more: found by the simulation."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.support.groups import events, world_with
from tests.support.world import GROUP, CoordinatorProcess, World
from tests.support.zk_model import Session
from zkrebalancer.protocol import ownership, paths
from zkrebalancer.protocol.calls import (
    Call,
    Create,
    Delete,
    Done,
    Multi,
    Operation,
    Refusal,
    Refused,
    Replied,
    Reply,
    SetContent,
    Sync,
)
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance import topic_reset
from zkrebalancer.rebalance.reconciling import RECONCILE_INTERVAL_US


def write(world: World, *operations: Operation) -> None:
    assert isinstance(world.zk.perform(Multi(operations)), Done)


def fail_over(world: World) -> None:
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    world.pass_time(2_000)


def test_records_of_what_was_given_that_are_lost_are_not_called_reliable(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Batch`, mark them whatever their version is: the next leader would evict whoever has no record."""
    monkeypatch.setattr(World, "check", lambda _world: None)  # it would miss the records
    world = world_with(GroupSettings(), "a", "b")
    folder = paths.given(GROUP)
    write(world, *(Delete(f"{folder}/{name}") for name in world.zk.children(folder)), Delete(folder))
    write(world, Create(folder))
    world.set_topic("u", 2)
    world.add_agent("c", {"t": 1, "u": 1})
    world.pass_time(5_000)
    fail_over(world)
    assert not events(world, "false_claim")
    assert {name: len(owned) for name, owned in world.owned().items()} == {"a-1": 2, "b-1": 2, "c-1": 2}


def test_a_generation_that_is_deleted_goes_on_above_those_of_members_that_have_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In `Loading._complete`, count on from the id of the group's own transaction: sinks would ignore what follows."""
    monkeypatch.setattr(World, "check", lambda _world: None)  # it would miss the generation
    world = world_with(GroupSettings(), "a")
    write(world, SetContent(paths.generation(GROUP), b"garbled"))
    fail_over(world)
    for _ in range(3):  # generations of which nothing else is left
        agent = world.add_agent("b")
        world.pass_time(1_000)
        world.kill_agent(agent)
        world.pass_time(10_000)
    reached = world.generation()
    world.kill_agent(world.agents["a"])
    world.pass_time(60_000)
    world.kill_coordinator(world.leader())
    write(world, Delete(paths.generation(GROUP)))
    world.add_coordinator()
    world.add_agent("c")
    world.pass_time(60_000)
    assert len(world.owned()["c-1"]) == 4
    assert world.generation() > reached


def test_a_folder_of_records_that_is_made_anew_while_they_are_marked_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In `GivenRecords._marked`, try again and again with the version that the folder had."""
    monkeypatch.setattr(World, "check", lambda _world: None)  # it would miss the records
    world = world_with(GroupSettings(), "a")
    folder = paths.given(GROUP)
    write(world, Delete(f"{folder}/a-1"), Delete(folder), Create(folder))
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    while f"{folder}/a-1" not in world.zk.nodes:
        world.pass_time(10)
    assert not world.zk.nodes[folder].content  # the record is written again, and the mark will be
    write(world, Delete(f"{folder}/a-1"), Delete(folder), Create(folder), Create(f"{folder}/stranger"))
    world.pass_time(10_000)
    assert ownership.decode_given(world.zk.nodes[paths.given(GROUP, "a-1")].content) == world.owned()["a-1"].keys()
    assert world.zk.nodes[folder].content == str(world.generation()).encode()


def test_a_folder_that_a_leader_makes_anew_proves_nothing_where_the_generation_is_lost_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In `Loading._complete`, create it with a mark: the next leader would evict whoever has no record."""
    monkeypatch.setattr(World, "check", lambda _world: None)  # it would miss the records
    world = world_with(GroupSettings(), "a", "b")
    folder = paths.given(GROUP)
    world.kill_coordinator(world.leader())
    write(world, *(Delete(f"{folder}/{name}") for name in world.zk.children(folder)), Delete(folder))
    write(world, SetContent(paths.generation(GROUP), b""))
    world.add_coordinator()
    while folder not in world.zk.nodes:
        world.pass_time(1)
    assert not world.zk.children(folder)
    fail_over(world)
    assert not events(world, "false_claim")
    assert {name: len(owned) for name, owned in world.owned().items()} == {"a-1": 2, "b-1": 2}


def test_a_consumer_in_a_folder_that_was_made_anew_is_found_at_once() -> None:
    """In `Coordinator._group_watched`, list no consumers when the group's folders change."""
    world = world_with(GroupSettings())
    write(world, Delete(paths.ids(GROUP)))
    world.pass_time(1_000)
    write(world, Create(paths.ids(GROUP)))
    world.add_agent("a")
    world.pass_time(2_000)
    assert len(world.owned()["a-1"]) == 4


def _refuse_one_sync(world: World, process: CoordinatorProcess) -> None:
    """Break its connection, and refuse the sync of the next one."""
    world.zk.disconnect(process.session)
    world.zk.reconnect(process.session)
    perform_next, refused = world.zk.perform_next, [False]

    def refusing(session: Session) -> None:
        if session is process.session and not refused[0] and isinstance(session.sent[0][1], Sync):
            refused[0] = True
            call_id, _call = session.sent.popleft()
            session.answer(Replied(call_id, Refused(Refusal.NO_AUTH)))
        else:
            perform_next(session)

    world.zk.perform_next = refusing  # type: ignore[method-assign]


def test_a_leader_that_leads_once_more_in_the_same_epoch_repeats_no_id() -> None:
    """In `coordinator_startup`, make the ids from session and epoch only: a command would count as applied."""
    world = world_with(GroupSettings(), "a", "b")
    process = world.leader()
    _refuse_one_sync(world, process)
    world.pass_time(5_000)
    world.add_agent("c")
    world.pass_time(5_000)
    assert [event["epoch"] for event in events(world, "leader_elected")] == [1, 1]
    ids = [event["command_id"] for event in events(world, "command_sent")]
    assert len(ids) == len(set(ids))
    assert {len(owned) for owned in world.owned().values()} == {1, 2}
    world.assert_settled()


def test_a_group_that_rests_again_and_again_is_reconciled_all_the_same() -> None:
    """In `Reconciling.expect`, move the reading each time: what no watch reports would never be found."""
    world = world_with(GroupSettings(), "a")
    world.rogues.add("x")
    write(world, Create(paths.owners(GROUP, "x"), ownership.encode_owners(OwnersRecord(0, None, {}))))
    for _ in range(RECONCILE_INTERVAL_US // 100_000_000 + 1):
        world.pass_time(100_000)
        world.configure(world.zk.nodes[paths.group(GROUP)].content)  # an operator asks for a rebalance
    world.pass_time(60_000)
    assert paths.owners(GROUP, "x") not in world.zk.nodes


def test_a_record_that_cannot_be_read_nor_removed_is_tried_at_growing_intervals() -> None:
    """In `Departures.evict`, do not look whether an eviction has just been prevented."""
    world = world_with(GroupSettings(), "a")
    world.rogues.add("x")
    write(world, Create(paths.owners(GROUP, "x"), b"0"), Create(f"{paths.owners(GROUP, 'x')}/below"))
    tried_us: list[int] = []
    perform = world.zk.perform

    def noting(call: Call, session_id: int = 0) -> Reply:
        if isinstance(call, Multi) and Delete(paths.owners(GROUP, "x")) in call.operations:
            tried_us.append(world.now_us)
        return perform(call, session_id)

    world.zk.perform = noting  # type: ignore[method-assign]
    fail_over(world)
    world.pass_time(200_000)
    pauses_us = [later - earlier for earlier, later in pairwise(tried_us)]
    assert 5 < len(pauses_us) < 20
    assert max(pauses_us) > 25_000_000
    assert sorted(pauses_us)[len(pauses_us) // 2 :] == pauses_us[len(pauses_us) // 2 :]
    write(world, Delete(f"{paths.owners(GROUP, 'x')}/below"))
    world.pass_time(120_000)
    assert not [path for path in world.zk.nodes if path.endswith("/x")]


@pytest.mark.parametrize("limit", [1, 500])
def test_a_topic_made_anew_is_served_although_an_old_offset_cannot_be_deleted(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """In `TopicReset._operations`, delete them all the same: none of the topic's partitions would get an owner."""
    monkeypatch.setattr(topic_reset, "MAX_DELETES_PER_TRANSACTION", limit)
    world = world_with(GroupSettings(), "a")
    offsets = paths.offsets(GROUP, "t")
    write(world, *(Create(f"{offsets}/{number}", b"7") for number in range(3)))
    write(world, Create(f"{offsets}/0/below"), Create(f"{offsets}/1/below"))
    world.delete_topic("t")
    world.pass_time(2_000)
    world.set_topic("t", 4, "id-2")
    world.pass_time(60_000)
    assert len(world.owned()["a-1"]) == 4
    contents = {name: world.zk.nodes[f"{offsets}/{name}"].content for name in world.zk.children(offsets)}
    assert contents == {"0": b"", "1": b""}
    write(world, SetContent(f"{offsets}/0", b"9"))
    world.delete_topic("t")
    world.pass_time(2_000)
    world.set_topic("t", 4, "id-3")  # without it, 9 would count as an offset of the new topic
    world.pass_time(60_000)
    assert len(world.owned()["a-1"]) == 4
    assert not world.zk.nodes[f"{offsets}/0"].content
