"""Deliveries, reduced by each task that reads them: delays by bin and by second, first records in each step.

They become events of few rows, which go through `of_run` with the other events of their run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.pipeline.facts.delays import CURVE_US, bins_of
from zkrebalancer.pipeline.facts.steps import with_step
from zkrebalancer.pipeline.schema import ORDER

BIN, SECOND, ARRIVAL = "delays_of_bin", "delays_of_second", "delivered"  # kinds
MAX_KEPT = 100_000  # rows that a task collects before it passes them on
MAX_DELAYS = 1_000_000  # that are sorted at once, about
SCHEMA = (
    "run string, mono_us bigint, file string, block bigint, row bigint, early_us bigint, late_us bigint, kind string, "
    "group string, topic string, partition int, member string, number bigint, count bigint, bin int, max_us bigint, "
    "total_us bigint"
)
Integers = npt.NDArray[np.int64]


def reduced(events: DataFrame, blocks: DataFrame, windows: DataFrame | None) -> DataFrame:
    """Return rows of SCHEMA: deliveries as few events; `windows` are the steps, None if there is none.

    `number` is the step, `bin` and `max_us` as in the table `delays`; rows of a SECOND are at its beginning.
    """
    began = blocks.coalesce(1).groupBy("run").agg(F.min("began_us").alias("began_us"))
    delivered = events.where(F.col("kind") == "delivered")
    rows = delivered.select("run", "group", "topic", "partition", "member", *ORDER, "delays_us")
    rows = rows.withColumn("step", F.lit(None).cast("bigint")) if windows is None else with_step(rows, windows)
    return rows.join(began, "run").mapInArrow(reduce, SCHEMA)


@dataclass(slots=True)
class _Sums:
    """What a task has reduced so far."""

    bins: dict[tuple[Any, ...], list[int]] = field(default_factory=dict)  # by series and bin: records, maximum
    seconds: dict[tuple[Any, ...], list[int]] = field(default_factory=dict)  # records, sum, maximum
    first: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)  # by partition, member and step

    @property
    def size(self) -> int:
        return len(self.bins) + len(self.seconds) + len(self.first)

    def add(self, batch: pa.RecordBatch) -> None:
        """Reduce the deliveries of a batch."""
        lengths = _integers(pc.list_value_length(batch.column("delays_us")).fill_null(0))
        timed = batch.filter(pa.array(lengths > 0))
        if timed.num_rows:
            self._add_delays(timed, lengths[lengths > 0])
        in_step = batch.filter(batch.column("step").is_valid())
        if in_step.num_rows:
            self._add_first(in_step)

    def _add_delays(self, batch: pa.RecordBatch, lengths: Integers) -> None:
        delays_us = _integers(pc.list_flatten(batch.column("delays_us")))
        begins = np.cumsum(lengths) - lengths
        began_us = _integers(batch.column("began_us"))
        after_us = _integers(batch.column("mono_us")) - began_us
        groups, names = _codes(batch, ("run", "group", "began_us"))
        sums, most = (lengths, np.add.reduceat(delays_us, begins)), np.maximum.reduceat(delays_us, begins)
        for code, second, count, total_us, max_us in _grouped((groups, after_us // CURVE_US), sums, most):
            of_second = self.seconds.setdefault((*names[code], second), [0, 0, 0])
            of_second[:] = of_second[0] + count, of_second[1] + total_us, max(of_second[2], max_us)
        series, names = _codes(batch, ("run", "group", "topic", "step"))
        keys, ones = (np.repeat(series, lengths), bins_of(delays_us)), np.ones(len(delays_us), np.int64)
        for code, number, count, max_us in _grouped(keys, (ones,), delays_us):
            of_bin = self.bins.setdefault((*names[code], number), [0, 0])
            of_bin[:] = of_bin[0] + count, max(of_bin[1], max_us)

    def _add_first(self, batch: pa.RecordBatch) -> None:
        codes, names = _codes(batch, ("run", "group", "topic", "partition", "member", "step"))
        least: Integers = np.full(len(names), np.iinfo(np.int64).max)
        times = _integers(batch.column("mono_us"))
        np.minimum.at(least, codes, times)
        is_first = times == least[codes]  # several only at the same time
        at = zip(*(batch.column(name).filter(pa.array(is_first)).to_pylist() for name in ORDER), strict=True)
        for code, place in zip(codes[is_first].tolist(), at, strict=True):
            self.first[names[code]] = min(place, self.first.get(names[code], place))

    def events(self) -> Iterator[dict[str, Any]]:
        """Iterate over rows of SCHEMA."""
        nowhere = {"file": "", "block": 0, "row": 0, "early_us": 0, "late_us": 0}
        for (run, group, topic, step, number), (count, max_us) in self.bins.items():
            series = {"run": run, "group": group, "topic": topic, "number": step}
            yield {**nowhere, **series, "kind": BIN, "mono_us": 0, "bin": number, "count": count, "max_us": max_us}
        for (run, group, began_us, second), (count, total_us, max_us) in self.seconds.items():
            sums = {"count": count, "total_us": total_us, "max_us": max_us}
            at_us = began_us + second * CURVE_US
            yield {**nowhere, **sums, "run": run, "kind": SECOND, "group": group, "number": second, "mono_us": at_us}
        for (run, group, topic, partition, member, _step), place in self.first.items():
            at = dict(zip(ORDER, place, strict=True))
            whose = {"run": run, "group": group, "topic": topic, "partition": partition, "member": member}
            yield {**nowhere, **at, **whose, "kind": ARRIVAL, "count": 0}


def reduce(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Reduce the deliveries of one task."""
    sums = _Sums()
    for batch in batches:
        delays = pc.sum(pc.list_value_length(batch.column("delays_us"))).as_py() or 0
        rows = max(1, batch.num_rows // math.ceil((delays + 1) / MAX_DELAYS))
        for begin in range(0, batch.num_rows, rows):
            sums.add(batch.slice(begin, rows))
        if sums.size > MAX_KEPT:
            yield from _emitted(sums)
            sums = _Sums()
    yield from _emitted(sums)


def _emitted(sums: _Sums) -> Iterator[pa.RecordBatch]:
    rows = list(sums.events())
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=_arrow_schema())


