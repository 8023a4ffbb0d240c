"""Follows a folder of event files while other processes append to them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from zkrebalancer.observe.reading import Event


class EventTail:
    """Returns each event once; one call's events are ordered by time."""

    def __init__(self, directory: Path) -> None:
        """Follow every present and future `*.jsonl` file of `directory`."""
        self._directory = directory
        self._offsets: dict[Path, int] = {}

    def read(self) -> list[Event]:
        """Return the events appended since the last call; an incomplete line is left for a later call."""
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
    """Parse lines, without those that a full disk has cut; the final verdict reports them."""
    for line in lines.splitlines():
        with suppress(ValueError):
            yield json.loads(line)
