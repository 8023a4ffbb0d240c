"""The batch pipeline: reads event files, writes a folder of Parquet tables.

Tables that other tables are built from are written first and read back, so nothing is computed twice and nothing has
to fit into memory. The streaming pipeline calls the same `tables` after each micro-batch, for the runs it touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from zkrebalancer.pipeline import align, ingest, local_files, progress
from zkrebalancer.pipeline.facts import deliveries, fates, of_partition
from zkrebalancer.pipeline.facts.by_run import tables_of_runs
from zkrebalancer.pipeline.facts.coverage import delivery, tables_of_partitions
from zkrebalancer.pipeline.facts.excuses import excused, last_commits
from zkrebalancer.pipeline.facts.reduced import reduced
from zkrebalancer.pipeline.facts.runs import RUNS, runs
from zkrebalancer.pipeline.facts.steps import windows
from zkrebalancer.pipeline.local_files import EventFile, ReadAhead
from zkrebalancer.pipeline.schema import REJECTED
from zkrebalancer.pipeline.session import local_cores
from zkrebalancer.pipeline.store import Folder, Store

EVENTS = "events"
REJECTS = "rejects"
WINDOWS = "windows"
FORMER = (align.ALIGNED,)  # tables that earlier inputs had, and this one may not


def tables(events: DataFrame, kinds: frozenset[str], store: Store) -> None:
    """Build every table of `docs/reference/tables.md` from events as returned by `ingest.read_events`.

    `kinds`: those that occur; what has none of them needs no job.
    """
    blocks = store.keep("blocks", ingest.blocks(events))
    aligned = align.on_one_clock(events, blocks, store.keep)
    if aligned is not events:
        events, blocks = aligned, store.keep("blocks", ingest.blocks(aligned))
    rejects = ingest.rejects(events, blocks)
    has_rejects = REJECTED in kinds
    rejected = store.keep(REJECTS, rejects) if has_rejects else store.keep_none(REJECTS, rejects.schema)
    steps = windows(events)
    # as a table, so that Spark knows whether it is small
    spans = store.keep(WINDOWS, steps) if "step" in kinds else store.keep_none(WINDOWS, steps.schema)
    seen = reduced(events, blocks, spans if "step" in kinds else None)
    small = store.keep_all("events of runs", tables_of_runs(events, seen))
    intervals, legs = small["intervals"], small["legs"]
    deletions = small["eras"] if "topic_deleted" in kinds else None
    held = deliveries.deliveries_by_leg(events, legs, deletions)
    stretches = store.keep("stretches", deliveries.stretches(held))
    covered = store.keep_all("offsets", tables_of_partitions(events, intervals, legs, stretches, deletions))
    crashed = excused(intervals)
    doubtful = deliveries.doubtful(covered[of_partition.SUSPECTS], held)
    commits = last_commits(events, crashed)
    fate = delivery(covered[of_partition.SEGMENTS], doubtful, crashed, commits, legs, stretches)
    delivered = store.keep_all("deliveries", fate)[fates.DELIVERY]
    rejected_lines = rejected if has_rejects else None
    store.keep_all("runs", runs(events, blocks, delivered, small["overlaps"], rejected_lines))


def run(spark: SparkSession, url: str, out: str) -> None:
    """Read the event files below a URL, and write all tables below `out`, which is empty."""
    progress.step(spark.sparkContext, f"table {EVENTS}")
    ingest.write_events(ingest.parse(ingest.read_lines(spark, url)), f"{out}/{EVENTS}")
    _write_facts(spark, out)


def write_tables(
    spark: SparkSession, files: Sequence[EventFile], out: str, ahead: ReadAhead | None = None
) -> dict[str, DataFrame]:
    """Do the same with event files that every executor can open; return the tables, `events` included, as read back."""
    progress.step(spark.sparkContext, f"table {EVENTS}")
    local_files.store_events(spark, files, _events(out), ahead)
    return _write_facts(spark, out)


def read_ahead(files: Sequence[EventFile], out: str, master: str) -> ReadAhead | None:
    """Return what reads the first files for `write_tables` while Spark starts; None if the master is not local."""
    cores = local_cores(master)
    return ReadAhead(files, _events(out), cores) if cores else None


def _events(out: str) -> Path:
    return Path(out, EVENTS).absolute()


def _write_facts(spark: SparkSession, out: str) -> dict[str, DataFrame]:
    """Write all tables but `events`, which is written."""
    events = ingest.read_events(spark, f"{out}/{EVENTS}")
    store = Folder(spark, Path(out))
    tables(events, ingest.stored_kinds(Path(out, EVENTS)), store)
    return {EVENTS: events, **store.written}


def summary(out: str, most: int) -> list[dict[str, Any]]:
    """Return the first rows of the `runs` table, ordered by run, without Spark, which needs a second for it."""
    rows: list[dict[str, Any]] = pq.read_table(Path(out, RUNS), partitioning=None).sort_by("run")[:most].to_pylist()
    return rows
