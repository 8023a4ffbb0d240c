"""Finds earlier deliveries again when their records are delivered once more: only then, they need to be looked at."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zkrebalancer.observe.ranges import RangeSet
from zkrebalancer.pipeline.continued.records import (
    STRETCHES,
    BookKey,
    Delivered,
    NotContinuableError,
    Rows,
    Stretch,
    doubtful,
)
from zkrebalancer.pipeline.continued.stored import Span, StoredEvents, StoredTable
from zkrebalancer.pipeline.facts.fates import DOUBTFUL
from zkrebalancer.pipeline.facts.of_partition import SUSPECTS

_BOOK = {"group": pa.string(), "topic": pa.string(), "partition": pa.int32(), "era": pa.int32()}
_PLACE = ("bucket", "partition", "started_us", "topic", "group", "member", "run", "era")


def look_back(
    run: str,
    events: StoredEvents,
    tables: Callable[[str], StoredTable],
    back: dict[BookKey, RangeSet],
) -> Rows:
    """Return the rows of suspect stretches, and of their deliveries, that became so now.

    `tables`: the settled rows, each of which is read once, for all books. `back`: the records delivered again.
    """
    found: Rows = defaultdict(list)
    of_books = _is_of(back)
    ends = [end for ranges in back.values() for pair in ranges for end in pair]
    is_back = of_books & (pc.field("begin") < max(ends)) & (pc.field("end") > min(ends))
    known = {(_book(row), _name(row)) for row in tables(SUSPECTS).rows(of_books)}
    may_be = _near(back)
    pieces = tables(STRETCHES).pieces(is_back)
    for row in (row for lines in pieces for row in lines.filter(pa.array(may_be(lines))).to_pylist()):
        book = _book(row)
        ranges = back.get(book)
        if ranges is not None and ranges.common(row["begin"], row["end"]) and (book, _name(row)) not in known:
            times = (_at(row["began"]), _at(row["last"]))
            found[SUSPECTS].append((*(row[name] for name in _PLACE), *times))
            stretch = Stretch(book, row["member"], row["started_us"], row["position"], row["bucket"], None, [])
            stretch.items += _deliveries(run, events, row)
            found[DOUBTFUL] += (doubtful(run, stretch, each) for each in stretch.items)
    return found


def _is_of(books: Collection[BookKey]) -> pc.Expression:
    """Return a condition that rows of these books meet, and few others: one for each book would cost each row more."""
    group, topic, partition, era = (
        pc.field(name).isin(pa.array(list({book[place] for book in books}), kind))
        for place, (name, kind) in enumerate(_BOOK.items())
    )
    return group & topic & partition & era


def _near(back: dict[BookKey, RangeSet]) -> Callable[[pa.RecordBatch], npt.NDArray[np.bool_]]:
    """Return a filter for rows that may be about offsets delivered again, by their partitions' numbers.

    To make Python's objects of a row takes far longer, and partitions may be far from each other in offsets.
    """
    spans: dict[int, tuple[int, int]] = {}
    for (_group, _topic, partition, _era), ranges in back.items():
        for begin, end in ranges:
            first, last = spans.get(partition, (begin, end))
            spans[partition] = min(first, begin), max(last, end)
    numbers = np.array(sorted(spans))
    begins, ends = np.array([spans[number] for number in numbers]).T

    def near(lines: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        begin, end, partition = (lines[name].to_numpy() for name in ("begin", "end", "partition"))
        at = np.searchsorted(numbers, partition)
        found: npt.NDArray[np.bool_] = (begin < ends[at]) & (end > begins[at])
        return found

    return near


def _book(row: dict[str, Any]) -> BookKey:
    return row["group"], row["topic"], row["partition"], row["era"]


def _name(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["member"], row["started_us"], *_at(row["began"])


def _at(place: dict[str, int]) -> tuple[int, int, int]:
    return place["mono_us"], place["block"], place["row"]


def _deliveries(run: str, events: StoredEvents, stretch: dict[str, Any]) -> Iterator[Delivered]:
    """Iterate over the deliveries of a stretch: each begins where the one before it ended."""
    names = ("group", "topic", "partition", "member")
    first, second, third, fourth = (pc.field(name) == stretch[name] for name in names)
    span = Span(stretch["began"]["mono_us"], stretch["last"]["mono_us"] + 1)
    table = events.of(run, span, ["delivered"], first & second & third & fourth).get("delivered")
    rows = [] if table is None else sorted(table.to_pylist(), key=_at)
    offset, count = stretch["begin"], 0
    for row in rows:
        if _at(stretch["began"]) <= _at(row) <= _at(stretch["last"]) and row["first_offset"] == offset:
            key = (row["group"], row["topic"], row["partition"])
            offset, count = row["last_offset"] + 1, count + 1
            yield Delivered(*_at(row), key, row["member"], row["first_offset"], offset)
    if (offset, count) != (stretch["end"], stretch["events"]):
        raise NotContinuableError("deliveries of a stretch cannot be told from others")
