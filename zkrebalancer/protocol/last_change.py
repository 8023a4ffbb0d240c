"""Who changed a group last, and when: `last_change` in the node of its settings, written in the same transaction.

It names the version that the node has after that transaction. A program that does not know it may keep it when it
writes settings; then the version differs, and nobody is named for what that program wrote.
"""

from __future__ import annotations

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


def read(content: bytes, version: int) -> LastChange | None:
    """Return who wrote this version of the node, None if that is not known."""
    if KEY.encode() not in content:
        return None
    try:
        found = fields.mapping(_WHAT, fields.read_document(_WHAT, content), KEY)
        return _decoded(found) if fields.integer(_WHAT, found, "version") == version else None
    except NodeContentError:
        return None  # it is only information, and other programs write settings, too


def _decoded(found: dict[str, Any]) -> LastChange:
    at_ms = fields.integer(_WHAT, found, "at_ms", maximum=fields.MAX_EPOCH_MS)
    by, what = fields.text(_WHAT, found, "by"), fields.text(_WHAT, found, "what")
    return LastChange(printable(by, MAX_WHO), at_ms, printable(what, MAX_WHAT))
