"""Reads stored events and rows of tables without Spark: what is new is little, and a job of Spark's takes a second."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from zkrebalancer.pipeline.continued import places
from zkrebalancer.pipeline.facts.by_run import KINDS
from zkrebalancer.pipeline.ingest import stored_kinds
from zkrebalancer.pipeline.local_files import EVENT_COLUMNS
from zkrebalancer.pipeline.schema import BULK, COMMON, ORDER, REJECTED, REST, STORED

TOLD = ("scenario", "events_dropped")  # kinds that count whenever they were
TIMED = (*BULK, *KINDS)
ROWS_AT_ONCE = 10_000  # of a table
_OF_RECORDS = ("group", "topic", "partition", "member", "first_offset", "last_offset", "offset", "delays_us")
_OF_BULK = tuple(dict.fromkeys((*places.COLUMNS, *_OF_RECORDS)))
_OF_OTHERS = (
    *("generation", "cause_id", "count", "partitions", "positions", "reason", "trigger", "mode", "member_count"),
    *("partition_count", "moved_count", "outcome", "settled_us", "pause_us_max", "name", "target", "number"),
    *("unsettled_ms", "role", "cpu_us", "rss_bytes", "requests", "bytes_in", "bytes_out", "dropped_count"),
    *("protocol", "members", "seed", "settings", "versions", "machine"),
)
Events = dict[str, pa.Table]  # by kind
Expression = pc.Expression
ALL: dict[str, Expression] = {  # columns, as `ingest.read_events` gives them
    **{name: pc.field(name) for name in STORED.names if name not in {"rest", "kind"}},
    **{name: pc.field("rest", name) for name in REST.names},
}


class Span(NamedTuple):
    """From when on, and until when; None: without a limit."""

    begin_us: int | None
    end_us: int | None

    def of(self, events: Events) -> Events:
        """Return the events within."""
        found = {kind: table.filter(self._expression()) for kind, table in events.items()} if any(self) else events
        return {kind: table for kind, table in found.items() if table.num_rows}

    def _expression(self) -> Expression:
        limits = []
        if self.begin_us is not None:
            limits.append(pc.field("mono_us") >= self.begin_us)
        if self.end_us is not None:
            limits.append(pc.field("mono_us") < self.end_us)
        return limits[0] & limits[1] if len(limits) > 1 else limits[0]

    def expression(self) -> Expression | None:
        """Return the condition on a time; None without limits."""
        return None if self == (None, None) else self._expression()


class StoredEvents:
    """The events in folders that `ingest.write_events` wrote."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """Nothing is read yet."""
        self.folders = folders

    @property
    def kinds(self) -> list[str]:
        """The kinds of these events."""
        return sorted(stored_kinds(*self.folders))

    def by_run(self) -> dict[str, Events]:
        """Return all events by run, those of every kind."""
        runs: dict[str, Events] = defaultdict(dict)
        for kind in self.kinds:
            for run, lines in _by_run(self._read(kind, None)).items():
                runs[run][kind] = lines
        return runs

    def of(self, run: str, span: Span, kinds: Sequence[str] = TIMED, where: Expression | None = None) -> Events:
        """Return the events of a run within a span."""
        limit = span.expression()
        wanted = pc.field("run") == run
        for each in (limit, where):
            wanted = wanted if each is None else wanted & each
        found = {kind: self._read(kind, wanted) for kind in self.kinds if kind in kinds}
        return {kind: table for kind, table in found.items() if table.num_rows}

    def times(self, run: str, since_us: int | None = None) -> npt.NDArray[np.int64]:
        """Return the times of a run's events."""
        limit, of_run = Span(since_us, None).expression(), pc.field("run") == run
        of_run = of_run if limit is None else of_run & limit
        found = [self._files(kind).to_table(["mono_us"], of_run)["mono_us"] for kind in self.kinds if kind in TIMED]
        return np.concatenate([np.zeros(0, np.int64), *(each.to_numpy() for each in found)])

    def portions(self, run: str, *also: str, where: Expression | None = None) -> Iterator[tuple[str, pa.Table]]:
        """Iterate over all lines of a run, portion by portion, each of a kind, with the columns of `Places.add`.

        `also`: more columns.
        """
        of_run = pc.field("run") == run
        wanted = of_run if where is None else of_run & where
        for kind in self.kinds:
            names = dict.fromkeys([*places.COLUMNS, *(["flaw", "text"] if kind == REJECTED else []), *also])
            columns: Any = {name: ALL[name] for name in names}
            for lines in self._files(kind).to_batches(columns=columns, filter=wanted):
                if lines.num_rows:
                    yield kind, pa.Table.from_batches([lines])

    def lines(self, run: str, kinds: Sequence[str] | None = None, where: Expression | None = None) -> Events:
        """Return the lines of a run, with ALL columns."""
        of_run = pc.field("run") == run
        wanted = of_run if where is None else of_run & where
        names = [kind for kind in self.kinds if kinds is None or kind in kinds]
        found = {kind: self._files(kind).to_table(columns=ALL, filter=wanted) for kind in names}
        return {kind: table for kind, table in found.items() if table.num_rows}

    def _read(self, kind: str, where: Expression | None) -> pa.Table:
        columns: dict[str, Expression] = {name: pc.field(name) for name in ("run", *_OF_BULK)}
        if kind == REJECTED:
            columns |= {name: pc.field(name) for name in ("flaw", "text")}
        elif kind in KINDS or kind in TOLD:
            names = COMMON.names
            columns |= {name: pc.field(name) if name in names else pc.field("rest", name) for name in _OF_OTHERS}
        return self._files(kind).to_table(columns=columns, filter=where)

    def _files(self, kind: str) -> dataset.Dataset:
        paths = [path for folder in self.folders for path in sorted((folder / f"kind={kind}").glob("*.parquet"))]
        # with a schema, because files of an earlier version have fewer keys
        return dataset.dataset([str(path) for path in paths], format="parquet", schema=EVENT_COLUMNS)


