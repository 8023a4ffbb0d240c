"""The columns of the source, and their Arrow batches built from Kafka's messages.

All columns are built by C functions over whole lists of messages: a Python loop over the records, or one tuple for
each, would take longer than fetching them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message

from consumer_agent.spark import readable_headers
from zkrebalancer.pipeline.source.offsets import Range

_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, "
    "timestamp timestamp, timestampType int, generation bigint"
)
RANGE_COLUMNS = "topic string, partition int, begin bigint, end bigint, generation bigint, identity string"
_HEADERS = "headers array<struct<key: string, value: binary>>"
_MICROSECONDS = pa.timestamp("us", tz="UTC")
MAX_MOMENT_MS = (2**63 - 1) // 1_000  # in microseconds of 64 bits
_ARROW: list[tuple[str, pa.DataType]] = [
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", _MICROSECONDS),
    ("timestampType", pa.int32()),
    ("generation", pa.int64()),
]
_ARROW_HEADERS = ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
_NUMBERS: list[tuple[str, pa.DataType]] = [("begin", pa.int64()), ("end", pa.int64()), ("generation", pa.int64())]
_RANGE_COLUMNS: list[tuple[str, pa.DataType]] = [("topic", pa.string()), ("partition", pa.int32()), *_NUMBERS]
_RANGES = pa.schema([*_RANGE_COLUMNS, ("identity", pa.string())])
_SCHEMAS = {False: pa.schema(_ARROW), True: pa.schema([*_ARROW, _ARROW_HEADERS])}


def spark_schema(include_headers: bool) -> str:
    """Return the columns as a Spark DDL string; `timestampType`: 0 create time, 1 log append time, -1 none."""
    return f"{_COLUMNS}, {_HEADERS}" if include_headers else _COLUMNS


def range_batch(ranges: Sequence[Range]) -> pa.RecordBatch:
    """Return a row for each range, with the columns RANGE_COLUMNS."""
    return pa.RecordBatch.from_pylist([one._asdict() for one in ranges], schema=_RANGES)


def record_batch(read: Range, messages: Sequence[Message], include_headers: bool) -> pa.RecordBatch:
    """Return the rows of messages of one partition."""
    count = len(messages)
    kinds, moments_ms = zip(*map(Message.timestamp, messages), strict=True)
    kind = pc.subtract(pa.array(kinds, pa.int32()), pa.scalar(1, pa.int32()))
    moment = _moments(moments_ms)
    columns: list[Any] = [
        pa.array(list(map(Message.key, messages)), pa.binary()),
        pa.array(list(map(Message.value, messages)), pa.binary()),
        pa.repeat(pa.scalar(read.topic, pa.string()), count),
        pa.repeat(pa.scalar(read.partition, pa.int32()), count),
        _offsets(messages),
        moment
        if min(kinds)
        else pc.if_else(pc.less(kind, pa.scalar(0, pa.int32())), pa.scalar(None, _MICROSECONDS), moment),
        kind,
        pa.repeat(pa.scalar(read.generation, pa.int64()), count),
    ]
    if include_headers:
        found = zip(readable_headers(messages), messages, strict=False)  # there may be more headers than messages
        rows = [[{"key": key, "value": value} for key, value in headers] for headers, _ in found]
        columns.append(pa.array(rows, _ARROW_HEADERS[1]))
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMAS[include_headers])


def _moments(moments_ms: Sequence[int]) -> Any:  # noqa: ANN401  # pyarrow has no types
    """Return moments as Spark has them; null for those that it cannot have, such as nanoseconds taken for these."""
    try:
        return pa.array(moments_ms, pa.timestamp("ms", tz="UTC")).cast(_MICROSECONDS)
    except pa.ArrowInvalid:
        fitting = [at if abs(at) <= MAX_MOMENT_MS else None for at in moments_ms]
        return pa.array(fitting, pa.timestamp("ms", tz="UTC")).cast(_MICROSECONDS)


def _offsets(messages: Sequence[Message]) -> Any:  # noqa: ANN401  # pyarrow has no types
    """Return the offset of each message, as a range if none is missing between the first and the last."""
    first, last = messages[0].offset() or 0, messages[-1].offset() or 0
    if last - first == len(messages) - 1:
        return pa.arange(first, last + 1)  # type: ignore[attr-defined]  # missing in the stubs
    return pa.array(list(map(Message.offset, messages)), pa.int64())
