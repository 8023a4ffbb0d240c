"""Lines of event files as rows of `schema.STORED`, made by Arrow: in a quarter of the time that Spark needs for them.

Arrow reads only lines that are plainly valid: whole JSON objects, every value of its key's type, nothing missing.
Whatever else there is, `ingest.parse` judges. So what is rejected, and why, is defined once.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pyspark.sql.pandas.types import to_arrow_schema

from zkrebalancer.observe.reading import MAX_NUMBER
from zkrebalancer.pipeline.schema import BULK, COMMON, NEEDED, OTHER, REST, STORED

Column = Any  # of Arrow, in one piece or several

UNCLEAR = ""  # in place of a kind: lines for `ingest.parse`
FEW_LINES = 64  # are all unclear if one is
MAX_DEPTH = 1_000  # of objects and lists in each other, which Spark reads
_COMMON, _REST = to_arrow_schema(COMMON), to_arrow_schema(REST)
ROWS = pa.schema([field for field in to_arrow_schema(STORED) if field.name not in {"run", "file", "block", "kind"}])
_OF_TEXTS: list[tuple[str, pa.DataType]] = [("row", pa.int64()), ("text", pa.binary())]
TEXTS = pa.schema(_OF_TEXTS)


def read(lines: bytes, first: int) -> Iterator[tuple[str, pa.Table]]:
    """Iterate over (kind, ROWS) of whole lines, and (UNCLEAR, TEXTS); `first` is the number of the first line."""
    if not lines.endswith(b"\n"):
        lines += b"\n"
    found = _clear(lines, first)
    if found is not None:
        yield from found
        return
    count, half = lines.count(b"\n"), len(lines) // 2
    cut: int = (lines.rfind(b"\n", 0, half) + 1) or (lines.find(b"\n", half) + 1)
    if count <= FEW_LINES or cut == len(lines):
        yield UNCLEAR, pa.table([_numbers(first, count), _texts(lines)], schema=TEXTS)
        return
    yield from read(lines[:cut], first)
    yield from read(lines[cut:], first + lines.count(b"\n", 0, cut))


def _clear(lines: bytes, first: int) -> list[tuple[str, pa.Table]] | None:
    """Return the rows of lines by kind; None if a line may be invalid."""
    common = _parsed(lines, _COMMON) if _are_objects(lines) else None
    if common is None or not _is_valid(common, ("kind", "mono_us")):
        return None
    kinds = common.column("kind")
    kinds = pc.if_else(pc.is_in(kinds, pa.array(list(NEEDED))), kinds, OTHER)
    numbered = common.append_column("row", _numbers(first, len(common)))
    texts = None
    found = []
    for kind in pc.unique(kinds).to_pylist():
        is_of_kind = pc.equal(kinds, kind)
        rows = numbered.filter(is_of_kind)
        rest = None
        if kind not in BULK:
            texts = _texts(lines) if texts is None else texts
            own = texts.filter(is_of_kind)
            rest = _parsed(b"".join(text + b"\n" for text in own.to_pylist()), _REST)
            if rest is None:
                return None
            if kind == OTHER:
                rows = rows.append_column("text", own.cast(pa.string()))
        if not _is_valid(rows, NEEDED.get(kind, ()), rest):
            return None
        found.append((kind, _stored(rows, rest)))
    return found


def _are_objects(lines: bytes) -> bool:
    """Return whether each line begins and ends like an object, in UTF-8, and none can be too deep for Spark."""
    count = lines.count(b"\n")
    if not lines.startswith(b"{") or not lines.endswith(b"}\n") or lines.count(b"}\n{") != count - 1:
        return False
    if not lines.isascii():
        try:
            lines.decode()
        except UnicodeDecodeError:
            return False
    ends = np.flatnonzero(np.frombuffer(lines, np.uint8) == ord("\n"))
    begins = np.concatenate([[0], ends[:-1] + 1])
    long = np.flatnonzero(ends - begins >= 2 * MAX_DEPTH).tolist()
    return all(
        lines.count(b"{", begins[each], ends[each]) + lines.count(b"[", begins[each], ends[each]) < MAX_DEPTH
        for each in long
    )


def _parsed(lines: bytes, schema: pa.Schema) -> pa.Table | None:
    """Return the columns of lines; None if Arrow refuses a line, or does not find one object in each."""
    whole = pj.ReadOptions(use_threads=False, block_size=len(lines) + 1)
    options = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    try:
        found = pj.read_json(io.BytesIO(lines), read_options=whole, parse_options=options)
    except pa.ArrowInvalid:
        return None
    return found if len(found) == lines.count(b"\n") else None


def _is_valid(rows: pa.Table, needed: Collection[str], rest: pa.Table | None = None) -> bool:
    """Return whether no row lacks a needed key, and numbers are as `schema.flaw` wants them."""
    columns: dict[str, Any] = {
        key: rows.column(key) if rest is None or key in _COMMON.names else rest.column(key) for key in needed
    }
    if any(column.null_count for column in columns.values()):
        return False
    if "mono_us" in columns and not _is_within(columns["mono_us"], -MAX_NUMBER, MAX_NUMBER):
        return False
    if "first_offset" in columns:
        lengths = pc.subtract(columns["last_offset"], columns["first_offset"])
        if not _is_within(columns["first_offset"], 0, MAX_NUMBER) or not _is_within(lengths, 0, MAX_NUMBER):
            return False
        return _is_within(columns["last_offset"], 0, MAX_NUMBER)
    if "positions" in columns:
        lists = (columns["partitions"], columns["positions"])
        lengths = [pc.list_value_length(each) for each in lists]
        has_hole = any(pc.list_flatten(each).null_count for each in lists)
        return not has_hole and bool(pc.all(pc.equal(*lengths), min_count=0).as_py())
    return True


def _is_within(column: Column, least: int, most: int) -> bool:
    found: Any = pc.min_max(column).as_py()
    return found["min"] is None or bool(found["min"] >= least and found["max"] <= most)


def _stored(rows: pa.Table, rest: pa.Table | None) -> pa.Table:
    """Return valid rows with the columns of ROWS."""
    columns: dict[str, Column] = {name: rows.column(name) for name in rows.column_names}
    if rest is not None:
        arrays = [column.combine_chunks() for column in rest.columns]
        columns["rest"] = pa.StructArray.from_arrays(arrays, fields=list(_REST))
    return pa.table([columns.get(field.name, pa.nulls(len(rows), field.type)) for field in ROWS], schema=ROWS)


def _numbers(first: int, count: int) -> Column:
    return pa.array(np.arange(first, first + count))


def _texts(lines: bytes) -> Column:
    return pa.array(lines[:-1].split(b"\n"), pa.binary())
