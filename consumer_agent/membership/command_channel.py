"""The order of commands, and the quarantine of unreadable ones. Pure."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field

from zkrebalancer.protocol import fields, paths
from zkrebalancer.protocol.calls import Create, Delete, Multi, Operation
from zkrebalancer.protocol.numbers import decimal
from zkrebalancer.protocol.requests import RequestLimit

MAX_QUARANTINED = 100
MAX_QUARANTINED_BASE64 = 600_000  # a refused command may be as large as a node; its encoded copy must also fit into one
QUARANTINE_VERSION = 1


@dataclass(slots=True)
class Channel:
    """Commands by their sequence number: each is handled once, in order."""

    waiting: list[str] = field(default_factory=list)
    current: str | None = None
    last_sequence: int = -1

    def listed(self, names: tuple[str, ...]) -> bool:
        """Note the channel's names; return whether the current command is still among them."""
        self.waiting = sorted(
            (name for name in names if name != self.current and _sequence(name) > self.last_sequence), key=_sequence
        )
        return self.current is None or self.current in names

    def announced(self, name: str) -> bool:
        """Note that a node of the channel was created, changed or deleted; return whether only a list shows which."""
        is_new = name != self.current and name not in self.waiting
        if is_new and self.last_sequence < _sequence(name):
            self.waiting = sorted([*self.waiting, name], key=_sequence)
        return not is_new

    def foreseen(self) -> str | None:
        """Return the likely name of the next command, None while one is being handled or waits."""
        if self.current is not None or self.waiting:
            return None
        return f"{paths.COMMAND_PREFIX}{self.last_sequence + 1:010d}"

    def begin_next(self) -> str | None:
        """Make the first waiting command the current one and return its name."""
        if self.current is None and self.waiting:
            self.current = self.waiting.pop(0)
            self.last_sequence = _sequence(self.current)
            return self.current
        return None

    def finish(self) -> None:
        """The current command is handled."""
        self.current = None

    def known(self) -> list[str]:
        """Names that may still be in the channel."""
        return ([self.current] if self.current else []) + self.waiting


def quarantine_id(content: bytes) -> str:
    """Name the quarantine node of a refused command."""
    return hashlib.sha256(content).hexdigest()


def quarantine(
    group: str, command: str, content: bytes, reason: str, existing: tuple[str, ...], limit: RequestLimit
) -> Multi:
    """Copy a refused command to `quarantine/`, and delete older ones beyond MAX_QUARANTINED."""
    identity = quarantine_id(content)
    encoded = base64.b64encode(content).decode()
    document = {
        "version": QUARANTINE_VERSION,
        "command": command,
        "reason": reason,
        "content_base64": encoded[:MAX_QUARANTINED_BASE64],
    }
    others = [name for name in existing if name != identity]
    deletes = [Delete(paths.quarantine(group, name)) for name in others[: max(0, len(others) - MAX_QUARANTINED + 1)]]
    copies: list[Operation] = []
    if identity not in existing:
        copies.append(Create(paths.quarantine(group, identity), fields.write_document(document)))
    return Multi((*deletes[: limit.fitting(deletes, copies)], *copies))


def _sequence(name: str) -> int:
    digits = name.removeprefix(paths.COMMAND_PREFIX)
    number = decimal(digits) if digits != name else None
    return -1 if number is None else number