class StoredTable:
    """The rows of a run in folders of a table."""

    def __init__(self, folders: Callable[[], Sequence[Path]]) -> None:
        """Nothing is read yet."""
        self._folders = folders

    def pieces(self, where: Expression) -> Iterator[pa.RecordBatch]:
        """Iterate over some rows, few at once: a run of days has millions."""
        paths = [str(path) for folder in self._folders() for path in sorted(folder.glob("*.parquet"))]
        if paths:
            found = dataset.dataset(paths, format="parquet")
            yield from found.to_batches(filter=where, batch_size=ROWS_AT_ONCE, batch_readahead=1, fragment_readahead=1)

    def rows(self, where: Expression) -> Iterator[dict[str, Any]]:
        """Iterate over some rows."""
        for lines in self.pieces(where):
            yield from lines.to_pylist()


def joined(one: Events, other: Events) -> Events:
    """Return the events of both."""
    found = dict(one)
    for kind, table in other.items():
        found[kind] = pa.concat_tables([found[kind], table]) if kind in found else table
    return found


def rows(events: Events, kinds: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Iterate over events of some kinds, each with its `kind`."""
    for kind in kinds:
        for row in events[kind].to_pylist() if kind in events else []:
            row["kind"] = kind
            yield row


def values(events: Events, kind: str, *names: str) -> Iterator[tuple[Any, ...]]:
    """Iterate over some values of each event of a kind."""
    columns = (events[kind][name].to_pylist() for name in names) if kind in events else ()
    return zip(*columns, strict=True)


def ordered(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return events in their order."""
    return sorted(events, key=lambda event: [event[name] for name in ORDER])


def _by_run(lines: pa.Table) -> dict[str, pa.Table]:
    numbers: dict[str, list[int]] = defaultdict(list)
    for number, run in enumerate(lines["run"].to_pylist()):
        numbers[str(run)].append(number)
    if len(numbers) == 1:
        return dict.fromkeys(numbers, lines)
    return {run: lines.take(pa.array(of_run, pa.int64())) for run, of_run in numbers.items()}
