"""Vectors of merges: when one is complete, what it consists of, and when it is refused."""

from __future__ import annotations

import itertools
from collections.abc import ValuesView

import pytest

from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.requests import DEFAULT_LIMIT
from zkrebalancer.region import documents
from zkrebalancer.region.documents import CHECKPOINT, RESET, UNKNOWN, Contribution, Merge, Round
from zkrebalancer.region.limits import MAX_NAMES, piece_bytes
from zkrebalancer.region.merge import Answers, ContradictionError, merged

OFFSETS: dict[str, dict[TopicPartition, int]] = {
    "a": {("t", 0): 5, ("t", 1): 7},
    "b": {("t", 2): 0},
    "c": {},
}
HELD = {f"{name}-1": held.keys() for name, held in OFFSETS.items()}


def answers(*names: str, number: int = 9) -> Answers:
    return Answers(Round(number, CHECKPOINT, names or tuple(OFFSETS)))


def part(name: str, offsets: dict[TopicPartition, int] | None = None, number: int = 9) -> Contribution:
    return Contribution(number, 0, 1, f"{name}-1", OFFSETS[name] if offsets is None else offsets, {"t": "id-1"})


@pytest.mark.parametrize("order", list(itertools.permutations(OFFSETS)))
def test_permuted_answers_make_the_same_merge(order: tuple[str, ...]) -> None:
    found = answers()
    for index, name in enumerate(order):
        assert found.missing == sorted(set(OFFSETS) - set(order[:index]))
        assert found.add(name, part(name))
    assert found.missing == []
    assert found.uncovered(HELD) == []
    wanted = {tp: offset for held in OFFSETS.values() for tp, offset in held.items()}
    assert merged(found, None, {}, {}) == Merge(9, wanted, {"t": "id-1"}, dict.fromkeys(OFFSETS, 9))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_an_answer_is_there_once_all_its_pieces_are(order: tuple[int, ...]) -> None:
    """The first may have been written before there were more. In `Answers.has_all_of`, believe any one of them."""
    found = answers("a")
    for count, piece in enumerate(order):
        assert found.missing == ["a"] or order[:count] == (0,)
        assert found.add("a", Contribution(9, piece, 1 if piece == 0 else 3, "a-1", {}))
    assert found.missing == []


def test_a_repeated_answer_counts_once() -> None:
    found = answers()
    assert found.add("a", part("a"))
    assert not found.add("a", part("a", {("t", 0): 99}))
    assert found.missing == ["b", "c"]
    assert found.union() == OFFSETS["a"]


def test_the_answers_are_looked_at_once_for_all_holders() -> None:
    """In `Answers.uncovered`, look for each holder: with 1,000 members, a step of the coordinator took 76 ms."""

    class Looked(dict[str, dict[int, Contribution]]):
        looks = 0

        def values(self) -> ValuesView[dict[int, Contribution]]:  # type: ignore[override]
            self.looks += 1
            return super().values()

    found = answers()
    for name in OFFSETS:
        found.add(name, part(name))
    found.pieces = looked = Looked(found.pieces)
    assert found.uncovered({**HELD, "stranger": {("u", 0)}}) == [("u", 0)]
    assert looked.looks == 1


def test_the_number_of_names_is_that_of_the_order_and_not_of_the_answers() -> None:
    """The source counts N names, as many as the highest number it has seen."""
    found = answers("a", "b")
    for name in ("a", "c"):
        found.add(name, part(name))
    assert found.missing == ["b"]


def test_one_member_is_merged_as_many_are() -> None:
    found = answers("a")
    found.add("a", part("a"))
    assert found.missing == []
    assert merged(found, None, {}, {}).offsets == OFFSETS["a"]


def test_contradicting_offsets_are_refused() -> None:
    found = answers()
    found.add("a", part("a"))
    found.add("b", part("b", {("t", 1): 8}))
    with pytest.raises(ContradictionError, match=r"^t/1 continues at 7 for a, and at 8 for b$"):
        found.union()


def test_the_same_offset_of_two_members_is_no_contradiction() -> None:
    """As after a move during a drain: the second has processed nothing of it."""
    found = answers("a", "b")
    found.add("a", part("a"))
    found.add("b", part("b", {("t", 1): 7}))
    assert found.union() == OFFSETS["a"]


