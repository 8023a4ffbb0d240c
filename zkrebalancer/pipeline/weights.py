"""Learns the expected record rate of each partition: by hour of the week, by hour of the day, or one overall mean.

A back-test chooses among the three models. The last hours are held out; each model with enough history predicts them
from the earlier hours, and the one with the smallest error wins. For comparison, the errors include "same as now",
which repeats the rate of the previous hour.

Records per hour are counted in produced events, else in delivered events. Without either, the growth of the committed
offsets counts: only beyond the highest earlier offset, so that records read again after a restart or rewind count once.
Records between two commits are spread evenly over the time between them.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from zkrebalancer.protocol.errors import NodeContentError, RebalancerError
from zkrebalancer.protocol.fields import MAX_NODE_BYTES
from zkrebalancer.protocol.weights import ALWAYS, DAY, FIRST_HOUR, HOUR_S, SLOT_COUNTS, WEEK, Weights, encode

COMMITTED = "committed"
SOURCES = ("produced", "delivered", COMMITTED)  # the first kind that the events contain is used
MIN_HOURS = 4
MIN_CYCLES = 2  # days or weeks before the held-out hours
MAX_HELD_OUT = 24
SAME_AS_NOW = "same as now"
NAMES = {ALWAYS: "mean", DAY: "hour of the day", WEEK: "hour of the week"}
PARTITION = ("topic", "partition")
HOUR_US = HOUR_S * 1_000_000
DIGITS = 3  # significant digits of a rate
MIN_RATE_BYTES = 4  # of a rate in JSON, such as `0.0,`


class TooLittleHistoryError(RebalancerError):
    """The events span too few whole hours to learn from some and hold out others."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class History:
    """The rates of whole hours: `rates` has one row (topic, partition, hour, rate) for each partition and hour.

    `hour` counts from the epoch, from `first` to `last` - 1; the hours from `cut` on are held out. `source` is the kind
    of event that was counted.
    """

    rates: DataFrame
    source: str
    first: int
    cut: int
    last: int


@dataclass(frozen=True, slots=True)
class Error:
    """How far predictions of held-out hours were off: mean records per second, and as a share of the mean rate."""

    model: str
    slot_count: int | None  # None for SAME_AS_NOW
    mean_per_s: float
    relative: float


