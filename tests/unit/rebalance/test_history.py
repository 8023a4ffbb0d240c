"""The history of a group: what its leaders record of past rebalances, whatever the node contains."""

from __future__ import annotations

import pytest

from tests.support.groups import answer_one, events, world_with
from tests.support.world import EPOCH_OFFSET_MS, GROUP, World
from tests.support.zk_model import Right
from zkrebalancer.protocol import fields, history, paths, settings
from zkrebalancer.protocol.calls import Delete, Done, Multi, SetContent
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.history import (
    MAX_HISTORY_BYTES,
    MAX_NAME,
    MAX_REASONS,
    MAX_REBALANCES,
    Phases,
    Reason,
    Rebalanced,
)
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.effects import Tick
from zkrebalancer.rebalance.history import DELAY_US

NODE = paths.history(GROUP)
DELAY_MS = DELAY_US // 1_000


def kept(world: World) -> tuple[Rebalanced, ...]:
    found = history.decode(world.zk.nodes[NODE].content)
    assert not found.problems
    return found.rebalances


def put(world: World, content: bytes) -> None:
    world.zk.perform(Multi((SetContent(NODE, content),)))


def one(number: int = 1, subject: str = "c-1") -> Rebalanced:
    phases = Phases(0.0, 1.5, None, 2.0)
    return Rebalanced(
        str(number),
        1,
        number,
        "eager",
        5,
        (Reason("member-joined", subject),),
        4,
        2,
        6,
        1,
        "finished",
        9.5,
        None,
        phases,
    )


def test_each_rebalance_is_recorded_with_reasons_and_times() -> None:
    """In `Timing`, measure starts as stops; in `History`, write only the last."""
    world = world_with(GroupSettings(), "a")
    before_ms = EPOCH_OFFSET_MS + world.now_us // 1_000
    world.add_agent("b")
    world.run()
    world.add_agent("c")
    world.pass_time(3_000)
    first, second, third = kept(world)
    assert (first.reasons, first.reason_count) == ((Reason("member-joined", "a-1"),), 1)
    assert second.reasons == (Reason("member-joined", "b-1"),)
    assert third.reasons == (Reason("member-joined", "c-1"),)
    assert [each.generation for each in kept(world)] == [1, 2, 3]
    assert second.requested_at_ms == before_ms
    assert (first.moved, second.moved, second.members, second.partitions) == (0, 2, 2, 4)
    assert (second.outcome, second.late, second.mode, second.epoch) == ("finished", (), "incremental", 1)
    assert (first.phases_ms.stop, second.phases_ms.stop, second.phases_ms.start) == (None, 0.0, 0.0)
    assert first.phases_ms.wait == 50.0
    assert third.phases_ms.wait == 50.0


def test_the_phases_and_the_slowest_member() -> None:
    """In `Timing.acknowledged`, name the last member instead of the slowest; in `span_ms`, return the other one."""
    world = world_with(GroupSettings(), "a", "b", partitions=4)
    for client in "ab":
        world.agents[client].silent = True
    world.add_agent("c")
    world.pass_time(700)
    for client in "ab":
        world.agents[client].silent = False
    world.pass_time(3_000)
    last = kept(world)[-1]
    assert last.slowest is not None
    assert (last.slowest.member in {"a-1", "b-1"}, last.slowest.ms) == (True, 700.0)
    assert (last.phases_ms.stop, last.phases_ms.plan) == (700.0, 0.0)
    assert last.settled_ms == 700.0


def test_who_was_late_is_named() -> None:
    world = world_with(GroupSettings(rebalance_timeout_ms=1_000), "a")
    world.agents["a"].silent = True
    world.add_agent("b")
    world.pass_time(20_000)
    late = [each for each in kept(world) if each.late_count]
    assert [(each.late, each.late_count) for each in late] == [(("a-1",), 1)]
    assert "member-evicted" in {reason.kind for each in kept(world) for reason in each.reasons}


def test_rebalances_that_follow_one_another_share_a_write_and_cost_nothing_else() -> None:
    """In `History.look`, ask at once; in `Group._rest`, write each time the group is read again."""
    world = world_with(GroupSettings(), "a")
    version = world.zk.nodes[NODE].version
    for client in "bcd":
        world.add_agent(client)
        world.run()
        world.pass_time(100)
    world.pass_time(DELAY_MS)
    assert len(kept(world)) == 4
    assert world.zk.nodes[NODE].version == version + 1
    world.pass_time(1_000_000)
    assert world.zk.nodes[NODE].version == version + 1


