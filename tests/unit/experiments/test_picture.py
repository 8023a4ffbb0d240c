"""The picture behind the live screen."""

from __future__ import annotations

from tests.unit.experiments.event_maker import A, B, delivered, event, fetcher, finish, plan, produced
from zkrebalancer.experiments.demo.screen import leaders_line
from zkrebalancer.experiments.picture import Picture, client_of
from zkrebalancer.observe.reading import Event
from zkrebalancer.observe.rebalances import UNDER_WAY


def picture_of(*events: Event) -> Picture:
    picture = Picture()
    for one in events:
        picture.apply(one)
    return picture


def test_a_started_partition_has_an_owner_until_it_is_stopped() -> None:
    picture = picture_of(fetcher("fetcher_started", A, [0, 1]), fetcher("fetcher_stopped", A, [1]))
    assert picture.group("demo").owners == {("t", 0): A}
    assert picture.partitions() == [("t", 0)]


def test_a_late_stop_of_the_old_owner_does_not_affect_the_new_one() -> None:
    events = [fetcher("fetcher_started", A, [0]), fetcher("fetcher_started", B, [0])]
    picture = picture_of(*events, fetcher("fetcher_stopped", A, [0]), event("ownership_ended", member=A))
    assert picture.group("demo").owners == {("t", 0): B}


def test_an_owner_that_another_one_overlapped_still_owns_its_partition() -> None:
    """In `_free`, forget who owned it before: a group that has settled is never at rest, and its run fails."""
    starts = [fetcher("fetcher_started", member, [0]) for member in (B, A)]
    picture = picture_of(*starts, fetcher("fetcher_stopped", A, [0]))
    assert picture.group("demo").owners == {("t", 0): B}
    assert picture.group("demo").freed_us == {}
    picture.apply(fetcher("fetcher_stopped", B, [0]))
    assert picture.group("demo").owners == {}
    twice = picture_of(starts[1], *starts, event("ownership_ended", member=B), event("ownership_ended", member=A))
    assert twice.group("demo").owners == {}


def test_the_death_of_an_owner_frees_its_partitions() -> None:
    picture = picture_of(fetcher("fetcher_started", A, [0, 1]), event("ownership_ended", member=A))
    assert picture.group("demo").owners == {}


def test_members_join_and_leave_and_count_once() -> None:
    joined = [event("member_joined", member=member) for member in (A, B, A)]
    assert picture_of(*joined).group("demo").members == [A, B]
    assert picture_of(*joined, event("member_left", member=A, reason="expired")).group("demo").members == [B]


def test_a_plan_is_under_way_until_it_finishes() -> None:
    picture = picture_of(*plan(1))
    (rebalance,) = picture.rebalances
    assert (rebalance.cause, rebalance.outcome, rebalance.settled_ms) == ("member-joined", UNDER_WAY, None)
    picture.apply(finish(1))
    (rebalance,) = picture.rebalances
    assert (rebalance.outcome, rebalance.settled_ms, rebalance.pause_ms_max) == ("finished", 31.0, 0.0)


def test_a_pause_lasts_from_the_end_of_one_owner_to_the_start_of_the_next() -> None:
    starts = [fetcher("fetcher_started", A, [0, 1], 1_000), *plan(1, 2_000)]
    moves = [fetcher("fetcher_stopped", A, [0, 1], 3_000), fetcher("fetcher_started", B, [0], 4_500)]
    (rebalance,) = picture_of(*starts, *moves, fetcher("fetcher_started", A, [1], 7_000)).rebalances
    assert rebalance.pause_ms_max == 4.0


def test_an_outcome_without_a_plan_is_ignored() -> None:
    assert picture_of(finish(9)).rebalances == []


def test_a_group_is_behind_by_produced_but_undelivered_records() -> None:
    picture = picture_of(produced(0, 99), delivered(A, 0, 59))
    assert picture.produced_count() == 100
    assert picture.behind("demo") == 40
    assert picture.behind("another") == 100


def test_redeliveries_do_not_change_how_far_a_group_is_behind() -> None:
    assert picture_of(produced(0, 99), delivered(A, 0, 99), delivered(B, 50, 59)).behind("demo") == 0


def test_the_leader_is_shown_until_it_resigns() -> None:
    elected = event("leader_elected", group=None, epoch=1, brokerid=2)
    assert picture_of(elected).leaders == {0: 2}
    assert picture_of(elected).leader_of("any") == 2
    assert picture_of(elected, event("leader_resigned", group=None, epoch=1, brokerid=2)).leaders == {}
    assert picture_of(elected, event("leader_resigned", group=None, epoch=0, brokerid=1)).leaders == {0: 2}


def test_each_shard_has_a_leader_until_the_number_changes() -> None:
    def changed(kind: str, brokerid: int, **shard: int) -> Event:
        return event(kind, group=None, epoch=1, brokerid=brokerid, **shard)

    first = changed("leader_elected", 1, shard=0, shards=3)
    two = (first, changed("leader_elected", 2, shard=2, shards=3))
    assert picture_of(*two).leaders == {0: 1, 2: 2}
    assert leaders_line(picture_of(*two)) == (
        "coordinator-1 leads 1 of 3 shards, coordinator-2 leads 1 of 3 shards, 1 without a leader"
    )
    assert picture_of(*two, changed("leader_resigned", 2, shard=2, shards=3)).leaders == {0: 1}
    anew = (*two, changed("leader_elected", 2, shard=1, shards=2))
    assert picture_of(*anew, changed("leader_resigned", 1, shard=0, shards=3)).leaders == {1: 2}
    assert leaders_line(picture_of(*anew, changed("leader_elected", 2))) == "coordinator-2 leads"
    names = [f"g-{number}" for number in range(20)]
    assert {picture_of(*two).leader_of(name) for name in names} == {None, 1, 2}


def test_the_client_id_of_a_consumer() -> None:
    assert client_of(A) == "demo-1"


def test_offsets_restart_after_a_topic_is_deleted() -> None:
    """Otherwise a group would seem to have read the new topic's records, and its drain would end too early."""
    before = [fetcher("fetcher_started", A, [0]), produced(0, 9), delivered(A, 0, 9)]
    after = [event("topic_deleted", topic="t"), delivered(A, 5, 9), produced(0, 3), fetcher("fetcher_started", A, [0])]
    picture = picture_of(*before, *after)
    assert picture.behind("demo") == 4
    picture.apply(delivered(A, 0, 3))
    assert picture.behind("demo") == 0
