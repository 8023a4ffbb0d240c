"""A helper process that ends: the error of the next request, and the time to close what it has open."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.deadlines import WITHIN_S
from zkrebalancer.coordinator import asked_process
from zkrebalancer.coordinator.asked_process import AskedProcess, ProcessFailedError


def test_a_process_that_has_ended_before_it_is_asked_is_named() -> None:
    """In `AskedProcess.end`, just close the pipes: unsent bytes would be written again, and fail."""
    asked = AskedProcess("zkrebalancer.no_such_module")
    asked.begin().wait(WITHIN_S)
    with pytest.raises(ProcessFailedError, match="has ended"):
        asked.ask({"group": "g"}, WITHIN_S)
    asked.end()


@pytest.mark.parametrize("said", [b"\x00\x00\x00\x01\xc1", b"\x00\x00\x00\x02\x01\x01"])
def test_a_process_that_answers_something_else_is_ended(monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    """In `AskedProcess.ask`, expect only that it has ended: who asks would ask no more."""
    asked = AskedProcess("zkrebalancer.no_such_module")
    program = f"import sys, time; sys.stdout.buffer.write({said!r}); sys.stdout.flush(); time.sleep(600)"
    monkeypatch.setattr(asked, "_command", (sys.executable, "-c", program))
    process = asked.begin()
    with pytest.raises(ProcessFailedError, match="something else"):
        asked.ask({"group": "g"}, WITHIN_S)
    assert process.poll() is not None


@pytest.mark.parametrize(("does", "limit_s", "is_closed"), [("sys.stdin.read()", WITHIN_S, True), ("", 0.05, False)])
def test_a_process_is_ended_in_order_and_killed_only_if_that_takes_too_long(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, does: str, limit_s: float, *, is_closed: bool
) -> None:
    """In `AskedProcess.end`, kill at once: its session would end by expiry, once for each reading."""
    monkeypatch.setattr(asked_process, "END_LIMIT_S", limit_s)
    asked, closed = AskedProcess("zkrebalancer.no_such_module"), tmp_path / "closed"
    waits = does or "import time; time.sleep(600)"
    program = f"import pathlib, sys; {waits}; pathlib.Path({str(closed)!r}).touch()"
    monkeypatch.setattr(asked, "_command", (sys.executable, "-c", program))
    process = asked.begin()
    asked.end()
    assert (process.poll() is not None, closed.exists()) == (True, is_closed)
