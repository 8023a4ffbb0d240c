"""The consistent region of a Spark query: `foreachBatch` with a sink whose transactions also hold the batch's ranges.

Spark stores the ranges of a batch in its checkpoint before it reads them, each with its fence and with what its
progress belongs to. So the transaction of a batch is one checkpoint for both: if Spark repeats the batch after a
failure, what the sink has of it is left out; if other members of the group have continued meanwhile, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from consumer_agent.region import Advance, Claim, Sink, as_sink
from zkrebalancer.pipeline.source.checkpoint import ranges_of
from zkrebalancer.pipeline.source.offsets import Range
from zkrebalancer.protocol.errors import ConfigurationError, RebalancerError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.registration import MAX_STOP_TIMEOUT_MS

NEEDED = ("topic", "partition", "offset")  # columns by which rows are left out
_log = logging.getLogger(__name__)

Write = Callable[[Any, DataFrame], object]
Advances = Mapping[TopicPartition, Advance]


class SinkBehindError(RebalancerError):
    """The sink has less than the group's offsets say, for example because it was restored from a backup."""


class SparkRegion:
    """Stores the batches of a query in a sink, each record's results once; `store` is for `foreachBatch`.

    It shares the sink with the `ConsistentRegion` of other members of the group. The query has one source.
    """

    def __init__(self, *, group: str, checkpoint: str, open_database: Callable[[], Any], write: Write) -> None:
        """Prepare; nothing is opened yet.

        `group`: of the source. `checkpoint`: the query's `checkpointLocation`. `open_database` returns a connection of
        a known database, or a `Sink`; it is closed after each batch. `write(transaction, rows)` writes the results of
        `rows`, a data frame with the columns of the batch, in the open transaction.
        """
        self._group = group
        self._checkpoint = checkpoint
        self._open_database = open_database
        self._write = write

    def store(self, batch: DataFrame, batch_id: int) -> None:
        """Store what the sink does not have of a batch.

        Raises:
            ConfigurationError: the batch lacks columns of the source, or the sink is none.
            CheckpointError: the checkpoint does not have the ranges of one source of this format.
            SinkBehindError: records before the batch are missing in the sink.

        """
        missing = [name for name in NEEDED if name not in batch.columns]
        if missing:
            raise ConfigurationError(f"a region needs the source's column {missing[0]} in each batch")
        ranges = ranges_of(batch.sparkSession, self._checkpoint, batch_id)
        with closing(self._open_database()) as database:
            sink = as_sink(database, MAX_STOP_TIMEOUT_MS)  # a longer batch is in vain: its member is evicted
            advances = self._begin(sink, ranges)
            if not advances:
                return
            try:
                self._write(sink.connection, rows_of(batch, ranges, advances))
            except BaseException:
                sink.rollback()
                raise
            sink.commit()

    def _begin(self, sink: Sink, ranges: Sequence[Range]) -> Advances:
        """Claim the ranges and begin a transaction; return what it may store, nothing if none was begun."""
        claims = [Claim((r.topic, r.partition), r.generation or 0, r.identity, r.life, r.begin) for r in ranges]
        claimed = sink.claim(self._group, claims)
        left_out = {claim.partition for claim in claims} - claimed.keys()
        advances = dict(unstored(ranges, claimed))
        while advances:
            refused = sink.begin(self._group, advances)
            if not refused:
                break
            sink.rollback()  # others have claimed these since
            left_out |= refused
            advances = {partition: advance for partition, advance in advances.items() if partition not in refused}
        _tell(left_out)
        return advances


def _tell(left_out: Iterable[TopicPartition]) -> None:
    """Log that records of the batch are not stored here: if no younger consumer stores them, they are lost."""
    partitions = sorted(left_out)
    if partitions:
        topic, number = partitions[0]
        more = f" and {len(partitions) - 1} more" if len(partitions) > 1 else ""
        _log.warning(
            "%s/%s%s: a younger consumer has claimed it in the sink; its records of this batch are left to it",
            topic,
            number,
            more,
        )


def unstored(ranges: Sequence[Range], claimed: Mapping[TopicPartition, int]) -> Advances:
    """Return what a sink has yet to store of a batch, given where it is. Pure.

    Left out are partitions that younger consumers have claimed, and those that are stored.

    Raises:
        SinkBehindError: records before the batch are missing.

    """
    advances: dict[TopicPartition, Advance] = {}
    for one in ranges:
        partition = one.topic, one.partition
        at = claimed.get(partition)
        if at is None or at >= one.end:
            continue
        if at < one.begin:
            text = f"{one.topic}/{one.partition}: the sink is at {at}, but the batch begins at {one.begin}"
            advice = "stop the query, set the group's offsets with `groups reset-offsets`, and use another checkpoint"
            raise SinkBehindError(f"{text}; {advice}")
        advances[partition] = Advance(at, one.end, one.generation or 0)
    return advances


def rows_of(batch: DataFrame, ranges: Sequence[Range], advances: Advances) -> DataFrame:
    """Return the rows of a batch that the transaction may store."""
    begins = {(r.topic, r.partition): r.begin for r in ranges}
    if {partition: advance.before for partition, advance in advances.items()} == begins:
        return batch
    topic, number, offset = (sql.col(name) for name in NEEDED)
    wanted: list[Column] = [
        (topic == name) & (number == partition) & (offset >= advance.before)
        for (name, partition), advance in advances.items()
    ]
    return batch.filter(reduce(Column.__or__, wanted))
