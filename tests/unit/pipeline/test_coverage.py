"""Ranges of offsets are summed as one only where that changes no depth."""

from __future__ import annotations

from pyspark.sql import SparkSession

from tests.unit.pipeline.frames import rows
from zkrebalancer.pipeline.facts.coverage import PIECE_OFFSETS, edges, joined

TILED = [(5, 9), (0, 5)]
TWICE = [(0, 5), (5, 9), (0, 9)]
CROSSED = [(0, 5), (4, 8), (9, 10)]  # as long as what they span: what is there twice makes up for the hole
NEXT_PIECE = [(PIECE_OFFSETS - 1, PIECE_OFFSETS + 2), (PIECE_OFFSETS + 2, PIECE_OFFSETS + 3)]


def test_ranges_become_one_only_where_they_tile_a_piece(spark: SparkSession) -> None:
    given = {"tiled": TILED, "twice": TWICE, "crossed": CROSSED, "next": NEXT_PIECE}
    ranges = [(key, *each) for key, of_key in given.items() for each in of_key]
    frame = spark.createDataFrame(ranges, "key string, begin long, end long")
    found = joined(frame, ("key",))
    expected = {**given, "tiled": [(0, 9)]}
    assert rows(found, "key", "begin", "end") == sorted(
        ((key, *each) for key, of_key in expected.items() for each in of_key), key=repr
    )
    before, after = (rows(edges(each, ("key",)), "key", "offset", "change") for each in (frame, found))
    assert before == after
