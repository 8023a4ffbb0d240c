"""A file of offsets, one line for each partition: CSV, as Kafka's own tool exports it, or JSON. Pure.

CSV has the columns topic, partition, offset; a first line that names them is optional. JSON is
`{"version": 1, "group": "payments", "offsets": [{"topic": "orders", "partition": 0, "offset": 17}, …]}`.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping

from zkrebalancer.protocol import fields
from zkrebalancer.protocol.cluster_nodes import MAX_COUNTER
from zkrebalancer.protocol.errors import NodeContentError, RebalancerError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.numbers import decimal

VERSION = 1
COLUMNS = ("topic", "partition", "offset")
MAX_FILE_BYTES = 100_000_000  # two million partitions


class OffsetFileError(RebalancerError):
    """The file is not a list of offsets."""


def to_csv(offsets: Mapping[TopicPartition, int]) -> str:
    """Return the offsets, sorted, with a line that names the columns."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows((*partition, offset) for partition, offset in sorted(offsets.items()))
    return text.getvalue()


def to_json(group: str, offsets: Mapping[TopicPartition, int]) -> str:
    """Return the offsets, sorted, as one document."""
    rows = [dict(zip(COLUMNS, (*partition, offset), strict=True)) for partition, offset in sorted(offsets.items())]
    return json.dumps({"version": VERSION, "group": group, "offsets": rows}) + "\n"


def read(text: str) -> dict[TopicPartition, int]:
    """Return the offsets in a file of either kind.

    Raises:
        OffsetFileError: it is neither, is of a newer version, or names a partition twice; says where.

    """
    text = text.removeprefix("\ufeff")  # the mark that spreadsheets put before UTF-8
    rows = _json_rows(text) if text.lstrip().startswith("{") else _csv_rows(text)
    found: dict[TopicPartition, int] = {}
    for where, row in rows:
        partition, offset = _checked(where, row)
        if partition in found:
            raise OffsetFileError(f"{where}: partition {partition[0]}/{partition[1]} is named twice")
        found[partition] = offset
    return found


def _csv_rows(text: str) -> Iterable[tuple[str, list[str]]]:
    reader = csv.reader(io.StringIO(text))
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if any(cells) and not (reader.line_num == 1 and tuple(cells) == COLUMNS):
                yield f"line {reader.line_num}", cells
    except csv.Error as error:
        raise OffsetFileError(f"line {reader.line_num}: {error}") from None


def _json_rows(text: str) -> Iterable[tuple[str, list[str]]]:
    try:
        document = fields.read_document("offsets", text.encode(), MAX_FILE_BYTES)
        fields.require_version("offsets", document, VERSION)
        rows = document.get("offsets")
        if not isinstance(rows, list):
            raise OffsetFileError("offsets must be a list")
        for number, row in enumerate(rows):
            if not isinstance(row, dict):
                raise OffsetFileError(f"offset {number}: {row!r:.80} is not an object")
            yield f"offset {number}", [str(row.get(key, "")) for key in COLUMNS]
    except NodeContentError as error:
        raise OffsetFileError(str(error)) from None


def _checked(where: str, row: list[str]) -> tuple[TopicPartition, int]:
    if len(row) != len(COLUMNS):
        raise OffsetFileError(f"{where}: {len(row)} values; topic, partition and offset are expected")
    try:
        topic = fields.topic_name("topic", row[0])
    except NodeContentError as error:
        raise OffsetFileError(f"{where}: {error}") from None
    partition, offset = decimal(row[1], fields.MAX_PARTITION), decimal(row[2], MAX_COUNTER)
    if partition is None or offset is None:
        wrong = f"partition {row[1]!r:.40}" if partition is None else f"offset {row[2]!r:.40}"
        raise OffsetFileError(f"{where}: {wrong} is not a number that Kafka allows")
    return (topic, partition), offset
