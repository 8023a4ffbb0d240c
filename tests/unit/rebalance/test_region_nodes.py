"""The leader of a region and nodes that it did not expect: foreign bytes, writes of others, limits of what is read."""

from __future__ import annotations

import base64
import itertools
import json
from dataclasses import replace

import pytest

from tests.support.groups import answer_one, world_with
from tests.support.region_world import ORDER, SETTINGS, RegionWorld
from tests.support.world import GROUP, World
from tests.support.zk_model import Right
from zkrebalancer.protocol import paths, settings
from zkrebalancer.protocol.calls import Create, Delete, Multi, SetContent
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance import region as region_module
from zkrebalancer.rebalance.region_nodes import MAX_QUARANTINED_BYTES
from zkrebalancer.rebalance.scheduler import pause_us
from zkrebalancer.region import documents
from zkrebalancer.region.documents import CHECKPOINT, RESET, Order, Round

NODE = paths.region(GROUP)


def put(world: World, *operations: Create | SetContent | Delete) -> None:
    world.zk.perform(Multi(operations))


def stored_order(world: World) -> Order | None:
    return documents.decode_order(world.zk.nodes[ORDER].content) if ORDER in world.zk.nodes else None


# ---- the node of the region


def test_a_region_begins_when_its_node_has_settings_and_its_own_leader_makes_the_order() -> None:
    """A member creates the node, then its containers, then stores the settings."""
    world = world_with(GroupSettings(), "a")
    put(world, Create(NODE))
    world.run()
    put(world, *(Create(paths.region(GROUP, kind)) for kind in paths.REGION_CHILDREN))
    world.run()
    assert stored_order(world) is None
    put(world, SetContent(NODE, documents.encode_settings(SETTINGS)))
    world.run()
    assert stored_order(world) == Order()
    assert not world.warnings


def test_settings_that_cannot_be_read_are_named_and_the_region_begins_with_readable_ones() -> None:
    world = world_with(GroupSettings(), "a")
    put(world, Create(NODE, b"foreign"), *(Create(paths.region(GROUP, kind)) for kind in paths.REGION_CHILDREN))
    world.run()
    (warning,) = world.warnings
    assert warning.startswith(f"group {GROUP}: {NODE}: region: not JSON")
    assert warning.endswith("; its members cannot begin")
    assert stored_order(world) is None
    put(world, SetContent(NODE, documents.encode_settings(SETTINGS)))
    world.run()
    assert stored_order(world) == Order()


def test_changed_settings_are_in_force_from_the_next_round_on_and_no_round_begins_anew() -> None:
    region = RegionWorld("a", "b")
    region.open_checkpoint()
    before = region.orders()
    region.set(NODE, documents.encode_settings(replace(SETTINGS, every_ms=3_000)))
    region.run()
    assert region.orders() == before
    region.answer_all()
    region.pass_time(2_999)
    assert region.order().open is None
    region.pass_time(1)
    assert region.order().open == Round(2, CHECKPOINT, ("a", "b"))


# ---- the order


@pytest.mark.parametrize("content", [b"foreign", b"{}", b"\xff" * (2 * MAX_QUARANTINED_BYTES)])
def test_a_foreign_order_is_kept_in_quarantine_and_everybody_resets_to_the_newest_merge(content: bytes) -> None:
    region = RegionWorld("a", "b")
    region.complete_checkpoint()
    number = region.complete_checkpoint()
    pieces = region.order().pieces
    region.write(Create(paths.region(GROUP, "merged", "junk")))
    region.set(ORDER, content)
    version = region.world.zk.nodes[ORDER].version
    region.ask("checkpoint")
    region.pass_time(1_000)
    (name,) = region.world.zk.children(paths.quarantine(GROUP))
    kept = json.loads(region.world.zk.nodes[paths.quarantine(GROUP, name)].content)
    assert kept["reason"] == "no order of a region"
    assert base64.b64decode(kept["content_base64"]) == content[:MAX_QUARANTINED_BYTES]
    (warning,) = region.warnings()
    assert warning.startswith(f"group {GROUP}: {ORDER}: order: ")
    assert warning.endswith("; it is made anew")
    made = [order for order in region.orders() if order.pending == "the order was lost"]
    assert made[0] == Order(id=version + 1, complete=number, pieces=pieces, pending="the order was lost")
    assert region.order().open == Round(version + 2, RESET, ("a", "b"))
    region.answer_all(0)
    assert [one["round"] for one in region.events("reset_completed")] == [version + 2]
    assert region.order().open == Round(version + 3, CHECKPOINT, ("a", "b"))  # as it was asked for


