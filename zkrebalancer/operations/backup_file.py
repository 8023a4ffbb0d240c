"""The file of a backup: JSON lines, the last of which proves that it is complete. Read and written line by line.

The first line names the format, each further one a node, parents before children; the last one has the number of nodes
and the SHA-256 of all lines before it.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from zkrebalancer.protocol import paths
from zkrebalancer.protocol.errors import RebalancerError

FORMAT = "zkrebalancer_backup"
VERSION = 1
FIRST_NODE_LINE = 2
_REFUSED = re.compile("[\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")  # in paths, as ZooKeeper does
MAX_LINE_BYTES = 4_000_000  # a node of 1 MB, in base64


class BackupFileError(RebalancerError):
    """The file is not a backup, or not a whole one."""


class Node(NamedTuple):
    """A persistent node."""

    path: str
    content: bytes


def require_new(file: Path) -> None:
    """Raise FileExistsError if there is such a file, FileNotFoundError if there is no folder for it."""
    if file.exists():
        raise FileExistsError(f"{file} exists")
    if not file.absolute().parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))


def write(file: Path, nodes: Iterable[Node], now_ms: int) -> int:
    """Write a new file, which appears only when it is complete; return the number of nodes.

    Raises:
        FileExistsError: there is such a file.
        OSError: it cannot be written.

    """
    require_new(file)
    partial = file.with_name(f".{file.name}.{secrets.token_hex(4)}")  # processes in containers have the same id
    count, digest = 0, hashlib.sha256()
    descriptor = _create(partial, file)
    try:
        with os.fdopen(descriptor, "wb") as out:

            def put(document: dict[str, Any]) -> None:
                line = json.dumps(document, separators=(",", ":")).encode() + b"\n"
                digest.update(line)
                out.write(line)

            put({FORMAT: VERSION, "taken_at_ms": now_ms})
            for node in nodes:
                put({"path": node.path, "content": base64.b64encode(node.content).decode()})
                count += 1
            put({"nodes": count, "sha256": digest.hexdigest()})
            out.flush()
            os.fsync(out.fileno())
        _publish(partial, file)
    finally:
        partial.unlink(missing_ok=True)
    return count


def _create(partial: Path, file: Path) -> int:
    try:
        return os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from None


def _publish(partial: Path, file: Path) -> None:
    """Give the complete file its name; unlike a renaming alone, this replaces nothing."""
    try:
        os.link(partial, file)
    except FileExistsError:
        raise FileExistsError(f"{file} exists") from None
    except OSError:  # the file system has no such links, like FAT and some shares
        os.close(_create(file, file))  # a kill just then leaves an empty file, which no restore takes for a backup
        try:
            partial.replace(file)
        except OSError:
            file.unlink(missing_ok=True)  # still the empty one
            raise


def check(file: Path, is_left_out: Callable[[str], bool] = lambda _path: False) -> int:
    """Read a whole file and return its number of nodes; raises BackupFileError, OSError.

    A person may have edited it: each node must occur once, and after its parent, except those that are left out.
    """
    if file.exists() and not file.is_file():
        raise BackupFileError(f"{file}: is not a regular file, so it cannot be read several times")
    known: set[str] = set()
    fault = None
    for number, node in enumerate(read(file), start=FIRST_NODE_LINE):
        above = node.path.rpartition("/")[0]
        if node.path in known:
            fault = fault or (number, f"{node.path} comes twice")
        elif above not in known and node.path != paths.CONSUMERS and not is_left_out(node.path):
            fault = fault or (number, f"{node.path} does not come after {above}")
        known.add(node.path)
    if fault is not None:
        raise BackupFileError(f"{file}: line {fault[0]}: {fault[1]}")
    return len(known)


def taken_at_ms(file: Path) -> int:
    """Return when a backup was made, 0 if it does not say so; raises BackupFileError, OSError."""
    with file.open("rb") as lines:
        found = _document(file, 1, lines.readline(MAX_LINE_BYTES)).get("taken_at_ms")
    return found if isinstance(found, int) else 0


def read(file: Path) -> Iterator[Node]:
    """Yield the nodes; raises BackupFileError, OSError."""
    digest, count, end = hashlib.sha256(), 0, None
    with file.open("rb") as lines:
        for number, line in enumerate(iter(lambda: lines.readline(MAX_LINE_BYTES), b""), start=1):
            document = _document(file, number, line)
            if number == 1:
                _require(document.get(FORMAT) == VERSION, file, number, "it is not a backup of this version")
            elif end is not None:
                _require(is_so=False, file=file, number=number, fault="there is data after the end")
            elif "path" in document:
                count += 1
                yield _node(file, number, document)
            else:
                end = document
                known = {"nodes": count, "sha256": digest.hexdigest()}
                _require(document == known, file, number, "the file is damaged")
            digest.update(line)
    _require(end is not None, file, count + 2, "the end is missing")


def _document(file: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise BackupFileError(f"{file}: line {number} is not JSON")
    return document


def _node(file: Path, number: int, document: dict[str, Any]) -> Node:
    path, content = document.get("path"), document.get("content")
    if isinstance(path, str) and isinstance(content, str) and _is_path(path):
        try:
            return Node(path, base64.b64decode(content, validate=True))
        except ValueError:  # also for characters beyond ASCII
            pass
    raise BackupFileError(f"{file}: line {number} is not a node below {paths.CONSUMERS}")


def _is_path(path: str) -> bool:
    """Whether ZooKeeper accepts the path, and it belongs to the tree."""
    is_below = (path + "/").startswith(paths.CONSUMERS + "/")
    return is_below and not _REFUSED.search(path) and {"", ".", ".."}.isdisjoint(path[1:].split("/"))


def _require(is_so: bool, file: Path, number: int, fault: str) -> None:
    if not is_so:
        raise BackupFileError(f"{file}: line {number}: {fault}")
