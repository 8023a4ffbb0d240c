"""Follows a folder of event files while other processes append to them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from zkrebalancer.observe.reading import Event, event_of

BLOCK = 65_536  # bytes to look for the end of a line at once
MAX_READ_BYTES = 64 * 1024 * 1024  # of a file at once; no line is as long


class EventTail:
    """Returns each event once; one call's events are ordered by time."""

    def __init__(self, directory: Path) -> None:
        """Follow every present and future `*.jsonl` file of `directory`."""
        self._directory = directory
        self._offsets: dict[Path, int] = {}

    def skip(self) -> None:
        """Return nothing of what the files contain now; an incomplete line is returned when it is complete."""
        for path in self._directory.glob("*.jsonl"):
            with suppress(FileNotFoundError), path.open("rb") as file:  # its process keeps only its last files
                at = file.seek(0, os.SEEK_END)
                while at > 0:
                    begin = max(0, at - BLOCK)
                    file.seek(begin)
                    newline = file.read(at - begin).rfind(b"\n")
                    at = begin + newline + 1  # none: the beginning of the block
                    if newline >= 0:
                        break
                self._offsets[path] = at

    def read(self) -> list[Event]:
        """Return the events appended since the last call, of each file some at a time.

        An incomplete line is left for a later call.
        """
        events: list[Event] = []
        for path in self._directory.glob("*.jsonl"):
            content = b""
            with suppress(FileNotFoundError), path.open("rb") as file:  # as above
                file.seek(self._offsets.get(path, 0))
                content = file.read(MAX_READ_BYTES)
            # What is too long for a line is no event: otherwise it would be read again and again.
            size = len(content) if len(content) == MAX_READ_BYTES and b"\n" not in content else content.rfind(b"\n") + 1
            if size:
                self._offsets[path] = self._offsets.get(path, 0) + size
                # A line that a full disk has cut is left out here; the final verdict reports it.
                events += [event for line in content[:size].splitlines() if (event := event_of(line)) is not None]
        return sorted(events, key=lambda event: event["mono_us"])
