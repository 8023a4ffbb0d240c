"""What became of each partition's records, in one row: produced, delivered, lost, doubled, out of order."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.pipeline.schema import PARTITION


def delivery(coverage: DataFrame, unexcused: DataFrame, out_of_order: DataFrame, stretches: DataFrame) -> DataFrame:
    """Return a row for each partition of each group.

    Columns: run, group, topic, partition, produced, delivered, lost, duplicated, duplicated_outside_crash, which are
    records; out_of_order, unheld, which are deliveries. `unheld` were given to somebody who did not hold the partition.
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
