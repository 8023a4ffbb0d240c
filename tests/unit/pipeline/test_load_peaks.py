"""How unevenly records are spread over the owners, in Spark's tables."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from zkrebalancer.pipeline.report.measures import load_peaks


def test_an_owner_without_records_counts_in_the_mean(spark: SparkSession) -> None:
    """In `load_peaks`, join what was produced without "left": the mean is that of the others only."""
    window = "run string, step int, target string, from_us long, to_us long"
    steps = spark.createDataFrame([("r", 0, "", 0, 100)], window)
    owned = [("r", "g", "t", 0, "a", 0), ("r", "g", "t", 1, "b", 0), ("r", "g", "u", 0, "c", 0)]
    interval = "run string, group string, topic string, partition int, member string, started_us long, began long"
    intervals = spark.createDataFrame([(*one, 0, None) for one in owned], f"{interval}, ended_us long")
    sent = [("r", "produced", 50, "t", 0, 1, 30), ("r", "produced", 60, "t", 1, 1, 30)]
    event = "run string, kind string, mono_us long, topic string, partition int, first_offset long, last_offset long"
    (row,) = load_peaks(spark.createDataFrame(sent, event), intervals, steps).collect()
    assert row["load_peak"] == pytest.approx(30 / 20)
