"""Topic eras: a topic re-created under the same name has new offsets, so its records are counted apart."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere


def with_era(rows: DataFrame, deletions: DataFrame | None) -> DataFrame:
    """Add `era`: how often the row's topic had been deleted before `mono_us`.

    `deletions` is the table `eras`; None: no topic was deleted.
    """
    if deletions is None:
        return rows.withColumn("era", F.lit(0))
    past = F.filter("deleted_us", lambda deleted: deleted < F.col("mono_us"))
    era = F.when(F.col("deleted_us").isNull(), F.lit(0)).otherwise(F.size(past))
    return rows.join(deletions, ["run", "topic"], "left").withColumn("era", era).drop("deleted_us")
