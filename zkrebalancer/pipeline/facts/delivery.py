"""The fate of each partition's records in one row: produced, delivered, lost, duplicated, out of order."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.pipeline.schema import PARTITION


def delivery(coverage: DataFrame, unexcused: DataFrame, out_of_order: DataFrame, stretches: DataFrame) -> DataFrame:
    """Return one row for each partition of each group.

    Columns: run, group, topic, partition; in records: produced, delivered, lost, duplicated, duplicated_outside_crash;
    in deliveries: out_of_order and unheld, those to a member that did not own the partition.
    """
    unheld = stretches.where(F.col("started_us").isNull()).groupBy(*PARTITION).agg(F.sum("events").alias("unheld"))
    keys = list(PARTITION)
    joined = coverage.join(unexcused, keys, "left").join(out_of_order, keys, "left").join(unheld, keys, "left")
    return joined.select(
        *PARTITION,
        "produced",
        "delivered",
        "lost",
        "duplicated",
        *[
            F.coalesce(name, F.lit(0)).alias(alias)
            for name, alias in (
                ("unexcused", "duplicated_outside_crash"),
                ("out_of_order", "out_of_order"),
                ("unheld", "unheld"),
            )
        ],
    )
