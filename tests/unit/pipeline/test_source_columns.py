"""The columns of Kafka's messages, as Spark gets them."""

from __future__ import annotations

import pyarrow as pa
from confluent_kafka import Message

from zkrebalancer.pipeline.source.columns import MAX_MOMENT_MS, record_batch
from zkrebalancer.pipeline.source.offsets import Range


def test_a_moment_that_spark_cannot_have_is_null() -> None:
    """In `_moments`, only cast: one record with a timestamp in nanoseconds ended each query of its topic, for ever."""
    now_ms = 1_700_000_000_000
    moments = [now_ms, now_ms * 1_000_000, -(2**63), MAX_MOMENT_MS]
    found = [Message(topic="t", partition=0, offset=at, timestamp=(1, moment)) for at, moment in enumerate(moments)]
    rows = record_batch(Range("t", 0, 0, 4, 1), found, include_headers=False)
    column = rows.column("timestamp").cast(pa.int64()).to_pylist()
    assert column == [now_ms * 1_000, None, None, MAX_MOMENT_MS * 1_000]
