"""A streaming source for event files that are still growing: `format("event_files")`.

Spark's own file source reads a file once, when it appears. Here the offset holds the bytes and lines read of each file,
always whole lines, so each line is delivered exactly once however often the query is killed and restarted. A file
that was moved elsewhere has no more lines, also if they were planned.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from zkrebalancer.pipeline.backlog import parts_until_one_time
from zkrebalancer.protocol.errors import RebalancerError

MAX_BATCH_BYTES = 64 * 1024 * 1024
MAX_LINE_BYTES = 16 * 1024 * 1024
_CHUNK_BYTES = 1024 * 1024
_ONLY_APPENDED = "event files may only be appended to"
_log = logging.getLogger(__name__)
SCHEMA = "file string, row long, text string"
Offset = dict[str, dict[str, int]]  # path below the folder -> "bytes" and "lines" read so far
_NOTHING = {"bytes": 0, "lines": 0}


class EventFileError(RebalancerError):
    """An event file shrank, a line is too long, or the checkpoint belongs to another source."""


@dataclass(frozen=True)
class Part(InputPartition):
    """Bytes [begin, end) of a file, whole lines; `row` is the number of the first, counted from 1."""

    file: str
    begin: int
    end: int
    row: int


class EventFiles(DataSource):
    """The `*.jsonl` files below the folder in the option `path`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "event_files"

    def schema(self) -> str:
        """Return (file, row, text)."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802  # PySpark's signature
        """Return the reader."""
        return EventFileReader(Path(self.options["path"]))


class EventFileReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads ranges of bytes."""

    def __init__(self, folder: Path) -> None:
        """Store the folder."""
        self._folder = folder
        self._target: dict[str, int] | None = None

    def initialOffset(self) -> Offset:  # noqa: N802  # here and below PySpark's names
        """Return the beginning: no file is known."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the size limit of a batch."""
        return ReadMaxBytes(MAX_BATCH_BYTES)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Set the present sizes as the end of the query."""
        self._target = self._sizes()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return how far to read: about MAX_BATCH_BYTES or one longer line; everything if `limit` says so.

        Raises:
            EventFileError: a file shrank, `start` belongs to another source, or a line exceeds MAX_LINE_BYTES.

        """
        if not all("bytes" in taken for taken in start.values()):
            raise EventFileError(f"the checkpoint has offsets of another source: {start!r:.200}")
        end, unread = dict(start), self._unread(start)
        budget = None if isinstance(limit, ReadAllAvailable) else MAX_BATCH_BYTES
        shares: dict[str, int] = {}
        if budget is not None and sum(size - begin for begin, size in unread.values()) > budget:
            shares = parts_until_one_time(self._folder, unread, budget)
        for file, (begin, size) in unread.items():
            wanted = size - begin
            if budget is not None:
                wanted = min(wanted, shares.get(file, 0) if shares else budget)
            if wanted > 0:
                try:
                    length, lines = whole_lines(self._folder / file, begin, wanted, size)
                except FileNotFoundError:  # moved elsewhere since it was listed
                    continue
                end[file] = {"bytes": begin + length, "lines": start.get(file, _NOTHING)["lines"] + lines}
                budget = None if budget is None else max(0, budget - length)
        return end

    def _unread(self, start: Offset) -> dict[str, tuple[int, int]]:
        """Return where what is new of each file begins and ends; raises EventFileError if a file shrank."""
        found = {}
        for file, size in (self._sizes() if self._target is None else self._target).items():
            begin = start.get(file, _NOTHING)["bytes"]
            if size < begin:
                raise EventFileError(f"{self._folder / file} has become shorter; {_ONLY_APPENDED}")
            if size > begin:
                found[file] = (begin, size)
        return found

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return one part for each file that has grown; say once which of them are gone."""
        known = {file: start.get(file, _NOTHING) for file in end}
        parts = [
            Part(file, known[file]["bytes"], upto["bytes"], known[file]["lines"] + 1)
            for file, upto in sorted(end.items())
            if upto["bytes"] > known[file]["bytes"]
        ]
        is_here = {part.file: (self._folder / part.file).exists() for part in parts}
        if gone := [file for file in is_here if not is_here[file]]:
            self._tell_of(gone)
        return [part for part in parts if is_here[part.file]]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Iterate over Arrow batches of lines.

        Raises:
            EventFileError: the file no longer has these lines.

        """
        if not isinstance(partition, Part):
            raise TypeError(f"{partition} is not a part of an event file")
        path = self._folder / partition.file
        try:
            file = path.open("rb")
        except FileNotFoundError:  # since it was planned
            self._tell_of([partition.file])
            return
        left, row = partition.end - partition.begin, partition.row
        with file:
            file.seek(partition.begin)
            while left:
                lines = file.readlines(min(left, _CHUNK_BYTES))  # whole lines: the last one may exceed the limit
                lines = _up_to(lines, left)
                if not lines:
                    raise EventFileError(f"{path} has become shorter or was replaced; {_ONLY_APPENDED}")
                left -= sum(map(len, lines))
                texts = [line.removesuffix(b"\n").decode(errors="replace") for line in lines]
                files, rows = [partition.file] * len(texts), list(range(row, row + len(texts)))
                columns: dict[str, list[Any]] = {"file": files, "row": rows, "text": texts}
                yield pa.RecordBatch.from_pydict(columns)
                row += len(texts)

    def _tell_of(self, gone: Sequence[str]) -> None:
        text = "event files are gone before all their lines were read (%d, such as %s): the tables miss these lines"
        _log.warning(text, len(gone), self._folder / gone[0])

    def _sizes(self) -> dict[str, int]:
        return event_sizes(self._folder)


def event_sizes(root: Path) -> dict[str, int]:
    """Return the size of each event file below a folder, by its path there, sorted."""
    found: dict[str, int] = {}
    for folder, _folders, names in os.walk(root):
        below = folder[len(str(root)) :].lstrip("/")
        for name in names:
            if name.endswith(".jsonl"):
                with suppress(FileNotFoundError):  # moved elsewhere
                    size = os.stat(f"{folder}/{name}").st_size  # noqa: PTH116  # Paths take three times as long
                    found[f"{below}/{name}" if below else name] = size
    return dict(sorted(found.items()))


def whole_lines(path: Path, begin: int, wanted: int, size: int) -> tuple[int, int]:
    """Return the bytes and lines of the whole lines within `wanted` bytes from `begin` on; the first may be longer.

    Raises:
        EventFileError: a line exceeds MAX_LINE_BYTES.

    """
    read = length = lines = 0
    with path.open("rb") as file:
        file.seek(begin)
        while read < wanted or (not lines and read < min(size - begin, MAX_LINE_BYTES)):
            chunk = file.read(_CHUNK_BYTES if not lines and read >= wanted else min(_CHUNK_BYTES, wanted - read))
            if not chunk:
                break
            found = chunk.count(b"\n")
            if found:
                length, lines = read + chunk.rindex(b"\n") + 1, lines + found
            read += len(chunk)
    if not lines and read >= MAX_LINE_BYTES:
        raise EventFileError(f"{path} has a line of more than {MAX_LINE_BYTES} bytes at byte {begin}")
    return length, lines


def _up_to(lines: list[bytes], limit: int) -> list[bytes]:
    """Return the first lines that fit into `limit` bytes."""
    total = 0
    for number, line in enumerate(lines):
        total += len(line)
        if total > limit:
            return lines[:number]
    return lines
