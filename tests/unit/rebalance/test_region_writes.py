"""The leader of a region stores merges and offsets beside its orders, and deletes those that no order names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.groups import answer_one
from tests.support.region_world import SETTINGS, RegionWorld
from tests.support.world import GROUP
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Create, Delete, Multi, Operation, SetContent
from zkrebalancer.protocol.requests import RequestLimit
from zkrebalancer.rebalance import region_writes
from zkrebalancer.rebalance.scheduler import FIRST_PAUSE_US
from zkrebalancer.region.documents import RESET, Initial, Round, encode_initial


def region_with_unheld(*names: str, partitions: int = 2, **options: object) -> RegionWorld:
    """Return a region of a group whose members have stopped reading the topic `u`."""
    region = RegionWorld(*(names or ("a", "b")), **options)  # type: ignore[arg-type]
    region.world.set_topic("u", partitions)
    region.run()
    return region


def make_topic_anew(region: RegionWorld) -> None:
    """Delete the topic `u`, and create it with another id."""
    region.world.delete_topic("u")
    region.run()
    region.world.set_topic("u", 2, "id-of-another")
    region.run()


def unheld_in_merge(region: RegionWorld) -> dict[int, int]:
    return {number: at for (topic, number), at in region.merge().offsets.items() if topic != "t"}


def reset(region: RegionWorld) -> None:
    region.ask("reset", "a", "of the test")
    region.run()
    region.answer_all(0)


# ---- a checkpoint


def test_partitions_without_a_holder_are_merged_where_the_group_has_stored_them() -> None:
    region = region_with_unheld(partitions=4)
    region.store_initial("u", {0: 3, 1: 4, 2: 5})
    region.store_offsets("u", {0: 30, 2: 50, 3: 60})
    region.complete_checkpoint()
    assert unheld_in_merge(region) == {0: 30, 1: 4, 2: 50}  # u/3 has no initial offset: nothing of it had an effect


def test_what_the_group_has_not_stored_stays_where_the_last_merge_has_it() -> None:
    region = region_with_unheld()
    region.store_initial("u", {0: 3, 1: 4})
    region.store_offsets("u", {0: 30, 1: 40})
    region.complete_checkpoint()
    region.delete(paths.offsets(GROUP, "u", 0))
    region.set(paths.offsets(GROUP, "u", 1), b"foreign")
    region.complete_checkpoint()
    assert unheld_in_merge(region) == {0: 30, 1: 40}


def test_a_held_partition_is_merged_where_its_holder_is_whatever_is_stored() -> None:
    region = region_with_unheld()
    region.store_initial("t", {0: 3, 1: 4, 2: 5, 3: 6})
    region.store_offsets("t", {0: 99, 1: 99, 2: 99, 3: 99})
    region.complete_checkpoint(7)
    assert set(region.merge().offsets.values()) == {7}


def test_a_forced_region_keeps_what_no_member_holds_where_the_last_merge_has_it() -> None:
    """Offsets of the group do not matter: nothing but a reset moves a partition."""
    region = region_with_unheld(settings=replace(SETTINGS, recovery="forced"))
    region.store_initial("u", {0: 3, 1: 4})
    region.store_offsets("u", {0: 30, 1: 40})
    region.complete_checkpoint()
    assert unheld_in_merge(region) == {0: 3, 1: 4}
    region.open_checkpoint()
    region.answer("a", region.held("a", 5) | {("u", 0): 8})
    region.answer("b", region.held("b", 5))
    region.run()
    assert unheld_in_merge(region) == {0: 8, 1: 4}
    region.complete_checkpoint()
    assert unheld_in_merge(region) == {0: 8, 1: 4}


def test_a_forced_region_keeps_no_place_of_a_topic_that_was_deleted_and_made_anew() -> None:
    """In `RegionWrites._merge`, take the offsets of the last merge for those of the present topic."""
    region = region_with_unheld(settings=replace(SETTINGS, recovery="forced"))
    region.store_initial("u", {0: 30, 1: 40})
    region.complete_checkpoint()
    assert unheld_in_merge(region) == {0: 30, 1: 40}
    make_topic_anew(region)
    path = paths.region(GROUP, "initial", "u")
    region.write(*(SetContent(f"{path}/{n}", encode_initial(Initial(n, "id-of-another"))) for n in (0, 1)))
    region.complete_checkpoint()
    assert unheld_in_merge(region) == {0: 0, 1: 1}


def test_partitions_and_topics_that_do_not_exist_are_in_no_merge_and_get_no_offsets() -> None:
    region = region_with_unheld()
    region.store_initial("u", {1: 4, 2: 5})
    region.write(Create(paths.region(GROUP, "initial", "u/x")))
    region.store_initial("gone", {0: 9})
    region.complete_checkpoint()
    assert unheld_in_merge(region) == {1: 4}
    reset(region)
    assert region.offsets("u") == {1: "4"}
    assert paths.offsets(GROUP, "gone") not in region.world.zk.nodes


def test_an_initial_offset_that_cannot_be_read_is_named_and_the_others_are_merged() -> None:
    region = region_with_unheld()
    region.store_initial("u", {0: 3, 1: 4})
    path = paths.region(GROUP, "initial", "u/0")
    region.set(path, b"foreign")
    region.complete_checkpoint()
    assert unheld_in_merge(region) == {1: 4}
    (warning,) = region.warnings()
    assert warning.startswith(f"group {GROUP}: {path}: initial offset: not JSON")


def test_many_partitions_without_a_holder_are_read_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_writes, "MAX_AT_ONCE", 2)
    region = region_with_unheld(partitions=7)
    wanted = {number: 10 + number for number in range(7)}
    region.store_initial("u", wanted)
    region.complete_checkpoint()
    assert unheld_in_merge(region) == wanted
    reset(region)
    assert region.offsets("u") == {number: str(at) for number, at in wanted.items()}
    stored = [
        sum(operation.path.startswith(f"{paths.offsets(GROUP, 'u')}/") for operation in operations)
        for operations in region.world.zk.transactions
    ]
    assert [count for count in stored if count] == [2, 2, 2, 1]


def test_a_merge_is_stored_in_pieces_and_named_by_the_order_after_the_last_of_them() -> None:
    region = RegionWorld("a", "b", partitions=40, limit=RequestLimit(max_bytes=4_000))
    region.complete_checkpoint()
    assert region.order().pieces > 3
    assert len(region.merge().offsets) == 40
    stored = [operation.path for operations in region.world.zk.transactions for operation in operations]
    last = max(index for index, path in enumerate(stored) if path.startswith(paths.region(GROUP, "merged") + "/"))
    assert stored[last + 1 :].count(paths.region(GROUP, "order")) == 1


def test_a_merge_of_so_many_pieces_is_stored_and_one_of_more_voids_its_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    region = RegionWorld("a", "b", partitions=40, limit=RequestLimit(max_bytes=4_000))
    region.complete_checkpoint()
    pieces = region.order().pieces
    monkeypatch.setattr(region_writes, "MAX_PIECES", pieces)
    region.complete_checkpoint()
    monkeypatch.setattr(region_writes, "MAX_PIECES", pieces - 1)
    region.open_checkpoint()
    region.answer_all()
    assert (region.order().open, region.order().complete) == (None, 2)
    assert region.warnings() == [f"group {GROUP}: region: a checkpoint is void: its merge cannot be stored"]
    assert region.merge().id == 2


def test_a_piece_that_somebody_else_has_stored_voids_the_checkpoint_and_the_next_one_is_complete() -> None:
    region = RegionWorld("a", "b")
    number = region.open_checkpoint()
    region.write(Create(paths.region(GROUP, "merged", f"{number}.1"), b"of somebody else"))
    region.answer_all()
    assert region.warnings() == [f"group {GROUP}: region: a checkpoint is void: its merge cannot be stored"]
    assert region.children("merged") == []
    assert region.complete_checkpoint() == number + 1
    assert region.merge().offsets == region.held("a", 5) | region.held("b", 5)


# ---- a reset


def test_after_a_reset_partitions_without_a_holder_continue_where_the_merge_has_them_or_else_at_the_beginning() -> None:
    region = region_with_unheld(partitions=3)
    region.store_initial("u", {0: 3, 1: 4})
    region.store_offsets("u", {0: 30})
    region.complete_checkpoint()
    region.set(paths.offsets(GROUP, "u", 0), b"31")
    region.write(
        Create(
            paths.region(GROUP, "initial", "u/2"), region.world.zk.nodes[paths.region(GROUP, "initial", "u/0")].content
        )
    )
    region.write(Create(paths.offsets(GROUP, "u", 2), b"32"))
    reset(region)
    assert region.order().open is None
    assert region.offsets("u") == {0: "30", 1: "4", 2: "3"}


@pytest.mark.parametrize("is_in_merge", [False, True])
def test_a_topic_made_anew_does_not_continue_where_the_deleted_one_began_or_was(is_in_merge: bool) -> None:
    """In `RegionWrites`, do not look at the incarnation of initial offsets, or of a merge."""
    region = region_with_unheld()
    region.store_initial("u", {0: 3, 1: 4})
    if is_in_merge:
        region.complete_checkpoint()
        assert unheld_in_merge(region) == {0: 3, 1: 4}
    make_topic_anew(region)
    if is_in_merge:  # somebody has begun to read the new topic, at its first record
        path = paths.region(GROUP, "initial", "u")
        region.write(*(SetContent(f"{path}/{n}", encode_initial(Initial(0, "id-of-another"))) for n in (0, 1)))
    reset(region)
    assert region.offsets("u") == ({0: "0", 1: "0"} if is_in_merge else {})


def test_an_offset_that_is_right_already_is_not_written() -> None:
    region = region_with_unheld()
    region.store_initial("u", {0: 3, 1: 4})
    region.store_offsets("u", {0: 3, 1: 40})
    reset(region)
    nodes = region.world.zk.nodes
    assert [nodes[paths.offsets(GROUP, "u", number)].version for number in (0, 1)] == [0, 1]
    assert region.offsets("u") == {0: "3", 1: "4"}


def test_the_first_offset_of_a_topic_is_stored_with_the_mark_of_its_incarnation() -> None:
    """Without it, the next leader would take the offset for one of an earlier topic of that name."""
    region = region_with_unheld()
    region.world.set_topic("v", 1)
    region.run()
    region.store_initial("u", {0: 3})
    region.store_initial("v", {0: 5})
    reset(region)
    marks = [region.world.zk.nodes[paths.offsets(GROUP, topic)].content.decode() for topic in "uv"]
    assert marks == [region.world.topics()[topic].incarnation for topic in "uv"]
    assert (region.offsets("u"), region.offsets("v")) == ({0: "3"}, {0: "5"})


def test_a_member_that_stores_an_offset_meanwhile_delays_the_end_of_the_reset_and_does_not_prevent_it() -> None:
    region = region_with_unheld()
    region.store_initial("u", {0: 3, 1: 4})
    region.store_offsets("u", {0: 30, 1: 40})
    region.ask("reset", "a", "of the test")
    region.run()
    for name in "ab":
        region.answer(name, region.held(name, 0))
    process = region.world.leader()
    while not any(_sets(call, paths.offsets(GROUP, "u", 1)) for _id, call in process.session.sent):
        answer_one(region.world, process)
    region.set(paths.offsets(GROUP, "u", 1), b"41")
    region.pass_time(FIRST_PAUSE_US // 1_000 - 1)
    assert region.order().open == Round(1, RESET, ("a", "b"))
    assert region.offsets("u") == {0: "30", 1: "41"}
    region.pass_time(1)
    assert region.order().open is None
    assert region.offsets("u") == {0: "3", 1: "4"}


def _sets(call: object, path: str) -> bool:
    return isinstance(call, Multi) and any(
        isinstance(operation, SetContent) and operation.path == path for operation in call.operations
    )


def test_a_forced_reset_writes_no_offsets() -> None:
    """All its members seek, also what comes to them later."""
    region = region_with_unheld(settings=replace(SETTINGS, recovery="forced"))
    region.store_initial("u", {0: 3})
    region.store_offsets("u", {0: 30})
    reset(region)
    assert region.order().open is None
    assert region.offsets("u") == {0: "30"}


# ---- what no order names any more


def test_of_former_rounds_nothing_is_kept_but_the_last_complete_one() -> None:
    region = RegionWorld("a", "b")
    region.write(
        Create(paths.region(GROUP, "merged", "11.0")),
        Create(paths.region(GROUP, "merged", "junk")),
        Create(paths.region(GROUP, "contributions", "11")),
        Create(paths.region(GROUP, "contributions", "11/a.0")),
        Create(paths.region(GROUP, "contributions", "11/b.0")),
    )
    region.open_checkpoint()
    assert region.children("contributions") == ["1"]
    assert region.children("merged") == []
    region.answer_all()
    assert region.merge().id == 1
    region.open_checkpoint()
    assert region.merge().id == 1
    region.answer("a", region.held("a", 6))
    region.run()
    assert (region.children("contributions"), region.children("contributions/2")) == (["1", "2"], ["a.0"])
    region.answer("b", region.held("b", 6))
    region.run()
    assert (region.merge().id, region.children("contributions")) == (2, ["2"])


def test_many_rests_are_deleted_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_writes, "MAX_AT_ONCE", 3)
    region = RegionWorld("a", "b")
    region.write(*(Create(paths.region(GROUP, "merged", f"11.{number}")) for number in range(8)))
    left = []
    for _ in range(3):
        region.open_checkpoint()
        region.pass_time(SETTINGS.reset_ms)  # it is void
        left.append(sum(name.startswith("11.") for name in region.children("merged")))
    assert left == [2, 0, 0]  # after the beginning and the end of each round


def test_a_transaction_of_deletions_is_no_larger_than_its_limit() -> None:
    limit = RequestLimit(max_bytes=2_000)
    region = RegionWorld("a", limit=limit)
    region.write(*(Create(paths.region(GROUP, "merged", f"11.{number}")) for number in range(100)))
    region.complete_checkpoint()
    deleting = [operations for operations in region.world.zk.transactions if any(_is_rest(one) for one in operations)]
    assert deleting
    assert all(limit.fits(operations) for operations in deleting)


def _is_rest(operation: Operation) -> bool:
    return isinstance(operation, Delete) and operation.path.startswith(paths.region(GROUP, "merged", "11."))


@pytest.mark.parametrize("at_once", [1, 2, 200])
def test_initial_offsets_of_a_deleted_topic_are_removed(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(region_writes, "MAX_AT_ONCE", at_once)
    region = region_with_unheld(partitions=2)
    region.store_initial("u", {0: 3, 1: 4})
    region.store_initial("t", {0: 1})
    region.store_initial("empty", {})
    region.world.delete_topic("u")
    for _ in range(6):
        region.complete_checkpoint()
    assert region.children("initial") == ["t"]
    assert region.children("initial/t") == ["0"]
    assert not region.warnings()


def test_initial_offsets_stay_while_a_member_still_holds_the_deleted_topic() -> None:
    region = RegionWorld("a")
    region.store_initial("t", {0: 1})
    region.world.agents["a"].silent = True
    region.world.delete_topic("t")
    region.run()
    region.ask("reset", "a", "of the test")  # the order of a round
    region.run()
    assert region.children("initial") == ["t"]
