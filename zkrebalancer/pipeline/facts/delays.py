"""Delays of records, as histograms whose bins are 1 % wide, so that partial counts can be computed anywhere and added.

The counts are exact, however the work was spread; percentiles read from them are at most 1 % off. The consumer measures
each record's delay and writes it into `delays_us` of `delivered`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.observe.reading import Event

BIN_WIDTH = 1.01
_SCALE = math.log(BIN_WIDTH)
CURVE_US = 1_000_000
Series = tuple[str, str, int | None]  # group, topic and step


def bin_of_delay() -> Column:
    """Return the column `bin`, the bin of `delay_us`.

    Bin b covers BIN_WIDTH^b to BIN_WIDTH^(b+1) microseconds; delays below 1 µs are in bin 0.
    """
    return F.floor(F.log(F.greatest("delay_us", F.lit(1))) / F.lit(_SCALE)).cast("int").alias("bin")


def bins_of(delays_us: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the bins of delays."""
    return np.floor(np.log(np.maximum(delays_us, 1)) / _SCALE).astype(np.int64)


@dataclass(slots=True)
class Delays:
    """The delays of a run: rows of the tables `delays`, `delay_figures` and `delay_curve`."""

    curve: list[tuple[object, ...]] = field(default_factory=list)  # complete rows, without the run
    _bins: dict[Series, dict[int, list[int]]] = field(default_factory=lambda: defaultdict(dict))  # records, maximum
    _seconds: dict[str, list[int]] = field(default_factory=dict)  # by group: second, records, sum and maximum

    def add_bin(self, event: Event) -> None:
        """Add records of a bin."""
        bins = self._bins[event["group"], event["topic"], event["number"]]
        of_bin = bins.setdefault(event["bin"], [0, 0])
        of_bin[0], of_bin[1] = of_bin[0] + event["count"], max(of_bin[1], event["max_us"])

    def add_second(self, event: Event) -> None:
        """Add records of a second; seconds come in order of time."""
        sums = self._seconds.get(event["group"])
        if sums is None or sums[0] != event["number"]:
            self._end_second(event["group"])
            sums = self._seconds[event["group"]] = [event["number"], 0, 0, 0]
        sums[1], sums[2], sums[3] = sums[1] + event["count"], sums[2] + event["total_us"], max(sums[3], event["max_us"])

    def _end_second(self, group: str) -> None:
        if group in self._seconds:
            second, records, total_us, max_us = self._seconds.pop(group)
            self.curve.append((group, second, records, total_us / records / 1_000, max_us / 1_000))

    def finish(self) -> None:
        """Complete the curve."""
        for group in list(self._seconds):
            self._end_second(group)

    def bins(self) -> Iterator[tuple[object, ...]]:
        """Iterate over rows of `delays`."""
        for series, bins in self._bins.items():
            for number, (records, max_us) in bins.items():
                yield *series, number, records, max_us

    def figures(self) -> Iterator[tuple[object, ...]]:
        """Iterate over rows of `delay_figures`; percentiles by nearest rank."""
        merged: dict[tuple[str, int | None], dict[int, list[int]]] = defaultdict(dict)
        for (group, _topic, step), bins in self._bins.items():
            for number, (records, max_us) in bins.items():
                of_bin = merged[group, step].setdefault(number, [0, 0])
                of_bin[0], of_bin[1] = of_bin[0] + records, max(of_bin[1], max_us)
        for (group, step), bins in merged.items():
            total = sum(records for records, _max_us in bins.values())
            shares = [_percentile_ms(bins, total * share) for share in (0.5, 0.99)]
            yield group, step, total, *shares, max(max_us for _records, max_us in bins.values()) / 1_000


def _percentile_ms(bins: Mapping[int, Sequence[int]], rank: float) -> float:
    up_to = 0
    for number, (records, max_us) in sorted(bins.items()):
        up_to += records
        if up_to >= rank:
            return float(min(BIN_WIDTH ** (number + 0.5), max_us) / 1_000)
    raise ValueError(f"no bin reaches {rank}")


def delay_figures(delays: DataFrame, keys: tuple[str, ...] = ("run", "group", "step")) -> DataFrame:
    """Return (*keys, records, delay_p50_ms, delay_p99_ms, delay_max_ms); percentiles by nearest rank."""
    bins = delays.groupBy(*keys, "bin").agg(F.sum("records").alias("records"), F.max("max_us").alias("max_us"))
    up_to = F.sum("records").over(Window.partitionBy(*keys).orderBy("bin"))  # one row per bin: fewer than 3,000
    total = F.sum("records").over(Window.partitionBy(*keys))
    bins = bins.withColumn("up_to", up_to).withColumn("total", total)
    middle_us = F.least(F.pow(F.lit(BIN_WIDTH), F.col("bin") + 0.5), F.col("max_us"))

    def percentile_ms(share: float) -> Column:
        return F.min(F.when(F.col("up_to") >= F.col("total") * share, middle_us)) / 1_000

    return bins.groupBy(*keys).agg(
        F.sum("records").alias("records"),
        percentile_ms(0.5).alias("delay_p50_ms"),
        percentile_ms(0.99).alias("delay_p99_ms"),
        (F.max("max_us") / 1_000).alias("delay_max_ms"),
    )
