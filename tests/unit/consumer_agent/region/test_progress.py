"""Progress of a region's partitions in a sink, and claims of partitions that the sink already has."""

from __future__ import annotations

import pytest

from consumer_agent.region.consistent_region import _joined
from consumer_agent.region.progress import Extent, Progress
from consumer_agent.region.sink import Advance, Claim, Row, settled

P0, P1 = ("orders", 0), ("orders", 1)


def claims(generation: int, *partitions: tuple[str, int]) -> list[Claim]:
    return [Claim(partition, generation, "", 0, 10) for partition in partitions]


def test_a_claim_is_due_once_for_each_generation() -> None:
    progress = Progress()
    assert progress.unclaimed({P1: 3, P0: 3}) == [P0, P1]
    progress.note_claims(claims(3, P0, P1), {P0: 10, P1: 10}, {P0: 10, P1: 10})
    assert progress.unclaimed({P0: 3, P1: 3}) == []
    assert progress.unclaimed({P0: 3, P1: 4}) == [P1]  # it was given up and assigned again
    progress.forget([P0])
    assert progress.unclaimed({P0: 3}) == [P0]


def test_a_claim_says_what_continues_elsewhere() -> None:
    progress = Progress()
    assert progress.note_claims(claims(3, P0, P1), {P0: 10, P1: 25}, {P0: 10, P1: 10}) == {P1: 25}
    assert progress.positions([P0, P1]) == {P0: 10, P1: 25}


def test_a_claim_without_an_answer_is_refused_until_another_generation() -> None:
    progress = Progress()
    progress.note_claims(claims(3, P0), {}, {P0: 10})
    assert progress.unclaimed({P0: 3}) == []
    assert progress.advances({P0: Extent(10, 12, 3)}) == {}
    assert progress.unclaimed({P0: 4}) == [P0]


def test_a_transaction_continues_where_the_last_one_ended() -> None:
    progress = Progress()
    progress.note_claims(claims(3, P0), {P0: 10}, {P0: 10})
    advances = progress.advances({P0: Extent(12, 15, 3)})  # offsets 10 and 11 were no records
    assert advances == {P0: Advance(10, 15, 3)}
    assert progress.positions([P0]) == {P0: 10}  # until it is committed
    progress.stored(advances)
    assert progress.advances({P0: Extent(15, 16, 3)}) == {P0: Advance(15, 16, 3)}


def test_records_of_a_former_generation_are_not_stored() -> None:
    progress = Progress()
    progress.note_claims(claims(4, P0), {P0: 10}, {P0: 10})
    assert progress.advances({P0: Extent(10, 12, 3)}) == {}


def test_a_refused_partition_is_claimed_only_in_another_generation() -> None:
    progress = Progress()
    progress.note_claims(claims(3, P0, P1), {P0: 10, P1: 10}, {P0: 10, P1: 10})
    progress.refuse([P0])
    assert progress.positions([P0, P1]) == {P1: 10}
    assert progress.unclaimed({P0: 3, P1: 3}) == []
    assert progress.unclaimed({P0: 5}) == [P0]


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        (Claim(P0, 4, "id-1", 3, 10), None),
        (Claim(P0, 5, "id-1", 3, 10), Row("id-1", 3, 5, 40)),
        (Claim(P0, 6, "", 3, 10), Row("id-1", 3, 6, 40)),
        (Claim(P0, 6, "id-1", 4, 10), Row("id-1", 4, 6, 10)),  # an operator has set the offset since
        (Claim(P0, 6, "id-1", 2, 10), Row("id-1", 3, 6, 40)),
        (Claim(P0, 6, "id-2", 2, 10), Row("id-2", 3, 6, 10)),  # the topic was created anew
        (Claim(P0, 4, "id-2", 4, 10), None),
    ],
)
def test_a_claim_continues_where_the_sink_is_unless_topic_or_life_is_another_one(
    claim: Claim, expected: Row | None
) -> None:
    """In `settled`, take any other life for a new one, or let it go back: results would be stored twice."""
    assert settled(claim, Row("id-1", 3, 5, 40)) == expected
    assert settled(claim, None) == Row(claim.identity, claim.life, claim.generation, 10)


def test_what_one_transaction_stores_of_two_batches_begins_with_the_first_one() -> None:
    """In `_joined`, take the later begin: after an exception, records of the first batch are not returned again."""
    earlier = {P0: Extent(3, 5, 1), P1: Extent(0, 1, 1)}
    assert _joined(earlier, {P0: Extent(7, 9, 1)}) == {**earlier, P0: Extent(3, 9, 1)}
    assert _joined({}, earlier) == earlier