def _arrow_schema() -> pa.Schema:
    kinds: dict[str, pa.DataType] = {"string": pa.string(), "bigint": pa.int64(), "int": pa.int32()}
    columns = (column.split() for column in SCHEMA.split(", "))
    return pa.schema([pa.field(name, kinds[kind]) for name, kind in columns])


def _codes(batch: pa.RecordBatch, names: tuple[str, ...]) -> tuple[Integers, list[tuple[Any, ...]]]:
    """Number the different values of some columns; return each row's number, and the values of each number."""
    codes: Integers = np.zeros(batch.num_rows, np.int64)
    for name in names:
        encoded = batch.column(name).dictionary_encode(null_encoding="encode")
        codes = np.unique(codes * len(encoded.dictionary) + _integers(encoded.indices), return_inverse=True)[1]
    firsts = pa.array(np.unique(codes, return_index=True)[1], pa.int64())
    columns = [batch.column(name).take(firsts).to_pylist() for name in names]
    return codes, list(zip(*columns, strict=True))


def _grouped(keys: tuple[Integers, Integers], sums: tuple[Integers, ...], most: Integers) -> Iterator[list[int]]:
    """Iterate over different keys: the two keys, the sum of each of `sums`, and the maximum of `most`."""
    order = np.lexsort(keys)
    begins = np.flatnonzero(np.any([np.diff(key[order], prepend=key[order][:1] - 1) != 0 for key in keys], axis=0))
    columns = [key[order][begins] for key in keys]
    columns += [np.add.reduceat(values[order], begins) for values in sums]
    columns.append(np.maximum.reduceat(most[order], begins))
    return map(list, zip(*(column.tolist() for column in columns), strict=True))


def _integers(column: Any) -> Integers:  # noqa: ANN401  # an array of Arrow
    found: Integers = column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return found
