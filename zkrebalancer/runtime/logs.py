"""Loggers whose handlers cannot end the thread or greenlet that logs.

An application may attach any handler or filter. What it raises concerns nobody who logs: it is written to stderr, as
`logging` itself does with the errors of its own handlers.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f]")


def named(name: str) -> logging.Logger:
    """Return the logger with this name. Exceptions of its handlers and filters do not reach those who log."""
    log = logging.getLogger(name)
    log.handle = partial(handle_safely, log)  # type: ignore[method-assign]
    return log


def handle_safely(log: logging.Logger, record: logging.LogRecord) -> None:
    """Let a logger handle a record; show what its handlers and filters raise."""
    with _shown():
        type(log).handle(log, record)


class SafeLog(logging.Logger):
    """Passes on to a logger of the application. Exceptions of its handlers do not reach those who log."""

    def __init__(self, given: logging.Logger) -> None:
        """Pass on to `given`."""
        super().__init__(given.name)
        self._given = given

    def log(self, level: int, msg: object, *args: object, **options: Any) -> None:  # noqa: ANN401  # those of `logging`
        """Log with the application's logger."""
        with _shown():
            self._given.log(level, msg, *args, **options)


class LinesFormatter(logging.Formatter):
    """Indents an entry from its second line on, so that no name in it looks like another entry.

    Control characters, with which a name could command a terminal, become question marks. Both also in a traceback,
    because an error may name a client.
    """

    def __init__(self) -> None:
        """Begin each entry with its time and level."""
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the entry."""
        return "\n  ".join(_CONTROL.sub("?", line) for line in super().format(record).splitlines())


def to_stderr() -> logging.Handler:
    """Return the handler of a program."""
    handler = logging.StreamHandler()
    handler.setFormatter(LinesFormatter())
    return handler


@contextmanager
def _shown() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001  # whatever an application's handler raises
        if logging.raiseExceptions:
            with suppress(OSError, ValueError, AttributeError):  # stderr is closed, or there is none
                sys.stderr.write(f"--- Logging error ---\n{''.join(traceback.format_exception(error))}")
