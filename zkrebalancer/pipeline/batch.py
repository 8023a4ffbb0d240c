"""The batch pipeline: reads event files, writes a folder of Parquet tables.

Tables that other tables are built from are written first and read back, so nothing is computed twice and nothing has
to fit into memory. The streaming pipeline calls the same `tables` after each micro-batch, for the runs it touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pyspark.sql import DataFrame, SparkSession

from zkrebalancer.pipeline import align, ingest, progress
from zkrebalancer.pipeline.facts import delays, deliveries, fates, of_partition
from zkrebalancer.pipeline.facts.by_run import tables_of_runs
from zkrebalancer.pipeline.facts.coverage import delivery, tables_of_partitions
from zkrebalancer.pipeline.facts.excuses import excuses
from zkrebalancer.pipeline.facts.of_run import EXCUSED, SCHEMAS
from zkrebalancer.pipeline.facts.runs import runs
from zkrebalancer.pipeline.facts.steps import arrivals, windows

EVENTS = "events"
RUNS = "runs"
REJECTS = "rejects"
Keep = Callable[[str, DataFrame], DataFrame]  # writes a table under a name, returns the table read back


def tables(events: DataFrame, keep: Keep) -> None:
    """Build every table of `docs/reference/tables.md` from events as returned by `ingest.read_events`."""
    events = align.on_one_clock(events, keep)
    blocks = keep("blocks", ingest.blocks(events))
    rejected = keep(REJECTS, ingest.rejects(events, blocks))
    spans = keep("windows", windows(events))  # as a table, so that Spark knows whether it is small
    with tables_of_runs(events, arrivals(events, spans)) as found:
        small = {name: keep(name, found(name)) for name in SCHEMAS if name != EXCUSED}
        excused = keep("excuses", excuses(events, found(EXCUSED)))
    deletions, intervals, legs = small["eras"], small["intervals"], small["legs"]
    held = deliveries.deliveries_by_leg(events, legs, deletions)
    stretches = keep("stretches", deliveries.stretches(held))
    with tables_of_partitions(events, intervals, legs, stretches, deletions) as found:
        shares, suspects = (keep(name, found(name)) for name in of_partition.SCHEMAS)
    doubtful = keep("doubtful", deliveries.doubtful(suspects, held))
    with delivery(shares, doubtful, excused, legs, stretches) as found:
        delivered = keep(fates.DELIVERY, found(fates.DELIVERY))
    keep(RUNS, runs(events, blocks, delivered, small["overlaps"], rejected))
    keep("delay_figures", delays.delay_figures(keep("delays", delays.delays(events, spans))))
    keep("delay_curve", delays.delay_curve(events, blocks))


def run(spark: SparkSession, source: str, out: str) -> None:
    """Read the event files below `source` and write all tables below `out`, replacing older ones.

    Raises:
        NoEventsError: there is no event file below `source`.

    """
    write_tables(spark, ingest.read_lines(spark, source), out)


def write_tables(spark: SparkSession, lines: DataFrame, out: str) -> dict[str, DataFrame]:
    """Write all tables of event lines below `out`; return them, `events` included, as read back."""
    progress.step(spark.sparkContext, f"table {EVENTS}")
    ingest.write_events(ingest.parse(lines), f"{out}/{EVENTS}")
    written = {EVENTS: ingest.read_events(spark, f"{out}/{EVENTS}")}

    def keep(name: str, table: DataFrame) -> DataFrame:
        progress.step(spark.sparkContext, f"table {name}")
        table.write.mode("overwrite").parquet(f"{out}/{name}")
        written[name] = ingest.read_table(spark, f"{out}/{name}", schema=table.schema)
        return written[name]

    tables(written[EVENTS], keep)
    return written


def summary(spark: SparkSession, out: str) -> Iterator[dict[str, object]]:
    """Yield each row of the `runs` table as a dictionary, ordered by run."""
    for row in ingest.read_table(spark, f"{out}/{RUNS}").orderBy("run").toLocalIterator():
        yield row.asDict(recursive=True)
