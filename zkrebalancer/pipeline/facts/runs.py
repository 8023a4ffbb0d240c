"""One row for each run: its scenario and the fate of its records."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.observe.overview import NEEDS
from zkrebalancer.pipeline.facts.fates import COUNTS
from zkrebalancer.pipeline.facts.one_pass import Pass, Row, union
from zkrebalancer.pipeline.schema import ORDER, PARTITION

RUNS = "runs"
_SCENARIO = ("protocol", "members", "seed", "settings", "versions", "machine", "mode")
_BROKEN = ("rejected", "torn", "events_dropped")
_JUDGED = (*COUNTS, "overlaps", "unclear")
_LIKE = {"unheld": "duplicated_outside_crash", "unclear": "overlaps"}  # unknown without the same kinds of events
SCHEMAS = {  # of the table, as Spark's DDL
    RUNS: "run string, events bigint, began_us bigint, ended_us bigint, scenario string, protocol string, "
    "members bigint, seed bigint, settings string, versions string, machine string, mode string, "
    + ", ".join(f"{name} bigint" for name in (*_BROKEN, *_JUDGED))
}
BLOCK, EVENT, DELIVERY, OVERLAP, REJECTS = "block", "event", "delivery", "overlap", "rejects"


def runs(
    events: DataFrame, blocks: DataFrame, delivery: DataFrame, overlaps: DataFrame, rejects: DataFrame | None
) -> Pass:
    """Return the pass that makes one row for each run; `rejects` is None if no line was rejected."""
    told = events.where(F.col("kind").isin("scenario", "events_dropped"))
    rows = [
        (blocks.select("run", F.col("events").alias("count"), "kinds", "began_us", "ended_us"), BLOCK),
        (told.select("run", *ORDER, "kind", "name", *_SCENARIO, F.col("dropped_count").alias("count")), EVENT),
        (delivery.select("run", *COUNTS), DELIVERY),
        (overlaps.select(*PARTITION, "is_certain"), OVERLAP),
    ]
    if rejects is not None:
        rows.append((rejects.groupBy("run", "is_torn").agg(F.count("*").alias("count")), REJECTS))
    return Pass(union(rows), ("run",), (), SCHEMAS, RunRow)


class RunRow:
    """The row of one run.

    Columns: run, events, began_us, ended_us, scenario, protocol, members, seed, settings, versions, machine, mode,
    rejected, torn, events_dropped, produced, delivered, lost, duplicated, duplicated_outside_crash, out_of_order,
    unheld, overlaps, unclear.
    `events_dropped` counts the events that processes could not write; the other columns do not include those.
    Counts of records and deliveries are summed over groups and partitions. `overlaps` counts the partitions that two
    members owned at once, `unclear` those of which the clocks of several hosts leave it open. What was not recorded is
    null, not 0: often only coordinators write events.
    """

    def __init__(self, run: str) -> None:
        """Begin before the first row."""
        self.rows: dict[str, list[tuple[Any, ...]]] = {RUNS: []}
        self._run = run
        self._counts = Counter[str]()
        self._kinds: set[str] = set()
        self._times: list[int] = []
        self._scenarios: list[tuple[tuple[Any, ...], Row]] = []
        self._overlaps: dict[tuple[Any, ...], bool] = {}  # by partition: whether it is certain

    def apply(self, row: Row) -> None:
        """Handle a row, whose kind is `what`."""
        match row["what"]:
            case "block":
                self._counts["events"] += row["count"]
                self._kinds.update(row["kinds"])
                self._times += [each for each in (row["began_us"], row["ended_us"]) if each is not None]
            case "event" if row["kind"] == "scenario":
                self._scenarios.append((tuple(row[name] for name in ORDER), row))
            case "event":
                self._counts["events_dropped"] += row["count"]
            case "delivery":
                self._counts.update({name: row[name] for name in COUNTS})
            case "overlap":
                partition = tuple(row[name] for name in PARTITION)
                self._overlaps[partition] = self._overlaps.get(partition, False) or row["is_certain"]
            case _:
                self._counts["torn" if row["is_torn"] else "rejected"] += row["count"]

    def finish(self) -> None:
        """Complete the row."""
        self._counts["overlaps"] = sum(self._overlaps.values())
        self._counts["unclear"] = len(self._overlaps) - self._counts["overlaps"]
        scenario = min(self._scenarios, key=lambda each: each[0], default=((), dict[str, Any]()))[1]
        told = [scenario.get(name) for name in ("name", *_SCENARIO)]
        times = (min(self._times, default=None), max(self._times, default=None))
        broken = [self._counts[name] for name in _BROKEN]
        counts = [self._counts[name] if self._is_known(name) else None for name in _JUDGED]
        self.rows[RUNS].append((self._run, self._counts["events"], *times, *told, *broken, *counts))

    def _is_known(self, name: str) -> bool:
        return all(kind in self._kinds for kind in NEEDS[_LIKE.get(name, name)])