def test_the_same_foreign_order_twice_is_made_anew_twice() -> None:
    """It is in quarantine from the first time."""
    region = RegionWorld("a", "b")
    for _ in range(2):
        region.set(ORDER, b"foreign")
        region.ask("checkpoint")
        region.pass_time(1_000)
        assert region.order().is_resetting
        region.answer_all(0)
        region.answer_all(0)  # the checkpoint that was asked for
        assert region.order().open is None
    assert len(region.world.zk.children(paths.quarantine(GROUP))) == 1


def orders_made_anew(region: RegionWorld) -> list[Order]:
    """Put foreign bytes into a new node of the order, without a leader; return what the next leader makes of it."""
    region.world.kill_coordinator(region.world.leader())
    region.delete(ORDER)
    region.write(Create(ORDER, b"foreign"))
    region.world.add_coordinator()
    region.run()
    return [order for order in region.orders() if order.pending == "the order was lost"]


def test_an_order_that_is_made_anew_uses_no_former_id_even_if_its_node_is_new() -> None:
    """A restored tree begins with version 0. In `RegionNodes._make_anew`, forget the ids of merges."""
    region = RegionWorld("a", "b")
    for _ in range(3):
        number = region.complete_checkpoint()
    pieces = region.order().pieces
    made = orders_made_anew(region)
    assert (made[-1].id, made[-1].complete, made[-1].pieces) == (number, number, pieces)
    assert region.order().open == Round(number + 1, RESET, ("a", "b"))


def test_an_order_that_is_made_anew_without_any_merge_begins_with_the_initial_offsets() -> None:
    region = RegionWorld("a", "b")
    made = orders_made_anew(region)
    assert made[0] == Order(id=1, pending="the order was lost")
    assert region.order().open == Round(2, RESET, ("a", "b"))


@pytest.mark.parametrize("is_led", [True, False])
def test_an_order_that_was_deleted_is_made_anew_above_all_former_ids(*, is_led: bool) -> None:
    """In `RegionNodes._trace_read`, begin anew: members who restart have no state, and no place to begin."""
    region = RegionWorld("a", "b")
    number = region.complete_checkpoint()
    pieces = region.order().pieces
    region.open_checkpoint()
    region.pass_time(SETTINGS.reset_ms)  # it is void, and its id is used
    former = region.order().id
    if not is_led:
        region.world.kill_coordinator(region.world.leader())
    region.delete(ORDER)
    if not is_led:
        region.world.add_coordinator()
    region.pass_time(1_000)
    made = next(order for order in region.orders() if order.pending == "the order was lost")
    assert (made.complete, made.pieces, made.members) == (number, pieces, {})
    assert made.id > former > number
    assert region.order().open == Round(made.id + 1, RESET, ("a", "b"))
    assert f"group {GROUP}: {ORDER}: it was deleted; it is made anew" in region.warnings()
    region.answer_all(0)
    region.complete_checkpoint()


def test_an_order_that_was_deleted_before_the_first_checkpoint_resets_everybody_to_the_initial_offsets() -> None:
    region = RegionWorld("a", "b")
    region.store_initial("t", {0: 3})
    region.delete(ORDER)
    region.pass_time(1_000)
    made = next(order for order in region.orders() if order.pending == "the order was lost")
    assert made.complete is None
    assert region.order().open == Round(made.id + 1, RESET, ("a", "b"))


def test_an_order_that_was_deleted_before_the_first_round_resets_everybody_too() -> None:
    """In `RegionNodes._trace_read`, look at `merged` and the like only: members whom no order names wait for ever."""
    region = RegionWorld("a", "b")
    region.delete(ORDER)
    region.pass_time(1_000)
    opened = region.order().open
    assert opened is not None
    assert opened.kind == RESET
    region.answer_all(0)
    region.complete_checkpoint()


