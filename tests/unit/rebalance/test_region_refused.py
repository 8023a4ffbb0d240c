"""The leader of a region writes what is right when it is written, not what was right when ZooKeeper refused it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.region_world import SETTINGS, RegionWorld
from tests.support.world import GROUP
from tests.support.zk_model import Right
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Create, Get
from zkrebalancer.rebalance.region import Region
from zkrebalancer.rebalance.scheduler import MAX_PAUSE_US
from zkrebalancer.rebalance.states import MemberState
from zkrebalancer.region.documents import CHECKPOINT, Round

LONGEST_PAUSE_MS = MAX_PAUSE_US // 1_000 + 1_000
MEMBERS = paths.region(GROUP, "members")


def deny(region: RegionWorld, path: str, right: Right) -> None:
    """Take a right from the leader, and from nobody else."""
    region.world.zk.identity = str
    region.world.zk.denied.add((str(region.world.leader().session.session_id), path, right))


def allow(region: RegionWorld) -> None:
    region.world.zk.denied.clear()


def region_with_a_late_member() -> RegionWorld:
    """Return a region whose member b has one millisecond left to reset."""
    region = RegionWorld("a", "b")
    region.ask("reset", "a", "of the test")
    region.run()
    region.answer("a", region.held("a", 0))
    region.pass_time(SETTINGS.reset_ms - 1)
    return region


def register_again(region: RegionWorld, name: str) -> int:
    """Let the next process of that name take the place of the former one."""
    region.world.zk.end(region.sessions[name])
    region.register(name)
    return region.zxid(name)


# ---- evictions


def test_a_member_that_registers_again_before_its_eviction_arrives_stays() -> None:
    """In `RegionWrites._doomed_read`, delete what is there: both nodes have the same version."""
    region = region_with_a_late_member()
    world, sent = region.world, region.world.leader().session.sent
    world.now_us += 1_000
    for _ in range(5):  # each runs one timer
        if not sent:
            world.tick()
    assert [call for _id, call in sent] == [Get(f"{MEMBERS}/b")]  # it is decided, and nothing has arrived
    anew = register_again(region, "b")
    region.pass_time(1_000)
    assert region.zxid("b") == anew
    assert region.order().members["b"] == anew
    assert [one["reason"] for one in region.events("reset_ordered")] == ["of the test", "member b is lost"]


@pytest.mark.parametrize(("where", "right"), [(MEMBERS, Right.DELETE), (f"{MEMBERS}/b", Right.READ)])
@pytest.mark.parametrize("is_back", [False, True])
def test_an_eviction_that_is_refused_is_decided_anew(where: str, right: Right, is_back: bool) -> None:
    """In `RegionWrites._doomed_read`, let the scheduler repeat it: it deletes the next process's registration."""
    region = region_with_a_late_member()
    deny(region, where, right)
    region.pass_time(10_000)
    assert region.children("members") == ["a", "b"]
    assert len(region.warnings()) == 2  # that it is removed, and that ZooKeeper refuses that
    anew = register_again(region, "b") if is_back else 0
    allow(region)
    region.pass_time(LONGEST_PAUSE_MS)
    assert region.children("members") == ["a", "b"][: 1 + is_back]
    assert region.order().members.get("b", 0) == anew