def test_the_next_leader_continues_it() -> None:
    world = world_with(GroupSettings(), "a", "b")
    before = kept(world)
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    world.pass_time(10_000)
    world.kill_agent(world.agents["b"])
    world.pass_time(3_000)
    *former, last = kept(world)
    assert tuple(former[: len(before)]) == before
    assert (last.epoch, last.reasons) == (2, (Reason("member-left", "b-1"),))


@pytest.mark.parametrize("content", [b"\xff", b"[]", b'{"version":1,"rebalances":{}}', b"x" * 70_000, b'{"version":0}'])
def test_bytes_that_are_no_history_are_replaced_and_logged_once(content: bytes) -> None:
    world = world_with(GroupSettings(), "a")
    put(world, content)
    world.add_agent("b")
    world.pass_time(3_000)
    assert [each.generation for each in kept(world)] == [2]
    (warning,) = [text for text in world.warnings if "history" in text]
    assert warning.endswith("; it is replaced")


def test_a_newer_version_stays_as_it_is() -> None:
    """In `History._write`, replace whatever cannot be read."""
    world = world_with(GroupSettings(), "a")
    newer = b'{"version":2,"rebalances":"elsewhere"}'
    put(world, newer)
    for client in "bc":
        world.add_agent(client)
        world.pass_time(3_000)
    assert world.zk.nodes[NODE].content == newer
    (warning,) = [text for text in world.warnings if "history" in text]
    assert "version 2 is newer than 1" in warning
    put(world, b"")
    world.leave(world.agents["c"])
    world.pass_time(3_000)
    assert kept(world)[0].reasons == (Reason("member-left", "c-1"),)


def test_entries_of_another_release_are_kept() -> None:
    world = world_with(GroupSettings(), "a")
    put(world, b'{"version":1,"rebalances":[{"id":"old","epoch":0,"added":1}]}')
    world.add_agent("b")
    world.pass_time(3_000)
    found = history.decode(world.zk.nodes[NODE].content)
    assert [each.generation for each in found.rebalances] == [2]
    (problem,) = found.problems
    assert problem.startswith("entry 0: history: ")
    assert b'"added":1' in world.zk.nodes[NODE].content


def test_a_refused_write_is_repeated_and_the_group_goes_on() -> None:
    world = world_with(GroupSettings(), "a")
    world.zk.identity = str
    denied = (str(world.leader().session.session_id), NODE, Right.WRITE)
    world.zk.denied.add(denied)
    for client in "bcd":
        world.add_agent(client)
        world.pass_time(3_000)
    assert len(world.owned()) == 4
    assert len(kept(world)) == 1
    assert len([text for text in world.warnings if NODE in text]) == 1
    world.zk.denied.clear()
    world.pass_time(60_000)
    assert [each.generation for each in kept(world)] == [1, 2, 3, 4]


def run_until_it_is_written(world: World) -> None:
    """Run the leader until its write of the history is on its way."""
    process = world.leader()
    world.now_us += DELAY_US
    sent = process.session.sent
    while not any(isinstance(call, Multi) and call.operations[-1].path == NODE for _id, call in sent):
        if not answer_one(world, process):
            world.feed(process, Tick())


def test_another_writer_defeats_no_record() -> None:
    """In `History._written`, forget what was refused; in `_write`, write at any version."""
    world = world_with(GroupSettings(), "a")
    world.add_agent("b")
    world.run()
    run_until_it_is_written(world)
    put(world, b"other")
    world.pass_time(5_000)
    assert [each.generation for each in kept(world)] == [2]


def test_a_deleted_node_is_created_again() -> None:
    world = world_with(GroupSettings(), "a")
    world.zk.perform(Multi((Delete(NODE),)))
    world.add_agent("b")
    world.pass_time(3_000)
    assert [each.generation for each in kept(world)] == [2]


def test_a_group_that_is_created_again_does_not_get_the_history_of_the_deleted_one() -> None:
    """In `History.reset`, keep what waits."""
    world = world_with(GroupSettings(), "a")
    world.add_agent("b")
    world.run()
    for agent in world.agents.values():
        world.zk.kill(agent.session)
        agent.alive = False
    below = sorted((path for path in world.zk.nodes if path.startswith(paths.group(GROUP))), key=len, reverse=True)
    assert isinstance(world.zk.perform(Multi(tuple(Delete(path) for path in below))), Done)
    world.create_group()
    created_ms = EPOCH_OFFSET_MS + world.now_us // 1_000
    world.pass_time(60_000)
    world.add_agent("c")
    world.pass_time(60_000)
    assert [each.reasons[0].subject for each in kept(world)] == ["c-1"]
    assert kept(world)[0].requested_at_ms >= created_ms


