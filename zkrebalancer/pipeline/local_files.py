"""Stores the events of files that every executor can open: its tasks read them, and write Parquet, without Spark.

Each task reads pieces of files, about as many bytes as the others. Its files count only once the driver has moved
them, so a task may be repeated. On a local master, threads of this process do the first tasks while Spark's JVM starts,
which leaves cores idle; nearly all of a task is Arrow's work, during which other threads go on.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere
from pyspark.sql.pandas.types import to_arrow_schema

from zkrebalancer.pipeline import arrow_lines, ingest
from zkrebalancer.pipeline.arrow_lines import UNCLEAR
from zkrebalancer.pipeline.schema import PLACE, STORED

MIN_TASK_BYTES = 4 * 1024 * 1024
MAX_TASK_BYTES = 128 * 1024 * 1024
CHUNK_BYTES = 8 * 1024 * 1024
GROUP_BYTES = 32 * 1024 * 1024  # in memory, of one kind, before they are written
AHEAD_BYTES = 256 * 1024 * 1024  # more than two cores read while a JVM starts
MAX_THREADS = 4  # more would wait for each other's Python
_LINES = "run string, file string, block bigint, row bigint, text binary"
_TEXTS = pa.schema([*[field for field in to_arrow_schema(PLACE) if field.name != "row"], *arrow_lines.TEXTS])
# of a file, whose folder names the kind
EVENT_COLUMNS = pa.schema([field for field in to_arrow_schema(STORED) if field.name != "kind"])


class Source(NamedTuple):
    """A folder of event files; the names of its files and runs begin with `prefix`."""

    folder: str
    prefix: str = ""


class EventFile(NamedTuple):
    """An event file and its size in bytes."""

    path: str
    run: str
    name: str
    size: int


class Piece(NamedTuple):
    """The lines of a file that begin at bytes [begin, end)."""

    file: EventFile
    begin: int
    end: int


class ReadAhead:
    """The first tasks of files, which threads of this process begin when it is entered.

    `folder`: that of the events, as for `store_events`. `cores`: those of the local master.
    """

    def __init__(self, files: Sequence[EventFile], folder: Path, cores: int) -> None:
        """Nothing is read yet."""
        self._scratch = _scratch(folder)
        self._is_over = threading.Event()
        self._threads = ThreadPoolExecutor(min(cores, MAX_THREADS))
        self._written: list[Future[list[tuple[str, str]]]] = []
        tasks = divided(files, cores)
        sizes = accumulate(sum(piece.end - piece.begin for piece in task) for task in tasks)
        self._tasks = [task for task, size in zip(tasks, sizes, strict=True) if size <= AHEAD_BYTES]
        self.left = tasks[len(self._tasks) :]  # for Spark

    def __enter__(self) -> Self:
        write = partial(_write, str(self._scratch), is_over=self._is_over)
        self._written = [self._threads.submit(lambda task: list(write(task)), task) for task in self._tasks]
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()  # a thread then ends after at most one chunk
        self._threads.shutdown(cancel_futures=True)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def written(self) -> list[tuple[str, str]]:
        """Wait for the threads; return (kind, file) of what they have written.

        Raises:
            OSError: a file cannot be read, or not be written.

        """
        return [each for written in self._written for each in written.result()]


def store_events(spark: SparkSession, files: Iterable[EventFile], folder: Path, ahead: ReadAhead | None = None) -> None:
    """Do what `ingest.write_events` does with all lines of the files, some of which `ahead` may read."""
    tasks = divided(files, spark.sparkContext.defaultParallelism) if ahead is None else ahead.left
    scratch = _scratch(folder)
    try:
        write = partial(_write, str(scratch))
        written = spark.sparkContext.parallelize(tasks, len(tasks)).flatMap(write).collect() if tasks else []
        if ahead is not None:
            written += ahead.written()
        shutil.rmtree(folder, ignore_errors=True)
        if unclear := [path for kind, path in written if kind == UNCLEAR]:
            lines = spark.read.schema(_LINES).parquet(*map(ingest.literal, unclear))
            lines = lines.withColumn("text", F.col("text").cast("string"))
            ingest.write_events(ingest.parse(lines), str(folder))
        folder.mkdir(parents=True, exist_ok=True)
        for kind, path in written:
            if kind != UNCLEAR:
                (folder / f"kind={kind}").mkdir(exist_ok=True)
                Path(path).rename(folder / f"kind={kind}" / Path(path).name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)  # also of tasks that were repeated


def _scratch(folder: Path) -> Path:
    return folder.with_name(f"_{folder.name}-{uuid.uuid4().hex}")


def event_files(source: Source) -> list[EventFile]:
    """Return the event files below a folder, without those that Spark takes for hidden.

    Raises:
        NoEventsError: there is none.

    """
    root = Path(source.folder).absolute()
    found = []
    for folder, folders, names in os.walk(root, followlinks=True):
        folders[:] = sorted(name for name in folders if not _is_hidden(name))
        for name in sorted(names):
            if name.endswith(".jsonl") and not _is_hidden(name):
                path = Path(folder, name)
                below = path.relative_to(root).as_posix()
                place = (f"{source.prefix}{run_of(below)}", f"{source.prefix}{below}")
                with suppress(FileNotFoundError):  # its process has deleted it as its oldest one, or it is a dead link
                    found.append(EventFile(str(path), *place, path.stat().st_size))
    if not found:
        raise ingest.no_event_file(root)
    return found


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def run_of(file: str) -> str:
    """Return what `ingest.run_of` does."""
    return re.sub(ingest.IN_RUN, "", re.sub(ingest.OF_TOP_FOLDER, ".", file))


def divided(files: Iterable[EventFile], cores: int) -> list[list[Piece]]:
    """Divide files into tasks of about equally many bytes."""
    files = [file for file in files if file.size]
    total = sum(file.size for file in files)
    most = max(MIN_TASK_BYTES, min(MAX_TASK_BYTES, -(-total // cores)))
    tasks: list[list[Piece]] = []
    room = 0
    for file in files:
        begin = 0
        while begin < file.size:
            if not room:
                tasks.append([])
                room = most
            end = min(file.size, begin + room)
            tasks[-1].append(Piece(file, begin, end))
            room -= end - begin
            begin = end
    return tasks


def chunks(piece: Piece, size: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Iterate over the lines of a piece, many at a time; only the last line of a file may be incomplete."""
    with Path(piece.file.path).open("rb") as file:
        file.seek(max(0, piece.begin - 1))
        if piece.begin:
            file.readline()  # the rest of a line that began before
        while file.tell() < piece.end:
            lines = file.read(min(size, piece.end - file.tell()))
            if not lines:
                return  # the file has become shorter
            yield lines if lines.endswith(b"\n") else lines + file.readline()


