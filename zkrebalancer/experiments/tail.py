"""Follows a folder of event files while other processes append to them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from zkrebalancer.observe.reading import Event


class EventTail:
    """Returns each event once; those of one look are in the order in which they happened."""

    def __init__(self, directory: Path) -> None:
        """Follow every `*.jsonl` file of `directory`, also those that appear later."""
        self._directory = directory
        self._offsets: dict[Path, int] = {}

    def read(self) -> list[Event]:
        """Return the events that were appended since the last call; a line that is not complete yet comes later."""
        events: list[Event] = []
        for path in self._directory.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                complete, _newline, _torn = file.read().rpartition(b"\n")
            if complete:
                self._offsets[path] = self._offsets.get(path, 0) + len(complete) + 1
                events += _parsed(complete)
        return sorted(events, key=lambda event: event["mono_us"])


def _parsed(lines: bytes) -> Iterator[Event]:
    """Parse lines; what a full disk has cut is left out here, and the verdict on the run tells of it."""
    for line in lines.splitlines():
        with suppress(ValueError):
            yield json.loads(line)
