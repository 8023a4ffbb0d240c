"""Runs `RunFacts` on Spark: one Python process gets the events of a run, in order, and emits the rows of all tables.

Only kinds that do not grow with the records take part. A task reads the events of its runs one batch after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from zkrebalancer.pipeline.facts.of_run import SCHEMAS, RunFacts
from zkrebalancer.pipeline.schema import BOUNDS, ORDER

KINDS = (
    *("fetcher_started", "fetcher_stopped", "ownership_ended", "member_left", "repositioned", "topic_deleted", "step"),
    *("rebalance_requested", "rebalance_planned", "rebalance_finished", "command_sent", "command_acked"),
    *("sampled", "counted"),
)
_KEYS = (
    *("run", *ORDER, *BOUNDS, "kind", "group", "topic", "partition", "member", "generation", "cause_id", "count"),
    *("partitions", "positions", "reason", "trigger", "mode", "member_count", "partition_count", "moved_count"),
    *("outcome", "settled_us", "pause_us_max", "name", "target", "number", "unsettled_ms", "role", "cpu_us"),
    *("rss_bytes", "requests", "bytes_in", "bytes_out"),
)
MAX_WAITING_ROWS = 10_000


@contextmanager
def tables_of_runs(events: DataFrame, arrivals: DataFrame | None = None) -> Iterator[Callable[[str], DataFrame]]:
    """Give a function from the name of a table in SCHEMAS to the table; all come from one pass over the events.

    `arrivals`: the deliveries that tables about steps need (`steps.arrivals`).
    """
    wanted = events.where(F.col("kind").isin(*KINDS)).select(*_KEYS)
    if arrivals is not None:
        wanted = wanted.unionByName(arrivals, allowMissingColumns=True)
    schema = StructType([StructField(name, StructType.fromDDL(ddl)) for name, ddl in SCHEMAS.items()])
    ordered = wanted.repartition("run").sortWithinPartitions("run", *ORDER)
    found = ordered.mapInArrow(partial(_rows, to_arrow_schema(schema)), schema).persist()
    yield lambda name: found.where(F.col(name).isNotNull()).select(f"{name}.*")
    found.unpersist()


def _rows(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    run: str | None = None
    facts = RunFacts("")
    for batch in batches:
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        names = list(columns)
        for values in zip(*columns.values(), strict=True):
            event = dict(zip(names, values, strict=True))
            if event["run"] != run:
                if run is not None:
                    facts.finish()
                    yield from _emitted(schema, facts)
                run = event["run"]
                facts = RunFacts(run)
            event["at"] = tuple(event[name] for name in ORDER)
            facts.apply(event)
        if sum(map(len, facts.rows.values())) > MAX_WAITING_ROWS:
            yield from _emitted(schema, facts)
    if run is not None:
        facts.finish()
        yield from _emitted(schema, facts)


def _emitted(schema: pa.Schema, facts: RunFacts) -> Iterator[pa.RecordBatch]:
    """Iterate over the rows that are complete, a batch for each table, and forget them."""
    for name, rows in facts.rows.items():
        if rows:
            of_table = _struct(schema.field(name).type, rows)
            others = {other.name: pa.nulls(len(rows), other.type) for other in schema}
            yield pa.RecordBatch.from_arrays([*(others | {name: of_table}).values()], schema=schema)
            rows.clear()


def _struct(kind: pa.StructType, rows: list[tuple[object, ...]]) -> pa.StructArray:
    """Make a column of rows; a struct in it is a tuple."""
    columns = []
    for field, values in zip(kind, zip(*rows, strict=True), strict=True):
        if pa.types.is_struct(field.type):
            names = [each.name for each in field.type]
            made = [None if value is None else dict(zip(names, value, strict=True)) for value in values]
            columns.append(pa.array(made, field.type))
        else:
            columns.append(pa.array(values, field.type))
    return pa.StructArray.from_arrays(columns, fields=list(kind))
