"""The options by which Spark's own source reads the ranges of a batch."""

from __future__ import annotations

import json

from zkrebalancer.pipeline.source.connector import where
from zkrebalancer.pipeline.source.offsets import Range


def test_every_range_is_read_from_its_begin_to_its_end() -> None:
    ranges = [Range("a", 10, 5, 7, 3), Range("b", 0, 0, 1, 4), Range("a", 2, 8, 9, 3)]
    options = {name: json.loads(text) for name, text in where(ranges).items()}
    assert options == {
        "assign": {"a": [2, 10], "b": [0]},
        "startingOffsets": {"a": {"10": 5, "2": 8}, "b": {"0": 0}},
        "endingOffsets": {"a": {"10": 7, "2": 9}, "b": {"0": 1}},
    }
