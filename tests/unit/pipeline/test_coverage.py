"""Ranges are merged only if that changes the depth of no offset."""

from __future__ import annotations

from pyspark.sql import SparkSession

from tests.unit.pipeline.frames import rows
from zkrebalancer.pipeline.facts.coverage import PIECE_OFFSETS, joined
from zkrebalancer.pipeline.facts.of_partition import edges

TILED = [(5, 9), (0, 5)]
TWICE = [(0, 5), (5, 9), (0, 9)]
CROSSED = [(0, 5), (4, 8), (9, 10)]  # lengths add up to the span, but with an overlap and a hole
NEXT_PIECE = [(PIECE_OFFSETS - 1, PIECE_OFFSETS + 2), (PIECE_OFFSETS + 2, PIECE_OFFSETS + 3)]


def test_only_ranges_that_tile_a_piece_are_merged(spark: SparkSession) -> None:
    given = {"tiled": TILED, "twice": TWICE, "crossed": CROSSED, "next": NEXT_PIECE}
    ranges = [(key, *each) for key, of_key in given.items() for each in of_key]
    frame = spark.createDataFrame(ranges, "key string, begin long, end long")
    found = joined(frame, ("key",))
    expected = {**given, "tiled": [(0, 9)]}
    assert rows(found, "key", "begin", "end") == sorted(
        ((key, *each) for key, of_key in expected.items() for each in of_key), key=repr
    )
    for key, ranges_of_key in given.items():
        merged = [(begin, end) for other, begin, end in rows(found, "key", "begin", "end") if other == key]
        assert edges(merged) == edges(ranges_of_key)
