"""The reason that `balanced` gives for a partition, for targets by hand."""

from __future__ import annotations

import numpy as np
import pytest

from zkrebalancer.assignment.balanced.case import to_case
from zkrebalancer.assignment.balanced.options import BalancedOptions
from zkrebalancer.assignment.balanced.reasons import Decision, Reason, explain, reasons
from zkrebalancer.assignment.columns import NOBODY, to_columns
from zkrebalancer.assignment.model import Member, Problem, to_racks

A, B, C = 0, 1, 2


def member(*owned: int, topics: str = "t", capacity: float = 1.0, rack: str | None = None) -> Member:
    return Member(dict.fromkeys(topics, 1), {("t", number): 0 for number in owned}, rack=rack, capacity=capacity)


def decision(
    members: list[Member],
    target: list[int],
    row: int = 0,
    lag: list[int] | None = None,
    racks: str = "",
    **options: object,
) -> Decision:
    """Return the decision about one partition of `t`; `racks`: that of each partition's only replica."""
    problem = Problem(
        {"t": len(target)},
        dict(zip("abc", members, strict=False)),
        lag={"t": lag or [10] * len(target)},
        racks=to_racks({"t": [[f"r{number}"] for number in racks]} if racks else {}),
    )
    case = to_case(to_columns(problem), BalancedOptions(**options))  # type: ignore[arg-type]
    return explain(case, np.array(target, np.int32), row)


def test_without_a_choice() -> None:
    assert decision([member(0), member()], [A], pinned={"t": frozenset({0})}).reason is Reason.PINNED
    assert decision([member(topics="u"), member(topics="u")], [NOBODY]).reason is Reason.NO_SUBSCRIBER
    assert decision([member(capacity=0), member(topics="u")], [NOBODY]).reason is Reason.ALL_DRAINED
    assert decision([member(), member()], [NOBODY]).reason is Reason.NO_ROOM
    assert decision([member(), member(topics="u")], [A]).reason is Reason.ONLY_SUBSCRIBER
    assert decision([member(0, capacity=0), member(topics="u")], [A]).reason is Reason.ONLY_SUBSCRIBER


@pytest.mark.parametrize(("limit", "reason"), [(None, Reason.NO_ROOM), (1, Reason.MOVE_LIMIT), (2, Reason.NO_ROOM)])
def test_what_stays_with_a_drained_member_has_no_room_or_exceeds_the_moves(limit: int | None, reason: Reason) -> None:
    """One of its two partitions has moved."""
    drained = [member(0, 1, capacity=0), member()]
    found = decision(drained, [A, B], max_partitions_per_member=1, max_moves_per_rebalance=limit)
    assert (found.reason, found.member, found.owner, found.alternative) == (reason, "a", "a", None)


def test_a_drained_member_beside_one_reader_is_not_its_only_subscriber() -> None:
    assert decision([member(0, capacity=0), member()], [A]).reason is Reason.NO_ROOM


@pytest.mark.parametrize(
    ("target", "options", "reason"),
    [
        ([A, A, B, B], {}, Reason.KEPT),
        ([A, A, A, B], {"move_cost": 100.0}, Reason.NOT_WORTH_THE_MOVE),
        ([A, A, A, B], {}, Reason.SEARCH_ENDED),
        ([A, A, A, B], {"max_moves_per_rebalance": 0}, Reason.MOVE_LIMIT),
        ([A, A, A, B], {"max_moves_per_rebalance": 1}, Reason.SEARCH_ENDED),
        ([A, A, A, B], {"max_partitions_per_member": 1}, Reason.KEPT),  # b has no room for it
    ],
)
def test_why_a_partition_stays(target: list[int], options: dict[str, object], reason: Reason) -> None:
    owners = [member(*(n for n, holder in enumerate(target) if holder == one)) for one in (A, B)]
    found = decision(owners, target, **options)  # type: ignore[arg-type]
    assert (found.reason, found.member, found.owner) == (reason, "a", "a")
    if options.get("max_partitions_per_member"):
        assert found.alternative is None
    else:
        assert found.alternative == "b"
        assert found.move_change > 0


@pytest.mark.parametrize(
    ("lag", "racks", "reason"),
    [
        ([10, 10, 5], "", Reason.LEAST_LOADED),  # both would have the same
        ([10, 10, 10], "", Reason.LEAST_LOADED),
        ([10, 30, 10], "", Reason.LEAST_LOADED),
        ([30, 10, 30], "111", Reason.RACK),  # b would have less, and read across racks
        ([30, 10, 30], "222", Reason.BEST_FIT),
        ([30, 10, 30], "", Reason.BEST_FIT),
    ],
)
def test_why_a_new_partition_goes_where_it_goes(lag: list[int], racks: str, reason: Reason) -> None:
    """The third partition goes to `a`, which has the first one; `b` has the second one."""
    found = decision([member(rack="r1"), member(rack="r2")], [A, B, A], 2, lag, racks)
    assert (found.reason, found.member, found.owner, found.alternative) == (reason, "a", None, "b")
    assert found.move_change == 0


def test_the_alternative_is_the_one_that_costs_least() -> None:
    members = [member(0), member(rack="r2"), member(rack="r1")]
    assert decision(members, [A, B, C], lag=[10, 10, 10], racks="111").alternative == "c"
    assert decision(members, [A, B, C], lag=[10, 10, 40], racks="111").alternative == "b"


def test_a_drained_or_full_member_is_no_alternative() -> None:
    assert decision([member(0), member(capacity=0), member()], [A, C]).alternative == "c"
    full = decision([member(0), member(), member()], [A, B, B, C], max_partitions_per_member=2)
    assert full.alternative == "c"


def test_reasons_of_several_partitions_come_in_their_order() -> None:
    problem = Problem({"t": 2, "u": 1}, {"a": member(0), "b": member()})
    case = to_case(to_columns(problem), BalancedOptions())
    assert reasons(case, np.array([A, B, NOBODY], np.int32), [2, 0]) == [Reason.NO_SUBSCRIBER, Reason.KEPT]
