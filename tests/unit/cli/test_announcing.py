"""A server whose standard output takes nothing any more."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from zkrebalancer.cli.coordinator import AnnouncingLog


def test_a_coordinator_that_cannot_print_that_it_leads_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `announce`, let it raise: each leader ended at the moment of its election."""
    full = Path("/dev/full").open("w", encoding="utf-8")  # noqa: SIM115  # closing it raises, too
    monkeypatch.setattr(sys, "stdout", full)
    log = AnnouncingLog(tmp_path, "coordinator-1")
    log.write("leader_elected", brokerid=1, epoch=7)
    log.close()
    with suppress(OSError):
        full.close()
    (file,) = tmp_path.iterdir()
    assert [json.loads(line)["kind"] for line in file.read_text().splitlines()] == ["leader_elected"]
