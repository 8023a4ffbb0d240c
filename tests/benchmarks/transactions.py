"""Counts ZooKeeper's transactions in its own transaction log.

The log has a header of 16 bytes, then records: checksum (8 bytes), length (4), transaction, end byte. A transaction
starts with session (8), client's number (4), zxid (8), time (8) and type (4). A multi (type 14) has a count (4) and,
for each operation, its type (4), length (4) and bytes. Source: ZooKeeper's jute definitions, `zookeeper.jute`.
"""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path

NAMES = {
    1: "create",
    2: "delete",
    5: "set",
    13: "check",
    14: "multi",
    -10: "session opened",
    -11: "session closed",
    -1: "error",
}
CHECK = 13
MULTI = 14


def count_transactions(data_directory: Path, after_zxid: int, to_zxid: int) -> Counter[str]:
    """Return the number of logged transactions by kind.

    Lease renewals (a multi with checks only) and periodic commits (a multi with offsets only) are counted apart,
    because they happen with or without a rebalance.
    """
    counts: Counter[str] = Counter()
    for log in sorted(data_directory.glob("zookeeper*/version-2/log.*")):
        for zxid, kind in _read(log.read_bytes()):
            if after_zxid < zxid <= to_zxid:
                counts[kind] += 1
    return counts


def _read(content: bytes) -> list[tuple[int, str]]:
    found = []
    position = 16
    while position + 12 <= len(content):
        (length,) = struct.unpack_from(">i", content, position + 8)
        if length <= 0:
            break
        begin = position + 12
        _session, _number, zxid, _time, kind = struct.unpack_from(">qiqqi", content, begin)
        found.append((zxid, _kind(content, begin + 32, kind)))
        position = begin + length + 1
    return found


def _kind(content: bytes, position: int, kind: int) -> str:
    if kind != MULTI:
        return NAMES.get(kind, f"type {kind}")
    (count,) = struct.unpack_from(">i", content, position)
    position += 4
    operations = []
    for _ in range(count):
        operation, length = struct.unpack_from(">ii", content, position)
        operations.append((operation, content[position + 8 : position + 8 + max(length, 0)]))
        position += 8 + max(length, 0)
    changes = [data for operation, data in operations if operation != CHECK]
    if not changes:
        return "lease renewal"
    return "periodic commit" if all(b"/offsets/" in data for data in changes) else "multi"
