"""Intervals of ownership, and what lies between them."""

from __future__ import annotations

from zkrebalancer.observe.costs import Costs
from zkrebalancer.observe.holdings import ENDED, FOREVER_US, RESTARTED, Held, Holdings, Judged, Moment, era_of


def at(us: int, early_us: int = 0, late_us: int = 0, boot: str | None = None) -> Moment:
    return Moment((us, "f", 0, us), early_us, late_us, None if boot is None else ("h", boot))


def held(member: str, began: Moment, era: int = 0) -> Held:
    return Held(member, 1, "c", 0, began, era)


def of(found: list[Judged]) -> list[tuple[str, int, int | None, str | None, int | None]]:
    return [
        (each.held.member, each.held.began.us, each.held.ended_us, each.held.ended_by, each.gap_began_us)
        for each in found
    ]


def test_an_interval_is_judged_once_nothing_can_change_it() -> None:
    """A start at the time of the end may still cut it: wait in `start` for a later one."""
    holdings = Holdings()
    assert holdings.start(held("a", at(10))) == []
    holdings.close("a", at(20), "revoked")
    holdings.close("a", at(21), ENDED)  # it has ended already
    assert holdings.start(held("b", at(20))) == []
    judged = holdings.finish()[0]
    assert of(judged) == [("a", 10, 20, "revoked", None), ("b", 20, None, None, 20)]
    holdings = Holdings()
    holdings.start(held("a", at(10)))
    holdings.close("a", at(20), "revoked")
    assert of(holdings.start(held("b", at(30)))) == [("a", 10, 20, "revoked", None)]
    judged, last = holdings.finish()
    assert (of(judged), judged[0].previous, last) == ([("b", 30, None, None, 20)], "a", None)


def test_a_member_that_starts_again_ends_its_interval_just_before() -> None:
    holdings = Holdings()
    for us in (10, 30):
        holdings.start(held("a", at(us)))
    judged, last = holdings.finish()
    assert of(judged) == [("a", 10, 30, RESTARTED, None), ("a", 30, None, None, 30)]
    assert ([each.held.until_us for each in judged], last) == ([29, None], None)


def test_an_overlap_is_certain_if_the_clocks_leave_no_doubt() -> None:
    """In `overlap`, leave out either bound."""
    for end, began, expected in (
        (at(30), at(20), (30, True)),
        (at(30, early_us=6), at(20, late_us=5), (30, False)),
        (at(20), at(20), None),
        (at(18, late_us=2), at(20, early_us=1), (18, False)),
        (at(18, late_us=1), at(20, early_us=1), None),
        (at(18, late_us=FOREVER_US), at(20, early_us=1), (18, False)),
    ):
        other, second = held("a", at(0)), held("b", began)
        other.ceased = end
        assert Judged(second, other, "a").overlap == expected
    assert Judged(held("b", at(20)), held("a", at(0)), "a").overlap == (None, True)
    assert Judged(held("a", at(20)), held("a", at(0)), "a").overlap is None


def test_one_clock_leaves_no_doubt_however_little_is_known_of_it() -> None:
    """In `Moment.may_be_before` or `overlap`, look at the bounds first: members of one host are compared by others'."""
    bounds = (FOREVER_US, FOREVER_US)
    for end, expected in (
        (at(30, *bounds, "x"), (30, True)),
        (at(30, *bounds, "y"), (30, False)),
        (at(18, *bounds, "x"), None),
        (at(18, *bounds, "y"), (18, False)),
        (None, (None, True)),
    ):
        other, second = held("a", at(0, *bounds, "x")), held("b", at(20, *bounds, "x"))
        other.ceased = end
        assert Judged(second, other, "a").overlap == expected
    for early_us, ended, is_certain in ((FOREVER_US, None, True), (FOREVER_US, (30, 22), False), (5, (30, 22), True)):
        other, second = held("a", at(0, 0, 9, "x")), held("b", at(20, early_us, FOREVER_US, "y"))
        second.ceased = at(*ended, FOREVER_US, "y") if ended else None
        overlap = Judged(second, other, "a").overlap  # the other one never ends
        assert overlap == (ended and ended[0], is_certain)


def test_an_overlap_of_members_that_began_at_about_the_same_time_is_certain_if_it_lasts() -> None:
    """In `Judged.overlap`, look only which one began first: what two had for hours was in doubt."""
    for end_us, is_certain in ((25, False), (90, True)):
        second = held("b", at(20, 9, 9, "y"))
        second.ceased = at(end_us, 9, 9, "y")
        assert Judged(second, held("a", at(15, 9, 9, "x")), "a").overlap == (end_us, is_certain)


def test_legs_are_cut_where_the_consumer_was_repositioned() -> None:
    holdings = Holdings()
    holdings.start(held("a", at(10), era=1))
    holdings.seek("a", at(12), 5, era=1)
    holdings.seek("a", at(14), 6, era=2)  # of another topic
    holdings.seek("b", at(14), 6, era=1)
    holdings.close("a", at(20), "revoked")
    holdings.seek("a", at(22), 7, era=1)
    judged, last = holdings.finish()
    assert list(judged[0].held.legs()) == [(10, 0, 11), (12, 5, 20)]
    assert last is judged[0].held
    assert [era_of([5, 9], us) for us in (5, 6, 9, 10)] == [0, 1, 1, 2]


def test_a_counter_that_falls_has_restarted() -> None:
    costs = Costs()
    for cpu_us, rss_bytes, step in ((5, 3, None), (9, 7, 1), (2, 6, 1), (2, 1, 2)):
        event = {"role": "member", "target": "m", "cpu_us": cpu_us, "rss_bytes": rss_bytes}
        costs.sampled(event, step)
    costs.counted({"role": "broker", "target": "k", "requests": 1, "bytes_in": 2, "bytes_out": None}, None)
    found = {(step, target): (cost.cpu_us, cost.rss_bytes_max, cost.requests) for step, (_, target), cost in costs}
    assert found == {
        (None, "m"): (0, 3, None),
        (1, "m"): (6, 7, None),
        (2, "m"): (0, 1, None),
        (None, "k"): (None, None, 0),
    }
