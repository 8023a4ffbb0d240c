"""One step of one KIP-848 member: what it gives up, what it gets, at which epoch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kip848_group import topic_id
from zkrebalancer.group_protocol.consumer_roster import ConsumerMember, ConsumerRoster, InvalidPositionError
from zkrebalancer.group_protocol.consumer_states import ConsumerMemberState
from zkrebalancer.group_protocol.reconciliation import Partitions, Position, next_position

STABLE, UNREVOKED, UNRELEASED = (
    ConsumerMemberState.STABLE,
    ConsumerMemberState.UNREVOKED,
    ConsumerMemberState.UNRELEASED,
)


def some(numbers: str) -> Partitions:
    return frozenset((topic_id(1), int(number)) for number in numbers)


def at(epoch: int, previous: int, state: ConsumerMemberState, assigned: str, revoking: str = "") -> Position:
    return Position(epoch, previous, state, some(assigned), some(revoking))


@pytest.mark.parametrize(
    ("before", "target", "taken", "owned", "after"),
    [
        (at(9, 8, STABLE, "01"), "01", "", "01", at(9, 8, STABLE, "01")),
        (at(5, 4, STABLE, "01"), "01", "", None, at(9, 5, STABLE, "01")),
        (at(5, 4, STABLE, "01"), "012", "", None, at(9, 5, STABLE, "012")),
        (at(5, 4, STABLE, "01"), "012", "2", None, at(9, 5, UNRELEASED, "01")),
        (at(5, 4, STABLE, "01"), "0123", "2", None, at(9, 5, UNRELEASED, "013")),
        (at(5, 4, STABLE, "01"), "02", "", "01", at(5, 4, UNREVOKED, "0", "1")),
        (at(5, 4, STABLE, "01"), "02", "", None, at(5, 4, UNREVOKED, "0", "1")),
        (at(5, 4, STABLE, "01"), "02", "", "0", at(9, 5, STABLE, "02")),  # it does not have it any more
        (at(5, 4, UNREVOKED, "0", "1"), "02", "", "01", at(5, 4, UNREVOKED, "0", "1")),
        (at(5, 4, UNREVOKED, "0", "1"), "02", "", None, at(5, 4, UNREVOKED, "0", "1")),
        (at(5, 4, UNREVOKED, "0", "1"), "02", "", "0", at(9, 5, STABLE, "02")),
        (at(5, 4, UNREVOKED, "0", "1"), "2", "", "0", at(6, 5, UNREVOKED, "", "0")),  # the target changed meanwhile
        (at(5, 4, UNREVOKED, "0", "1"), "01", "", "0", at(9, 5, STABLE, "01")),  # it gets back what it gave up
        (at(9, 5, UNRELEASED, "0"), "012", "1", None, at(9, 5, UNRELEASED, "02")),
        (at(9, 5, UNRELEASED, "0"), "012", "12", None, at(9, 5, UNRELEASED, "0")),
        (at(9, 5, UNRELEASED, "0"), "012", "", None, at(9, 5, STABLE, "012")),
        (at(-2, -2, ConsumerMemberState.AWAY, "0"), "1", "", "0", at(-2, -2, ConsumerMemberState.AWAY, "0")),
    ],
)
def test_each_step(before: Position, target: str, taken: str, owned: str | None, after: Position) -> None:
    reported = None if owned is None else some(owned)
    assert next_position(before, 9, some(target), lambda found: found not in some(taken), reported) == after


SETS = st.frozensets(st.tuples(st.just(topic_id(1)), st.integers(0, 5)))
STATES = st.sampled_from([STABLE, UNREVOKED, UNRELEASED])


@given(STATES, SETS, SETS, SETS, SETS, st.none() | SETS, st.integers(1, 3))
def test_one_step_never_takes_what_is_not_free_and_never_frees_what_is_still_reported(
    state: ConsumerMemberState,
    assigned: Partitions,
    revoking: Partitions,
    target: Partitions,
    free: Partitions,
    owned: Partitions | None,
    behind: int,
) -> None:
    revoking = revoking - assigned if state is UNREVOKED else frozenset()
    before = Position(5, 4, state, assigned, revoking)
    free |= before.held
    after = next_position(before, 5 + behind, target, free.__contains__, owned)
    assert after.held <= before.held | (target & free)
    given_up = before.held - after.held
    assert owned is not None or not given_up
    assert owned is None or not given_up & owned
    assert after.epoch >= before.epoch
    if after.state is STABLE and after != before:
        assert (after.assigned, after.revoking, after.epoch) == (target, frozenset(), 5 + behind)


# ---- the roster keeps the rules, whatever the step says


def test_a_partition_has_one_holder() -> None:
    roster = ConsumerRoster()
    roster.add(ConsumerMember("a", None, position=at(1, 0, UNREVOKED, "0", "1")))
    b = ConsumerMember("b", None)
    roster.add(b)
    for held in ("0", "1"):
        with pytest.raises(InvalidPositionError, match="b and a hold"):
            roster.move(b, at(1, 0, STABLE, held))
    roster.remove(roster.members["a"])
    roster.move(b, at(1, 0, STABLE, "01"))


def test_a_transition_that_is_not_in_the_table_is_refused() -> None:
    roster = ConsumerRoster()
    away = ConsumerMember("a", "pod", position=at(-2, -2, ConsumerMemberState.AWAY, "0"))
    roster.add(away)
    with pytest.raises(InvalidPositionError, match="a: away -> stable"):
        roster.move(away, at(1, 0, STABLE, "0"))
