"""What requests have in common that kazoo does not have: they are made in its form, and sent by its connection."""

from __future__ import annotations

import struct
from typing import Any

INT = struct.Struct("!i")


def string(text: str) -> bytes:
    """Return a text as a request has it."""
    encoded = text.encode()
    return INT.pack(len(encoded)) + encoded


def server_path(kazoo: Any, path: str) -> str:  # noqa: ANN401  # its client has no types
    """Return the path that the server knows: with the chroot of a client of kazoo."""
    chroot: str = kazoo.chroot
    return chroot + path if chroot and path != "/" else chroot or path