def _write(folder: str, task: list[Piece], is_over: threading.Event | None = None) -> Iterator[tuple[str, str]]:
    """Write the events of pieces into new files below a folder; iterate over (kind, file).

    `is_over`: whether nobody wants them any longer.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    attempt = uuid.uuid4().hex
    with ExitStack() as stack:
        writers: dict[str, _Writer] = {}
        for piece in task:
            row = 0
            for lines in chunks(piece):
                if is_over is not None and is_over.is_set():
                    return
                for kind, rows in arrow_lines.read(lines, row):
                    if kind not in writers:
                        path = str(Path(folder, f"{kind or 'lines'}-{attempt}.parquet"))
                        writers[kind] = stack.enter_context(_Writer(path, is_text=kind == UNCLEAR))
                    writers[kind].add(piece, rows)
                row += lines.count(b"\n")
    yield from ((kind, writer.path) for kind, writer in writers.items())


class _Writer:
    """Writes rows of pieces into one file, many at a time."""

    def __init__(self, path: str, *, is_text: bool) -> None:
        self.path = path
        self._schema = _TEXTS if is_text else EVENT_COLUMNS
        names: Any = _repeating(self._schema)  # the stubs know no list
        self._file = pq.ParquetWriter(path, self._schema, use_dictionary=names, store_schema=False)
        self._waiting: list[pa.Table] = []
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._file:
            self._flush()

    def add(self, piece: Piece, rows: pa.Table) -> None:
        """Write rows of a piece, which have no place yet."""
        place = {"run": piece.file.run, "file": piece.file.name, "block": piece.begin}
        columns = [
            pa.repeat(pa.scalar(place[field.name], field.type), len(rows))
            if field.name in place
            else rows.column(field.name)
            for field in self._schema
        ]
        self._waiting.append(pa.table(columns, schema=self._schema))
        self._size += rows.nbytes
        if self._size > GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._file.write_table(pa.concat_tables(self._waiting))
        self._waiting, self._size = [], 0


def _repeating(schema: pa.Schema) -> list[str]:
    """Return the columns of a Parquet file whose values repeat, so that a dictionary saves space."""
    return [name for field in schema for name in _leaves(field.name, field.type) if name not in ingest.DISTINCT]


def _leaves(name: str, kind: pa.DataType) -> Iterator[str]:
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves(f"{name}.{field.name}", field.type)
    elif pa.types.is_list(kind):
        yield f"{name}.list.element"
    else:
        yield name