def test_a_forced_region_is_read_again_although_its_group_has_no_consumers() -> None:
    """In `Region.begin`, set no timer: ZooKeeper sends no event while the right to read is withheld."""
    region = RegionWorld(settings=replace(SETTINGS, recovery="forced"))
    region.pass_time(1_000_000)
    denied = "", paths.region(GROUP, "members"), Right.READ
    region.world.zk.denied.add(denied)
    region.register("a")
    region.pass_time(1_000)
    region.world.zk.denied.discard(denied)
    region.pass_time(310_000)
    assert region.order().members.keys() == {"a"}


def test_an_order_that_somebody_else_has_written_is_followed() -> None:
    """Its write is refused; after a pause, everything is read and decided anew."""
    region = RegionWorld("a", "b")
    other = replace(region.order(), id=40)
    region.set(ORDER, documents.encode_order(other))
    region.ask("checkpoint")
    region.run()
    assert region.order() == other
    region.pass_time(pause_us(1) // 1_000 - 1)
    assert region.order() == other
    region.pass_time(1)
    assert region.order().open == Round(41, CHECKPOINT, ("a", "b"))
    region.answer_all()
    assert region.order().complete == 41


def test_orders_that_are_refused_again_and_again_are_tried_at_growing_intervals_until_one_is_stored() -> None:
    """In `Region._forget`, forget the tries."""
    region = RegionWorld("a", "b")
    region.ask("checkpoint")
    begun = region.world.now_us
    tried: list[int] = []
    process = region.world.leader()
    while len(tried) < 4:
        while process.session.sent or process.session.inbox:
            if any(_writes_order(call) for _id, call in process.session.sent):
                region.set(ORDER, region.world.zk.nodes[ORDER].content)
                tried.append(region.world.now_us - begun)
            answer_one(region.world, process)
        region.world.now_us += 10_000
        region.world.tick()
    pauses = [after - before for before, after in itertools.pairwise(tried)]
    assert pauses == sorted(pauses)
    assert pauses[-1] >= 3 * pauses[0]


def _writes_order(call: object) -> bool:
    return isinstance(call, Multi) and any(operation.path == ORDER for operation in call.operations)


# ---- answers, requests, merges


@pytest.mark.parametrize(("kind", "after"), [("checkpoint", None), ("reset", Round(2, RESET, ("a", "b")))])
def test_an_answer_that_cannot_be_read_voids_its_round_and_is_named(kind: str, after: Round | None) -> None:
    region = RegionWorld("a", "b")
    region.ask(kind, "a", "of the test")
    region.run()
    region.contribute("a.0", b"foreign")
    region.run()
    path = paths.region(GROUP, "contributions", "1/a.0")
    node, round_ = region.warnings()
    assert node.startswith(f"group {GROUP}: {path}: contribution: not JSON")
    assert round_ == f"group {GROUP}: region: a {kind} is void: {path} cannot be read"
    assert [one["reason"] for one in region.events(f"{kind}_abandoned")] == [f"{path} cannot be read"]
    assert region.order().open == after
    if after is not None:
        region.answer_all(0)
        assert region.order().open is None
    region.complete_checkpoint()


def test_a_request_that_cannot_be_read_is_named_and_deleted_and_the_others_are_fulfilled() -> None:
    region = RegionWorld("a", "b")
    path = paths.region(GROUP, "requests", "checkpoint-7")
    region.write(Create(path, b"foreign"))
    region.run()
    (warning,) = region.warnings()
    assert warning.startswith(f"group {GROUP}: {path}: request: not JSON")
    assert warning.endswith("; it is deleted")
    assert region.children("requests") == []
    assert region.order().open is None
    region.ask("checkpoint")
    region.run()
    assert region.order().open == Round(1, CHECKPOINT, ("a", "b"))


def test_a_merge_that_cannot_be_read_is_named_and_the_region_goes_on() -> None:
    region = RegionWorld("a", "b")
    region.complete_checkpoint()
    region.set(paths.region(GROUP, "merged", "1.0"), b"foreign")
    region.replace_leader()
    (warning,) = region.warnings()
    assert warning.startswith(f"group {GROUP}: {paths.region(GROUP, 'merged')}: merge: not JSON")
    assert region.complete_checkpoint() == 2


def test_a_merge_that_is_gone_is_named_and_the_region_goes_on() -> None:
    region = RegionWorld("a", "b")
    region.complete_checkpoint()
    region.delete(*(paths.region(GROUP, "merged", name) for name in region.children("merged")))
    region.replace_leader()
    (warning,) = region.warnings()
    assert warning.startswith(f"group {GROUP}: {paths.region(GROUP, 'merged')}: merge: pieces of 0 checkpoints")
    assert region.complete_checkpoint() == 2


def test_requests_for_checkpoints_do_not_hide_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Region._requests_listed`, take the first ones: a member that wants a reset answers no checkpoint."""
    monkeypatch.setattr(region_module, "MAX_REQUESTS", 2)
    region = RegionWorld("a", "b")
    region.open_checkpoint()
    for kind in ("checkpoint", "checkpoint", "checkpoint", "reset"):
        region.ask(kind)
        region.run()
    assert region.order().is_resetting


def test_so_many_requests_are_read_at_once_and_all_are_fulfilled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_module, "MAX_REQUESTS", 2)
    region = RegionWorld("a", "b")
    region.world.configure(settings.encode(GroupSettings(strategy="range")))  # which waits for its strategy
    region.pass_time(2_000)
    region.world.kill_coordinator(region.world.leader())
    for _ in range(5):
        region.ask("checkpoint")
    region.world.add_coordinator()
    region.run()
    answered = [
        [operation.path for operation in operations if isinstance(operation, Delete)]
        for operations in region.world.zk.transactions
        if any(operation.path == ORDER for operation in operations)
    ]
    assert [len(deleted) for deleted in answered if deleted] == [2]
    assert region.order().open == Round(1, CHECKPOINT, ("a", "b"))
    for _ in range(2):
        region.answer_all()
    assert region.children("requests") == []


def test_a_request_that_its_member_withdraws_meanwhile_is_nothing() -> None:
    region = RegionWorld("a", "b")
    region.ask("reset", "a", "of the test")
    process = region.world.leader()
    while not any(
        getattr(call, "path", "").startswith(paths.region(GROUP, "requests") + "/") for _, call in process.session.sent
    ):
        answer_one(region.world, process)
    region.delete(*(paths.region(GROUP, "requests", name) for name in region.children("requests")))
    region.run()
    assert (region.order().open, region.order().pending) == (None, None)
    assert not region.warnings()


def test_members_that_are_gone_before_they_are_read_are_not_admitted() -> None:
    region = RegionWorld("a", "b")
    region.register("c")
    process = region.world.leader()
    while not any(getattr(call, "path", "") == paths.region(GROUP, "members", "c") for _, call in process.session.sent):
        answer_one(region.world, process)
    region.world.zk.end(region.sessions.pop("c"))
    region.run()
    assert region.order().members.keys() == {"a", "b"}
    assert region.order().pending is None
    region.complete_checkpoint()


def test_a_region_whose_last_member_has_left_waits_for_another_one() -> None:
    region = RegionWorld("a")
    number = region.complete_checkpoint()
    region.lose("a")
    region.pass_time(100_000)
    assert (region.order().open, region.order().pending) == (None, "member a is lost")
    assert region.region.reason == "a reset waits for a member"
    region.world.add_agent("b")
    region.pass_time(2_000)
    region.register("b")
    region.run()
    assert region.order().open == Round(number + 1, RESET, ("b",))
    region.answer_all(0)
    assert region.complete_checkpoint() == number + 2


def test_a_region_without_members_orders_nothing() -> None:
    region = RegionWorld()
    region.pass_time(100_000)
    assert region.region.reason == "has no members"
    assert region.orders() == [Order()]


@pytest.mark.parametrize("name", ["of another program", "x" * 201, "\u00fc"])
def test_a_node_whose_name_no_member_can_have_is_not_admitted(name: str) -> None:
    """In `Region._member_read`, admit it: nobody could read the order, so the whole region would wait for ever."""
    region = RegionWorld("a", "b")
    region.register(name)
    region.run()
    assert region.order().members.keys() == {"a", "b"}
    del region.sessions[name]
    region.complete_checkpoint()
    region.replace_leader()
    region.complete_checkpoint()
