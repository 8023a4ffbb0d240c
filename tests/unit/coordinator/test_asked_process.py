"""A helper process that ends: the error of the next request."""

from __future__ import annotations

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
