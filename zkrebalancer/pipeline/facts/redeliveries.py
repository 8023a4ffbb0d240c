"""Records delivered twice without an excuse.

Only offsets that were delivered more than once are examined, in atoms: ranges whose offsets all have the same history.
A redelivery is excused if, since the delivery before it, its consumer crashed, or was repositioned to its offset or
below. Each crash or reposition excuses one redelivery.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.pipeline.facts.deliveries import BOOK, CHUNK, OWNER, meeting_doubled
from zkrebalancer.pipeline.facts.excuses import INTERVAL
from zkrebalancer.pipeline.schema import PARTITION


def unexcused(segments: DataFrame, doubtful: DataFrame, excuses: DataFrame, legs: DataFrame) -> DataFrame:
    """Return (run, group, topic, partition, unexcused): records delivered again without an excuse."""
    crashes = excuses.withColumnRenamed("started_us", "held_us")
    crashes = crashes.join(legs.select(*OWNER, "held_us", "started_us"), [*OWNER, "held_us"]).drop("held_us")
    seeks = legs.where(F.col("started_us") > F.col("held_us"))
    seeks = seeks.select(*BOOK, F.col("started_us").alias("sought_us"), F.col("position").alias("sought"))
    pieces = (
        meeting_doubled(doubtful, segments)
        .withColumn("begin", F.greatest("begin", "from"))
        .withColumn("end", F.least("end", "to"))
        .drop("from", "to", "position", "bucket")
        .join(crashes, list(INTERVAL), "left")
    )
    atoms = _atoms(pieces, seeks)
    within = (F.col("atom_begin") >= F.col("begin")) & (F.col("atom_end") <= F.col("end"))
    given = pieces.join(atoms, list(CHUNK)).where(within)
    order = ["at", "is_excuse", "block", "row"]
    crashed = given.where(F.col("excused_us").isNotNull() & (F.col("atom_begin") >= F.col("committed")))
    sought = atoms.join(seeks, list(BOOK)).where(F.col("atom_begin") >= F.col("sought"))
    rows = (
        _history(given, "mono_us", is_excuse=False)
        .unionByName(_history(crashed, "excused_us", is_excuse=True))
        .unionByName(_history(sought.withColumns({"block": F.lit(0), "row": F.lit(0)}), "sought_us", is_excuse=True))
    )
    before = F.lag("is_excuse").over(Window.partitionBy(*BOOK, "atom_begin").orderBy(*order))
    return (
        rows.withColumn("before", before)
        .where(~F.col("is_excuse") & (F.col("before") == F.lit(col=False)))
        .groupBy(*PARTITION)
        .agg(F.sum(F.col("atom_end") - F.col("atom_begin")).alias("unexcused"))
    )


def _history(rows: DataFrame, at: str, *, is_excuse: bool) -> DataFrame:
    atom = [*BOOK, "atom_begin", "atom_end"]
    return rows.select(*atom, F.col(at).alias("at"), F.lit(is_excuse).alias("is_excuse"), "block", "row")


def _atoms(pieces: DataFrame, seeks: DataFrame) -> DataFrame:
    """Return (*CHUNK, atom_begin, atom_end): the pieces cut wherever a piece or an excuse begins."""
    is_within = (F.col("sought") > F.col("begin")) & (F.col("sought") < F.col("end"))
    at_seeks = pieces.join(seeks, list(BOOK)).where(is_within).select(*CHUNK, F.col("sought").alias("atom_begin"))
    cut = F.explode(F.array("begin", "end", F.greatest("begin", F.least("end", F.coalesce("committed", "begin")))))
    cuts = pieces.select(*CHUNK, cut.alias("atom_begin")).unionByName(at_seeks).distinct()
    following = F.lead("atom_begin").over(Window.partitionBy(*CHUNK).orderBy("atom_begin"))
    return cuts.withColumn("atom_end", following).where(F.col("atom_end").isNotNull())
