"""When an agent is well, and what it says when it is not."""

from __future__ import annotations

import pytest

from consumer_agent.sidecar.http_endpoints import MAX_SINCE_POLL_MS, health

WELL = {"lease_ms": 5_000, "since_poll_ms": 10, "assigned_partitions": 3}


def test_a_well_agent() -> None:
    assert health(WELL) == (True, {"healthy": True, **WELL, "faults": []})
    assert health({**WELL, "child_running": True})[0]


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"lease_ms": 0}, "it has no lease"),
        ({"since_poll_ms": MAX_SINCE_POLL_MS + 1}, "it has not polled for 60 s"),
        ({"child_running": False}, "its child is not running"),
    ],
)
def test_an_agent_that_is_not_well_says_why(changed: dict[str, float], fault: str) -> None:
    is_well, document = health({**WELL, **changed})
    assert not is_well
    assert [text.startswith(fault) for text in document["faults"]] == [True]
