"""The description of a group's consistent region for operators."""

from __future__ import annotations

from zkrebalancer.observe.regions import RegionReport
from zkrebalancer.region.documents import Order, Settings


def test_operators_see_the_times_that_are_in_force() -> None:
    """In `RegionReport.text` and `document`, leave them out: those of a later member are ignored."""
    report = RegionReport(Settings("r", "group", 2_500, 60_000), Order())
    times = "every_s 2.5, reset_s 60"
    assert report.text() == f"region r: flows, 0 members, recovery group, no checkpoint is complete, {times}"
    assert (report.document()["every_s"], report.document()["reset_s"]) == (2.5, 60)
