"""The description of a group's consistent region for operators."""

from __future__ import annotations

import pytest

from zkrebalancer.observe.obstacles import Obstacle
from zkrebalancer.observe.regions import RegionReport
from zkrebalancer.protocol import paths
from zkrebalancer.region.documents import Order, Settings


def test_operators_see_the_times_that_are_in_force() -> None:
    """In `RegionReport.text` and `document`, leave them out: those of a later member are ignored."""
    report = RegionReport(Settings("r", "group", 2_500, 60_000), Order())
    times = "every_s 2.5, reset_s 60"
    assert report.text() == f"region r: flows, 0 members, recovery group, no checkpoint is complete, {times}"
    assert (report.document()["every_s"], report.document()["reset_s"]) == (2.5, 60)


@pytest.mark.parametrize(
    ("recovery", "right", "place", "waits"),
    [
        ("group", "READ", "owners/c", True),
        ("group", "READ", "channel/c/command-1", True),
        ("group", "READ", "given/c", False),  # what it holds is known
        ("group", "CREATE", "channel/c", False),
        ("forced", "READ", "owners/c", False),  # Kafka knows what its members hold
    ],
)
def test_operators_see_which_node_a_region_waits_for(recovery: str, right: str, place: str, *, waits: bool) -> None:
    path = f"{paths.group('g')}/{place}"
    obstacles = [Obstacle("lease", "of a member"), Obstacle("refused", "no permission", path=path, right=right)]
    report = RegionReport(Settings("r", recovery, 2_500, 60_000), Order()).with_obstacles("g", obstacles)
    assert report.document()["hidden"] == (path if waits else None)
    assert report.text().endswith(f"reset_s 60; no checkpoint or reset completes until {path} may be read") is waits