def history(events: DataFrame, group: str | None = None) -> History:
    """Count records by hour; `group` limits delivered and committed events to one group, None uses all groups.

    Raises:
        TooLittleHistoryError: fewer than MIN_HOURS whole hours, or no record in them.

    """
    is_ours = (F.col("group") == group) if group is not None else F.lit(col=True)
    is_dated = F.col("ts_us").isNotNull()  # no other fact needs it, so it may be missing
    counting = events.where(F.col("kind").isin(*SOURCES) & ((F.col("kind") == SOURCES[0]) | is_ours) & is_dated)
    spans = counting.groupBy("kind").agg(F.min("ts_us").alias("from_us"), F.max("ts_us").alias("to_us")).collect()
    if not spans:
        raise TooLittleHistoryError(f"no event counts records: {' or '.join(SOURCES)} events are needed")
    span = min(spans, key=lambda span: SOURCES.index(span["kind"]))
    source = span["kind"]
    first, last = -(-span["from_us"] // HOUR_US), span["to_us"] // HOUR_US
    if last - first < MIN_HOURS:
        raise TooLittleHistoryError(f"{max(0, last - first)} whole hours of {source} events; {MIN_HOURS} are needed")
    cut = last - min(MAX_HELD_OUT, (last - first) // MIN_HOURS)
    counted = (_grown if source == COMMITTED else _counted)(counting.where(F.col("kind") == source))
    rates = _rates(counted, first, last)
    if rates.isEmpty():
        raise TooLittleHistoryError(f"no offset grows in the {source} events: they show no records")
    return History(rates, source, first, cut, last)


def _counted(rows: DataFrame) -> DataFrame:
    """Return (topic, partition, hour, records) of events with an offset range."""
    size = F.col("last_offset") - F.col("first_offset") + 1
    hour = F.floor(F.col("ts_us") / HOUR_US).alias("hour")
    return rows.groupBy(*PARTITION, hour).agg(F.sum(size).alias("records"))


def _grown(commits: DataFrame) -> DataFrame:
    """Return (topic, partition, hour, records) of committed offsets; a partition's first commit counts nothing."""
    earlier = Window.partitionBy("group", *PARTITION).orderBy("ts_us", "offset")
    highest = F.max("offset").over(earlier.rowsBetween(Window.unboundedPreceding, -1))
    from_us = F.least(F.lag("ts_us").over(earlier), F.col("ts_us") - 1)
    grown = commits.select(
        *PARTITION, from_us.alias("from_us"), F.col("ts_us").alias("to_us"), (F.col("offset") - highest).alias("growth")
    ).where(F.col("growth") > 0)
    hours = F.sequence(F.floor(F.col("from_us") / HOUR_US), F.floor(F.col("to_us") / HOUR_US))
    by_hour = grown.withColumn("hour", F.explode(hours))
    begin_us = F.col("hour") * HOUR_US
    within_us = F.least("to_us", begin_us + HOUR_US) - F.greatest("from_us", begin_us)
    share = within_us / (F.col("to_us") - F.col("from_us"))
    return by_hour.groupBy(*PARTITION, "hour").agg(F.sum(F.col("growth") * share).alias("records"))


def _rates(counted: DataFrame, first: int, last: int) -> DataFrame:
    hours = F.explode(F.sequence(F.lit(first), F.lit(last - 1))).alias("hour")
    every = counted.select(*PARTITION).distinct().select(*PARTITION, hours)
    rate = F.coalesce("records", F.lit(0)) / F.lit(HOUR_S)
    return every.join(counted, [*PARTITION, "hour"], "left").select(*PARTITION, "hour", rate.alias("rate")).persist()


def expected(rates: DataFrame, slot_count: int) -> DataFrame:
    """Return (topic, partition, slot, rate): the mean over the hours of each slot."""
    return rates.groupBy(*PARTITION, _slot(slot_count).alias("slot")).agg(F.avg("rate").alias("rate"))


def back_test(past: History) -> list[Error]:
    """Return each model's error on the held-out hours, the best first and SAME_AS_NOW last."""
    known, held_out = past.rates.where(F.col("hour") < past.cut), past.rates.where(F.col("hour") >= past.cut)
    found = []
    for slot_count in SLOT_COUNTS:
        if slot_count == ALWAYS or past.cut - past.first >= MIN_CYCLES * slot_count:
            model = expected(known, slot_count).withColumnRenamed("rate", "predicted")
            tested = held_out.withColumn("slot", _slot(slot_count)).join(model, [*PARTITION, "slot"])
            found.append(_error(tested, NAMES[slot_count], slot_count))
    before = F.lag("rate").over(Window.partitionBy(*PARTITION).orderBy("hour"))
    now = past.rates.withColumn("predicted", before).where(F.col("hour") >= past.cut)
    return [*sorted(found, key=lambda error: error.mean_per_s), _error(now, SAME_AS_NOW, None)]


def _error(tested: DataFrame, model: str, slot_count: int | None) -> Error:
    off = F.abs(F.col("predicted") - F.col("rate"))
    row = tested.agg(F.avg(off).alias("off"), F.avg("rate").alias("rate")).first()
    if row is None:
        raise AssertionError("an aggregate without groups always has one row")
    return Error(model, slot_count, row["off"], row["off"] / row["rate"] if row["rate"] else 0.0)


def _slot(slot_count: int) -> Column:
    return (F.col("hour") + FIRST_HOUR) % slot_count


def learn(past: History, errors: list[Error]) -> tuple[Error, Weights]:
    """Return the best model whose weights fit into a node, and its weights learned from the whole history.

    Raises:
        NodeContentError: not even one rate per partition fits.

    """
    partitions = past.rates.select(*PARTITION).distinct().count()
    for error in errors:
        if error.slot_count is not None and partitions * error.slot_count * MIN_RATE_BYTES <= MAX_NODE_BYTES:
            weights = _collect(expected(past.rates, error.slot_count), error.slot_count)
            if len(encode(weights)) <= MAX_NODE_BYTES:
                return error, weights
    raise NodeContentError(f"weights: the rates of {partitions} partitions do not fit into a node")


def _collect(rates: DataFrame, slot_count: int) -> Weights:
    """Collect the rates, few enough for a node; a partition without data has rate 0."""
    rows = rates.collect()
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["topic"]] = max(counts.get(row["topic"], 0), row["partition"] + 1)
    found = {topic: [[0.0] * slot_count for _ in range(count)] for topic, count in sorted(counts.items())}
    for row in rows:
        found[row["topic"]][row["partition"]][row["slot"]] = float(f"{row['rate']:.{DIGITS}g}")
    return Weights(slot_count, found)
