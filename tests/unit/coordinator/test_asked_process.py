"""A helper process that ends: the error of the next request."""

from __future__ import annotations

import sys

import pytest

from tests.support.deadlines import WITHIN_S
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
