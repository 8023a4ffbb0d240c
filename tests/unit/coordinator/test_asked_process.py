"""A process that answers requests: what its asker is told when it ends."""

from __future__ import annotations

import pytest

from tests.support.deadlines import WITHIN_S
from zkrebalancer.coordinator.asked_process import AskedProcess, ProcessFailedError


def test_a_process_that_has_ended_before_it_is_asked_is_named() -> None:
    """In `AskedProcess.end`, close the pipes without care: what could not be written is written again, and fails."""
    asked = AskedProcess("zkrebalancer.no_such_module")
    asked.begin().wait(WITHIN_S)
    with pytest.raises(ProcessFailedError, match="has ended"):
        asked.ask({"group": "g"}, WITHIN_S)
    asked.end()
