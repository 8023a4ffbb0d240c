"""Who changed a group last, and when: `last_change` in the node of its settings, written in the same transaction.

It names the version that the node has after that transaction. A program that does not know it may keep it when it
writes settings; then the version differs, and nobody is named for what that program wrote.

A deletion leaves no settings. It is named in the mark of the served group, with the transaction that created the group.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from zkrebalancer.protocol import fields, settings
from zkrebalancer.protocol.errors import NodeContentError

KEY = "last_change"
MAX_WHO = 200  # characters
MAX_WHAT = 260
_WHAT = "group settings"


@dataclass(frozen=True, slots=True)
class LastChange:
    """What an operator has done. `by`: user and host, as the command found them; `at_ms`: by that host's clock."""

    by: str
    at_ms: int
    what: str


def printable(text: str, limit: int) -> str:
    """Return a text that fits into one line."""
    return "".join(character if character.isprintable() else "?" for character in text[:limit])


def noted(content: bytes, change: LastChange, version: int) -> bytes:
    """Add a change to a node's new content; `version`: of the node before this write. Raises NodeContentError."""
    return settings.changed(content, {KEY: {**asdict(change), "version": version + 1}})


def deletion(change: LastChange, created_zxid: int) -> bytes:
    """Return the content of a mark that names who deleted the group that was created by this transaction."""
    return json.dumps({KEY: {**asdict(change), "created_zxid": created_zxid}}).encode()


def read_deletion(content: bytes, created_zxid: int) -> LastChange | None:
    """Return who deleted the group that was created by this transaction, None if that is not known."""
    return _read(content, "created_zxid", created_zxid)


def read(content: bytes, version: int) -> LastChange | None:
    """Return who wrote this version of the node, None if that is not known."""
    return _read(content, "version", version)


def _read(content: bytes, key: str, expected: int) -> LastChange | None:
    if KEY.encode() not in content:
        return None
    try:
        found = fields.mapping(_WHAT, fields.read_document(_WHAT, content), KEY)
        return _decoded(found) if fields.integer(_WHAT, found, key) == expected else None
    except NodeContentError:
        return None  # it is only information, and other programs write settings, too


def _decoded(found: dict[str, Any]) -> LastChange:
    at_ms = fields.integer(_WHAT, found, "at_ms", maximum=fields.MAX_EPOCH_MS)
    by, what = fields.text(_WHAT, found, "by"), fields.text(_WHAT, found, "what")
    return LastChange(printable(by, MAX_WHO), at_ms, printable(what, MAX_WHAT))