@pytest.mark.parametrize(("kind", "is_refused"), [(CHECKPOINT, True), (RESET, False)])
def test_two_unmodified_clients_that_name_one_partition_make_no_checkpoint(kind: str, *, is_refused: bool) -> None:
    """Kafka has expelled one of them, which does not know it yet: both have processed the same records."""
    found = Answers(Round(9, kind, ("a", "b")))
    for name in ("a", "b"):
        found.add(name, Contribution(9, 0, 1, None, {("t", 1): 7}))
    if is_refused:
        with pytest.raises(ContradictionError, match=r"^t/1 continues at 7 for a, and at 7 for b$"):
            found.union()
    else:
        assert found.union() == {("t", 1): 7}


def test_a_late_answer_belongs_to_its_own_round() -> None:
    found = answers(number=10)
    assert not found.add("a", part("a", number=9))
    assert found.missing == ["a", "b", "c"]
    assert found.union() == {}


def test_a_member_that_announces_pieces_has_answered_with_the_last_of_them() -> None:
    found = answers("a")
    found.add("a", Contribution(9, 1, 2, "a-1", {("t", 1): 7}))
    assert found.missing == ["a"]
    found.add("a", Contribution(9, 0, 2, "a-1", {("t", 0): 5}))
    assert found.missing == []
    assert found.union() == OFFSETS["a"]


def test_a_merge_is_complete_only_if_its_union_covers_what_each_consumer_holds() -> None:
    """Line 14: all names have answered, and yet a partition moved to one that had answered without it."""
    found = answers()
    for name in OFFSETS:
        found.add(name, part(name))
    assert found.uncovered({**HELD, "b-1": {("t", 2), ("t", 0)}}) == [("t", 0)]
    assert found.uncovered({**HELD, "stranger": {("u", 0)}}) == [("u", 0)]


def test_a_member_that_is_away_keeps_its_last_copy_and_a_partition_without_holder_its_offset() -> None:
    before = Merge(4, {("t", 3): 30, ("u", 0): 1}, {"u": "id-9"}, {"z": 3, "a": 4})
    found = answers("a")
    found.add("a", part("a"))
    now = merged(found, before, {("t", 3): 31}, {"t": "id-1"})
    assert now.states == {"z": 3, "a": 9}
    assert now.offsets == {**OFFSETS["a"], ("t", 3): 31}
    assert now.incarnations == {"t": "id-1", "u": "id-9"}


def test_a_partition_without_a_position_keeps_the_offset_of_the_last_merge() -> None:
    found = answers("a")
    found.add("a", part("a", {("t", 0): UNKNOWN, ("t", 1): UNKNOWN}))
    assert merged(found, Merge(4, {("t", 0): 3}), {}, {}).offsets == {("t", 0): 3}


# ---- pieces


def test_a_merge_is_stored_in_pieces_below_the_limit_and_read_as_one() -> None:
    offsets = {(f"topic-{number % 7}", number): 10**12 + number for number in range(5_000)}
    marks = {f"topic-{number}": f"id-{number}" for number in range(7)}
    merge = Merge(12, offsets, marks, {f"member-{number}": number + 1 for number in range(1_000)})
    pieces = documents.merge_pieces(merge, 20_000)
    assert len(pieces) > 5
    assert max(map(len, pieces)) <= 20_000
    assert documents.joined_merge(documents.decode_merge(piece) for piece in reversed(pieces)) == merge


def test_a_merge_of_more_members_than_a_piece_may_name_can_be_read() -> None:
    """In `documents._portions`, look at bytes only: short names of former members fill a piece that nobody can read."""
    merge = Merge(12, {("t", 0): 5}, {"t": "id"}, {f"m-{number}": number + 1 for number in range(2 * MAX_NAMES + 1)})
    pieces = documents.merge_pieces(merge, piece_bytes(DEFAULT_LIMIT.max_bytes))
    assert len(pieces) == 4
    assert documents.joined_merge(documents.decode_merge(piece) for piece in pieces) == merge


def test_a_contribution_is_stored_in_pieces_that_go_on_after_the_first_ones() -> None:
    offsets = {("t", number): number for number in range(500)}
    first = documents.contribution_pieces(3, "c-1", offsets, {"t": "id"}, 4_000)
    more = documents.contribution_pieces(3, "c-1", {("t", 900): 1}, {"t": "id"}, 4_000, first=len(first))
    found = Answers(Round(3, CHECKPOINT, ("c",)))
    for piece in first:
        assert found.add("c", documents.decode_contribution(piece))
    assert found.has_all_of("c")
    assert found.add("c", documents.decode_contribution(more[0]))
    assert found.has_all_of("c")
    assert found.union() == {**offsets, ("t", 900): 1}


def test_pieces_of_two_checkpoints_are_no_merge() -> None:
    with pytest.raises(NodeContentError, match="pieces of 2 checkpoints"):
        documents.joined_merge([Merge(1), Merge(2)])
