"""Telemetry: JSON lines, appended to one file per process (`docs/reference/events.md`)."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

JsonValue = str | int | float | bool | None | Sequence["JsonValue"] | Mapping[str, "JsonValue"]


class EventLog:
    """Appends events to `<directory>/<process>-<pid>.jsonl`; safe for threads, greenlets and kill -9.

    Every line is one write on an append-only descriptor, so a killed process loses at most a torn last line.
    """

    def __init__(self, directory: Path | None, process: str) -> None:
        """Open the file in `directory`; None drops every event. Raises OSError if it does not exist or is read-only."""
        self._host = socket.gethostname()
        self._process = process
        self._descriptor: int | None = None
        if directory is not None:
            path = directory / f"{process}-{os.getpid()}.jsonl"
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(
        self,
        kind: str,
        *,
        group: str | None = None,
        generation: int | None = None,
        cause_id: str | None = None,
        mono_us: int | None = None,
        **fields: JsonValue,
    ) -> None:
        """Write one event; `mono_us` is its time in microseconds of CLOCK_MONOTONIC, by default now.

        Raises:
            OSError: the event cannot be written, for example because the disk is full.

        """
        descriptor = self._descriptor  # another thread may close the log meanwhile
        if descriptor is None:
            return
        event = {
            "ts_us": time.time_ns() // 1_000,
            "mono_us": time.monotonic_ns() // 1_000 if mono_us is None else mono_us,
            "host": self._host,
            "process": self._process,
            "kind": kind,
            "group": group,
            "generation": generation,
            "cause_id": cause_id,
            **fields,
        }
        os.write(descriptor, json.dumps(event, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        """Close the file; further events are dropped."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
