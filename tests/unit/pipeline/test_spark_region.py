"""What a Spark query stores of a batch, given where the sink is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import pytest

from consumer_agent.region import Advance, Claim, Sink
from zkrebalancer.pipeline.source.checkpoint import ranges_in
from zkrebalancer.pipeline.source.offsets import CheckpointError, Range
from zkrebalancer.pipeline.source.region import SinkBehindError, SparkRegion, unstored
from zkrebalancer.protocol.fields import TopicPartition

BATCH = [Range("orders", 0, 50, 100, 7, "id-1", 4), Range("orders", 1, 0, 3, 9)]
OURS = (
    '{"orders":{"0":{"from":50,"to":100,"generation":7,"identity":"id-1","life":4},'
    '"1":{"from":0,"to":3,"generation":9}}}'
)


@pytest.mark.parametrize(
    ("claimed", "begins"),
    [
        ({0: 50, 1: 0}, {0: 50, 1: 0}),
        ({0: 100, 1: 3}, {}),  # Spark repeats a batch that is stored
        ({0: 120, 1: 0}, {1: 0}),  # another member had the partition meanwhile
        ({0: 70, 1: 0}, {0: 70, 1: 0}),  # it has stored a part
        ({1: 0}, {1: 0}),  # a younger consumer has claimed the other
        ({}, {}),
    ],
)
def test_only_what_is_not_stored_is_stored(claimed: dict[int, int], begins: dict[int, int]) -> None:
    ends, generations = {0: 100, 1: 3}, {0: 7, 1: 9}
    wanted = {("orders", n): Advance(begin, ends[n], generations[n]) for n, begin in begins.items()}
    assert unstored(BATCH, {("orders", n): at for n, at in claimed.items()}) == wanted


def test_missing_records_are_not_skipped() -> None:
    with pytest.raises(SinkBehindError, match="orders/0: the sink is at 40, but the batch begins at 50; stop"):
        unstored(BATCH, {("orders", 0): 40, ("orders", 1): 0})


def test_the_ranges_are_found_in_the_checkpoint() -> None:
    assert ranges_in(f'v1\n{{"batchWatermarkMs":0}}\n{OURS}\n', "offsets/3") == BATCH
    assert ranges_in(f'v1\n{{}}\n{{"other":{{"0":17}}}}\n{OURS}\n', "offsets/3") == BATCH


@pytest.mark.parametrize("lines", ["", "-\n", f"{OURS}\n{OURS}\n", '{"other":{"0":17}}\n', "junk\n"])
def test_a_query_without_one_source_of_this_format_is_refused(lines: str) -> None:
    with pytest.raises(CheckpointError, match="offsets/3 has the offsets of"):
        ranges_in(f"v1\n{{}}\n{lines}", "offsets/3")


class Refusing:
    """A sink of which younger consumers claim the partition 0 before a claim, or after it."""

    def __init__(self, *, at_claim: bool) -> None:
        self._at_claim = at_claim
        self.open: Mapping[TopicPartition, Advance] = {}

    def claim(self, _group: str, claims: Sequence[Claim]) -> dict[TopicPartition, int]:
        return {claim.partition: claim.offset for claim in claims if claim.partition[1] or not self._at_claim}

    def begin(self, _group: str, advances: Mapping[TopicPartition, Advance]) -> set[TopicPartition]:
        self.open = advances
        return {partition for partition in advances if not partition[1]}

    def rollback(self) -> None:
        self.open = {}


@pytest.mark.parametrize("at_claim", [True, False])
def test_what_is_left_to_younger_consumers_is_told(caplog: pytest.LogCaptureFixture, *, at_claim: bool) -> None:
    """In `SparkRegion._begin`, log nothing: the batch is done, and its records silently are in no sink."""
    sink = Refusing(at_claim=at_claim)
    region = SparkRegion(group="g", checkpoint="c", open_database=lambda: sink, write=lambda *_: None)
    assert region._begin(cast("Sink", sink), BATCH).keys() == {("orders", 1)} == sink.open.keys()
    text = "orders/0: a younger consumer has claimed it in the sink; its records of this batch are left to it"
    assert caplog.messages == [text]
    caplog.clear()
    region._begin(cast("Sink", sink), BATCH[1:])
    assert caplog.messages == []