def test_a_broken_connection_loses_no_record() -> None:
    """In `Group._adopt`, do not look; in `History.reset`, stay busy."""
    world = world_with(GroupSettings(), "a")
    world.add_agent("b")
    world.run()
    run_until_it_is_written(world)
    session = world.leader().session
    world.zk.disconnect(session)
    world.zk.reconnect(session)
    world.pass_time(5_000)
    assert [each.generation for each in kept(world)] == [1, 2]


def test_a_superseded_rebalance_is_recorded_too() -> None:
    world = world_with(GroupSettings(), "a")
    world.agents["a"].silent = True
    world.add_agent("b")
    world.pass_time(500)
    world.configure(settings.encode(GroupSettings(mode="eager")))
    world.pass_time(500)
    world.agents["a"].silent = False
    world.pass_time(5_000)
    assert [each.outcome for each in kept(world)] == [
        str(each["outcome"]) for each in events(world, "rebalance_finished")
    ]
    assert "superseded" in {each.outcome for each in kept(world)}


def test_a_node_is_bounded_in_number_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `extended`, keep the oldest; allow one entry more than fits."""
    many = [one(number) for number in range(MAX_REBALANCES + 5)]
    content = history.extended([], many)
    assert history.decode(content).rebalances == tuple(many[5:])
    long = [one(number, "ü" * 200) for number in range(MAX_REBALANCES)]
    content = history.extended([], long)
    shown = history.decode(content).rebalances
    assert shown == tuple(long[-len(shown) :])
    assert MAX_HISTORY_BYTES - 700 < len(content) <= MAX_HISTORY_BYTES
    monkeypatch.setattr(history, "MAX_HISTORY_BYTES", 60)
    assert history.decode(history.extended([], long)).rebalances == ()


def test_changes_at_the_same_time_are_reasons_of_one_rebalance() -> None:
    """In `Request.add`, keep all of them; in `Causes.add`, drop further reasons."""
    world = world_with(GroupSettings(), "a")
    for client in "bcdefg":
        world.add_agent(client)
    world.pass_time(3_000)
    reasons = [(each.reason_count, len(each.reasons)) for each in kept(world)[1:]]
    assert reasons == [(1, 1), (5, MAX_REASONS)]


def test_what_changed_is_named() -> None:
    """In `Request.add`, keep a name of any length: no reader would accept the entry."""
    world = world_with(GroupSettings(), "a")
    world.set_topic("t", 8)
    world.pass_time(3_000)
    world.add_agent("b")
    world.run()
    world.pass_time(10)  # within the debounce time, so that these are one request
    world.configure(settings.encode(GroupSettings(mode="eager", strategy="range", rebalance_timeout_ms=9_000)))
    world.pass_time(10)
    world.leader().machine.groups[GROUP].request("settings-changed", "x" * 1_000)
    world.add_agent("c")
    world.pass_time(3_000)
    _first, grown, _joined, configured = kept(world)
    assert grown.reasons == (Reason("partitions-added", "t"),)
    changed = Reason("settings-changed", "strategy, mode, rebalance_timeout_ms")
    assert configured.reasons == (changed, Reason("settings-changed", "x" * MAX_NAME), Reason("member-joined", "c-1"))


@pytest.mark.parametrize("epoch", [[1], {"a": 1}, True, None])
def test_a_damaged_entry_prevents_no_further_one(epoch: object) -> None:
    """In `extended`, put whatever `epoch` is into a set."""
    damaged = {**history.entries(history.extended([], [one(1)]))[0], "epoch": epoch}
    assert len(history.entries(history.extended([damaged], [one(1)]))) == 2


def test_an_entry_is_added_once() -> None:
    before = history.entries(history.extended([], [one(1)]))
    assert history.decode(history.extended(before, [one(1), one(2)])).rebalances == (one(1), one(2))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("late", "a"),
        ("reasons", [1]),
        ("phases_ms", None),
        ("settled_ms", -1),
        ("slowest", 1),
        ("id", "a\nb"),
        ("moved", "1"),
    ],
)
def test_an_entry_with_a_wrong_value_is_named(key: str, value: object) -> None:
    (entry,) = history.entries(history.extended([], [one()]))
    found = history.decode(fields.write_document({"version": 1, "rebalances": [{**entry, key: value}, entry]}))
    assert found.rebalances == (one(),)
    (problem,) = found.problems
    assert problem.startswith("entry 0: history: ")


def test_a_node_of_another_kind_is_an_error() -> None:
    with pytest.raises(NodeContentError, match="rebalances must be a list"):
        history.decode(b'{"version":1}')
