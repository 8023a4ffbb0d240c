"""Small frames for tests of facts: events written down by hand, as the pipeline reads them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.observe.reading import Event
from zkrebalancer.pipeline import batch, ingest
from zkrebalancer.pipeline.schema import PLACE


def events_of(spark: SparkSession, runs: dict[str, Sequence[Event]]) -> DataFrame:
    """Return the events of named runs, parsed from their lines."""
    lines = [
        (run, "a.jsonl", 0, number, json.dumps(e)) for run, events in runs.items() for number, e in enumerate(events)
    ]
    frame = spark.createDataFrame(lines, PLACE.simpleString()[7:-1].replace(":", " ") + ", text string")
    return ingest.parse(frame.withColumn("file", F.concat_ws("/", "run", "file")))


def tables_of(events: DataFrame) -> dict[str, DataFrame]:
    """Return every table that the pipeline makes of events."""
    kept: dict[str, DataFrame] = {}

    def keep(name: str, table: DataFrame) -> DataFrame:
        kept[name] = table.localCheckpoint()
        return kept[name]

    batch.tables(events.localCheckpoint(), keep)
    return kept


def rows(table: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """Return these columns of a table that a test expects to be small, sorted."""
    return sorted((tuple(row) for row in table.select(*columns).collect()), key=repr)


def write_lines(path: Path, events: Sequence[Event]) -> None:
    """Write an event file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
