"""What the leader knows of a group that is read again."""

from __future__ import annotations

from collections.abc import Iterator

from zkrebalancer.protocol import ownership
from zkrebalancer.protocol.cluster_nodes import UNREAD
from zkrebalancer.protocol.fields import MAX_ABSENT_PARTITIONS
from zkrebalancer.protocol.ownership import EvictionRecord, OwnersRecord
from zkrebalancer.protocol.registration import STATIC, Registration
from zkrebalancer.rebalance.blocks import Blocks
from zkrebalancer.rebalance.view import GroupView, Member


def registered(instance: str) -> Registration:
    return Registration(STATIC, {"t": 1}, "", "c", "h", 6_000, instance)


def test_what_zookeeper_does_not_have_or_does_not_show_stays() -> None:
    """In `GroupView.become`, forget one of these."""
    view, other = GroupView("g", {}), GroupView("g", {}, generation=5)
    view.members = {name: Member(name, registered(name), failed_tries=2) for name in "abc"}
    view.away, view.lease_until_us, view.waiting_for = {"i": Member("gone")}, 7, {("t", 0): "i"}
    view.barred, view.is_unbarred = {"u": None}, True
    other.members = {"a": Member("a", registered("new")), "b": Member("b"), "d": Member("d")}
    view.become(other)
    assert {name: (member.failed_tries, member.instance) for name, member in view.members.items()} == {
        "a": (2, "new"),
        "b": (2, "b"),
        "d": (0, None),
    }
    assert (set(view.away), view.lease_until_us, view.waiting_for) == ({"i"}, 7, {("t", 0): "i"})
    assert (view.barred, view.is_unbarred) == ({"u": None}, True)
    assert view.generation == 5


def test_a_member_may_own_very_many_partitions_of_topics_that_could_never_be_read() -> None:
    """In `GroupView._partition_count`, count none of them: its record would be unreadable, and it would be evicted."""
    owned = {(topic, number): 0 for topic in "tu" for number in range(MAX_ABSENT_PARTITIONS)}
    record = ownership.encode_owners(OwnersRecord(1, None, owned))
    view = GroupView("g", dict.fromkeys("tu", UNREAD))
    assert ownership.decode_owners(record, view.bound()).partitions == owned


def test_a_member_holds_what_its_eviction_record_names_too() -> None:
    """In `GroupView.refresh`, heed one of the two."""
    view = GroupView("g", {}, members={"a": Member("a", owners=OwnersRecord(1, None, {("t", 0): 0}))})
    view.evicted["a"] = EvictionRecord(1, {("t", 1): 0}, 0, 1)
    assert not view.refresh("a").partitions
    assert view.held_by("a") == {("t", 0): 0, ("t", 1): 0}
    assert view.remove("a").partitions == {("t", 0)}
    del view.evicted["a"]
    assert view.refresh("a").partitions == {("t", 1)}
    assert not view.held_topics()


class Names(tuple[str, ...]):
    """Topics that count how often they are gone through."""

    __slots__ = ()
    readings = 0

    def __iter__(self) -> Iterator[str]:
        Names.readings += 1
        return super().__iter__()


def test_a_topic_is_blocked_while_any_consumer_blocks_it_and_each_look_costs_the_same() -> None:
    """In `Blocks.__contains__`, go through the topics of each consumer: all groups wait for a step of such looks."""
    blocks, names = Blocks(), Names(f"t{number}" for number in range(100))
    assert not blocks.change("a", names)
    assert not blocks.change("b", ("t1", "t2"))
    before = Names.readings
    assert "t3" in blocks
    assert "u" not in blocks
    assert Names.readings == before
    assert not blocks.change("a", ("t1",))
    assert "t3" not in blocks
    assert blocks.change("b", ())
    assert "t1" in blocks
    assert "t2" not in blocks
    assert not blocks.change("b", ("*",))
    assert "u" in blocks
    assert blocks.change("b", ())
    assert blocks.change("a", ())
    assert not blocks.change("a", ())
    assert "t1" not in blocks
