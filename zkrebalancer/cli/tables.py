"""The console for tables: as wide as the terminal, or, without one, wide enough for long names."""

from __future__ import annotations

import errno
import json
import os
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from zkrebalancer.cli.plain import plain

WIDTH_WITHOUT_TERMINAL = 200


class _Plain(Console):
    """Shows the text of a table's cells, and of lines, without what could command the terminal."""

    def render_str(self, text: str, **others: Any) -> Text:  # noqa: ANN401  # rich's own
        return super().render_str(plain(text), **others)

    def on_broken_pipe(self) -> None:
        """Let the command know that its reader is gone: rich would end it."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def console() -> Console:
    """Return a console for standard output.

    Text is shown as it is: what consumers registered, such as the pattern `[a-z]+`, is no markup.
    """
    on_terminal = _Plain(highlight=False, markup=False, emoji=False)
    if on_terminal.is_terminal:
        return on_terminal
    return _Plain(highlight=False, markup=False, emoji=False, width=WIDTH_WITHOUT_TERMINAL)


def utc(epoch_ms: int) -> str:
    """Return a time as it is shown in tables."""
    return datetime.fromtimestamp(epoch_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def setting(key: str, value: object) -> str:
    """Return a group's setting as `groups configure` takes it, a time also as people read it."""
    if key == "frozen_until_ms" and isinstance(value, int) and value:
        return f"{value} ({utc(value)} UTC)"
    if value is None or value in ("", (), [], {}):
        return "-"
    return value if isinstance(value, str) else json.dumps(value)
