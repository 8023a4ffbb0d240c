"""The console for tables: as wide as the terminal, and wide enough for long names without one."""

from __future__ import annotations

from rich.console import Console

WIDTH_WITHOUT_TERMINAL = 200


def console() -> Console:
    """Return a console for standard output."""
    on_terminal = Console(highlight=False)
    return on_terminal if on_terminal.is_terminal else Console(highlight=False, width=WIDTH_WITHOUT_TERMINAL)
