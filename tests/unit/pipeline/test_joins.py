"""How Spark goes about it: no table is broadcast that may be large, no window costs the square of its rows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession

from zkrebalancer.pipeline.facts.excuses import excused, last_commits
from zkrebalancer.pipeline.facts.reduced import reduced
from zkrebalancer.pipeline.fleet.lives import steps

SETTINGS = {"spark.sql.autoBroadcastJoinThreshold": "-1", "spark.sql.maxPlanStringLength": "100000"}
OWNER = "run string, group string, topic string, partition int, member string"
EVENTS = f"{OWNER}, mono_us long, file string, block long, row long, kind string, offset long, delays_us array<long>"
INTERVALS = f"{OWNER}, started_us long, excused_us long, position long"


@pytest.fixture
def nothing_is_small(spark: SparkSession) -> Iterator[None]:
    usual = {name: spark.conf.get(name) for name in SETTINGS}
    for values in (SETTINGS, usual):
        for name, value in values.items():
            spark.conf.set(name, str(value))
        if values is SETTINGS:
            yield


def plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


@pytest.mark.usefixtures("nothing_is_small")
def test_no_broadcast_is_forced(spark: SparkSession) -> None:
    """Use `F.broadcast` in `reduced` or `last_commits`: with many runs or crashes, each executor had to hold them."""
    events = spark.createDataFrame([], EVENTS)
    commits = last_commits(events, excused(spark.createDataFrame([], INTERVALS)))
    deliveries = reduced(events, spark.createDataFrame([], "run string, began_us long"), None)
    for joined in (commits, deliveries):
        assert "Join" in plan(joined)
        assert "Broadcast" not in plan(joined)


@pytest.mark.usefixtures("nothing_is_small")
def test_no_window_looks_forwards(spark: SparkSession) -> None:
    """In `lives.steps`, look at what follows a row: Spark does that anew for each, which costs their square."""
    plans = "group string, kind string, mono_us long, partition_count long, mode string, strategy string"
    of_members = "group string, member string, host string, came_us long, left_us long, crashed boolean, silent_us long"
    found = plan(steps(spark.createDataFrame([], plans), spark.createDataFrame([], of_members)))
    assert "unboundedpreceding" in found
    assert "unboundedfollowing" not in found