def test_members_that_two_lists_name_at_once_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Region._member_read`, go on after each reply: with a thousand members, each looks at a thousand members."""
    region, look, looks = region_with_a_late_member(), Region.look, list[Region]()

    def noted(self: Region) -> None:
        looks.append(self)
        look(self)

    for number in range(30):
        region.register(f"x{number}")
    region.run()
    monkeypatch.setattr(Region, "look", noted)
    region.pass_time(10)  # the eviction lists the members, and so does its watch
    assert "b" not in region.children("members")
    assert len(looks) < 15


# ---- offsets


@pytest.mark.parametrize("has_mark", [False, True])
def test_offsets_that_are_refused_are_not_stored_for_a_topic_that_is_made_anew_meanwhile(has_mark: bool) -> None:
    """In `RegionWrites._store`, let the scheduler repeat it: the next owner would skip what is before that offset."""
    region = RegionWorld("a", "b")
    region.world.set_topic("u", 2)
    region.run()
    region.store_initial("u", {0: 3})
    if has_mark:
        region.store_offsets("u", {})
    deny(region, paths.offsets(GROUP, "u") if has_mark else paths.offsets(GROUP), Right.CREATE)
    region.ask("reset", "a", "of the test")
    region.run()
    region.answer_all(0)
    region.pass_time(5_000)
    assert region.order().open is not None
    region.world.delete_topic("u")
    region.run()
    region.world.set_topic("u", 2, "id-of-another")
    region.run()
    allow(region)
    if paths.offsets(GROUP, "u") not in region.world.zk.nodes:
        region.write(Create(paths.offsets(GROUP, "u"), b"id-of-another"))
    region.pass_time(LONGEST_PAUSE_MS)
    assert region.offsets("u") == {}
    assert not region.order().is_resetting


@pytest.mark.parametrize("has_mark", [False, True])
def test_offsets_that_are_refused_are_stored_once_the_right_is_there(has_mark: bool) -> None:
    """In `RegionWrites._place_made`, keep the mark: then the offsets are tried for ever, as their topic has no node."""
    region = RegionWorld("a", "b")
    region.world.set_topic("u", 2)
    region.run()
    region.store_initial("u", {0: 3, 1: 4})
    if has_mark:
        region.store_offsets("u", {0: 30})
    deny(region, paths.offsets(GROUP, "u") if has_mark else paths.offsets(GROUP), Right.CREATE)
    region.ask("reset", "a", "of the test")
    region.run()
    region.answer_all(0)
    region.pass_time(5_000)
    allow(region)
    region.pass_time(LONGEST_PAUSE_MS)
    assert region.offsets("u") == {0: "3", 1: "4"}
    assert not region.order().is_resetting


# ---- hidden nodes of a consumer of the group


def hide(region: RegionWorld, path: str) -> None:
    """Let no leader read a node from the next one on."""
    region.world.zk.denied.add(("", path, Right.READ))
    region.replace_leader()
    region.pass_time(3_000)
    assert region.world.leader().machine.groups[GROUP].view.members["a-1"].state is MemberState.UNREADABLE


def test_a_region_goes_on_while_the_record_of_what_a_member_was_given_is_hidden() -> None:
    """Its consumer's partitions are known: only its claims cannot be judged. In `Member.is_settled`, ask for READY."""
    region = RegionWorld("a", "b")
    hide(region, paths.given(GROUP, "a-1"))
    region.complete_checkpoint()
    region.ask("reset", "a", "of the test")
    region.run()
    region.answer_all(5)
    assert not region.order().is_resetting
    assert [one["reason"] for one in region.events("reset_ordered")] == ["of the test"]


@pytest.mark.parametrize("place", [paths.owners, paths.channel])
def test_a_region_that_waits_for_a_right_says_for_which(place: Callable[[str, str], str]) -> None:
    """Its consumer's partitions are not known. In `leader._follow_reset`, name only what is late."""
    region, path = RegionWorld("a", "b"), place(GROUP, "a-1")
    hide(region, path)
    region.pass_time(2 * SETTINGS.every_ms)
    text = f"region: neither a checkpoint nor a reset completes until {path} may be read"
    assert [line.count(text) for line in region.warnings()] == [1]
    region.ask("reset", "a", "of the test")
    region.run()
    region.answer_all(5)
    region.pass_time(1_000)
    assert region.order().is_resetting
    assert region.region.reason == text.removeprefix("region: ")
    allow(region)
    region.pass_time(LONGEST_PAUSE_MS)
    assert not region.order().is_resetting
    region.complete_checkpoint()


@pytest.mark.parametrize("place", [paths.offsets, paths.incarnations])
def test_a_region_goes_on_while_the_mark_of_a_new_topic_is_refused(place: Callable[[str], str]) -> None:
    """No member reads that topic yet. In `Plan.look_at`, wait for it: neither a checkpoint nor a reset completes."""
    region = RegionWorld("a", "b")
    region.world.zk.denied.add(("", place(GROUP), Right.CREATE))
    region.world.set_topic("u", 2)
    region.world.add_agent("c", {"t": 1, "u": 1})
    region.register("c")
    region.pass_time(3_000)
    region.complete_checkpoint()
    region.ask("reset", "a", "of the test")
    region.run()
    region.answer_all(5)
    assert not region.order().is_resetting
    allow(region)
    region.pass_time(LONGEST_PAUSE_MS)
    assert region.held("c", 0).keys() >= {("u", 0), ("u", 1)}


# ---- lists


def test_a_list_of_rounds_that_is_refused_for_a_while_deletes_no_later_round() -> None:
    """In `RegionWrites._rounds_listed`, look at every list: the first sweep's comes when the next round is open."""
    region = RegionWorld("a", "b")
    deny(region, paths.region(GROUP, "contributions"), Right.READ)
    region.complete_checkpoint()
    number = region.open_checkpoint()
    region.answer("a", region.held("a", 6))
    allow(region)
    region.pass_time(LONGEST_PAUSE_MS)
    assert region.order().open == Round(number, CHECKPOINT, ("a", "b"))
    assert region.children(f"contributions/{number}") == ["a.0"]
    region.answer("b", region.held("b", 6))
    region.run()
    assert region.order().complete == number


def test_a_list_of_members_that_was_overtaken_does_not_count() -> None:
    """In `Region._member_read`, let it count: who has registered since then seems to be lost."""
    region = RegionWorld("a", "b")
    deny(region, f"{MEMBERS}/b", Right.READ)
    region.register("c")
    region.run()
    assert region.order().members.keys() == {"a", "b"}  # b is being read
    allow(region)
    region.register("d")
    region.run()
    assert region.order().members.keys() == {"a", "b", "c", "d"}
    region.pass_time(1_000)
    assert region.events("reset_ordered") == []


# ---- deletions


def repeated(region: RegionWorld) -> int:
    """Return how many refused calls of the group will be repeated."""
    due = region.world.leader().machine.scheduler.due
    return sum(owner == GROUP and isinstance(name, tuple) and name[0] == "refused" for owner, name in due)


@pytest.mark.parametrize("kind", ["merged", "contributions", "initial", "requests"])
def test_deletions_that_are_refused_do_not_pile_up(kind: str) -> None:
    """In `RegionWrites._delete`, `_delete_gone` or `Region._request_read`, let the scheduler repeat them.

    A forced region is never read from the beginning: there would be more of them with each checkpoint, for ever.
    """
    region = RegionWorld("a", "b", settings=replace(SETTINGS, recovery="forced"))
    region.store_initial("gone", {0: 3})
    above = paths.region(GROUP, "initial", "gone") if kind == "initial" else paths.region(GROUP, kind)
    deny(region, above, Right.DELETE)
    for number in range(8):
        if kind == "requests":
            region.write(Create(paths.region(GROUP, "requests", f"checkpoint-foreign{number}"), b"foreign"))
        region.open_checkpoint() if kind != "requests" else region.pass_time(SETTINGS.every_ms)
        region.answer_all()
    assert repeated(region) == 0
    assert [text for text in region.warnings() if "no permission" in text]
    before = region.children(kind)
    allow(region)
    for _ in range(2):
        region.ask("checkpoint")
        region.run()
        region.answer_all()
    assert len(region.children(kind)) < len(before)
    assert len(region.children(kind)) <= 2  # a merge has two pieces
