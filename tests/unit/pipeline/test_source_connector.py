"""The options by which Spark's own source reads the ranges of a batch."""

from __future__ import annotations

import json

from zkrebalancer.pipeline.source.connector import GROUP_PREFIX, GroupNames, where
from zkrebalancer.pipeline.source.offsets import Range


def test_every_range_is_read_from_its_begin_to_its_end() -> None:
    ranges = [Range("a", 10, 5, 7, 3), Range("b", 0, 0, 1, 4), Range("a", 2, 8, 9, 3)]
    options = {name: json.loads(text) for name, text in where(ranges).items()}
    assert options == {
        "assign": {"a": [2, 10], "b": [0]},
        "startingOffsets": {"a": {"10": 5, "2": 8}, "b": {"0": 0}},
        "endingOffsets": {"a": {"10": 7, "2": 9}, "b": {"0": 1}},
    }


def test_consumers_are_kept_until_a_topic_is_created_again() -> None:
    """Fails if records of the former topic, which Spark fetched beyond a range, are taken for the new one's."""
    names = GroupNames()

    def name(**identities: str) -> str:
        return names.name("kafka:9092", [Range(topic, 0, 0, 1, 1, identity) for topic, identity in identities.items()])

    assert name(a="id-1 czxid-1", b="id-2") == name(b="id-2") == name(a="czxid-1") == name(c="") == GROUP_PREFIX
    assert names.name("other:9092", [Range("a", 0, 0, 1, 1, "id-9")]) == GROUP_PREFIX
    second = name(a="id-3 czxid-3")
    assert second != GROUP_PREFIX
    assert name(a="id-3 czxid-3", b="id-2") == name(b="id-2") == second
    assert name(b="id-4") not in {GROUP_PREFIX, second}
