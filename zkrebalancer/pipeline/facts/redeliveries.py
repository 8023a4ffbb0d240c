"""Records that were delivered twice although no crash excuses it.

Only the offsets that were given more than once are looked at, in pieces within which every offset has the same history.
A redelivery is excused if a crash lies between it and the delivery before it; one crash excuses one redelivery.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.pipeline.facts.deliveries import BOOK, CHUNK, meeting_doubled
from zkrebalancer.pipeline.facts.excuses import HOLD
from zkrebalancer.pipeline.schema import PARTITION


def unexcused(segments: DataFrame, doubtful: DataFrame, excuses: DataFrame) -> DataFrame:
    """Return (run, group, topic, partition, unexcused): records given again without a crash that excuses it."""
    pieces = (
        meeting_doubled(doubtful, segments)
        .withColumn("begin", F.greatest("begin", "from"))
        .withColumn("end", F.least("end", "to"))
        .drop("from", "to", "position", "bucket")
        .join(excuses, list(HOLD), "left")
    )
    atoms = _atoms(pieces)
    within = (F.col("atom_begin") >= F.col("begin")) & (F.col("atom_end") <= F.col("end"))
    given = pieces.join(atoms, list(CHUNK)).where(within)
    order = ["at", "is_excuse", "block", "row"]
    rows = given.select(
        *BOOK,
        "atom_begin",
        "atom_end",
        F.col("mono_us").alias("at"),
        F.lit(col=False).alias("is_excuse"),
        "block",
        "row",
    ).unionByName(
        given.where(F.col("excused_us").isNotNull() & (F.col("atom_begin") >= F.col("committed"))).select(
            *BOOK,
            "atom_begin",
            "atom_end",
            F.col("excused_us").alias("at"),
            F.lit(col=True).alias("is_excuse"),
            "block",
            "row",
        )
    )
    before = F.lag("is_excuse").over(Window.partitionBy(*BOOK, "atom_begin").orderBy(*order))
    return (
        rows.withColumn("before", before)
        .where(~F.col("is_excuse") & (F.col("before") == F.lit(col=False)))
        .groupBy(*PARTITION)
        .agg(F.sum(F.col("atom_end") - F.col("atom_begin")).alias("unexcused"))
    )


def _atoms(pieces: DataFrame) -> DataFrame:
    """Return (*CHUNK, atom_begin, atom_end): the ranges between all places where a piece or an excuse begins."""
    cut = F.explode(F.array("begin", "end", F.greatest("begin", F.least("end", F.coalesce("committed", "begin")))))
    cuts = pieces.select(*CHUNK, cut.alias("atom_begin")).distinct()
    following = F.lead("atom_begin").over(Window.partitionBy(*CHUNK).orderBy("atom_begin"))
    return cuts.withColumn("atom_end", following).where(F.col("atom_end").isNotNull())
