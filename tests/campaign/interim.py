"""Checks the events during the campaign, in separate processes, one at a time."""

from __future__ import annotations

import json
import sys
import time

from tests.campaign.verdict import CheckTimes, InterimVerdict
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.localcluster.server import Program

MARGIN_US = 5_000_000  # events younger than this may not be in the files yet


class InterimChecks:
    """Starts a check when one is due; a later `look` returns its result."""

    def __init__(self, lab: Lab) -> None:
        """Prepare to check the lab's events."""
        self._lab = lab
        self._times = CheckTimes()
        self._running: Program | None = None
        self._count = 0

    def look(self) -> list[InterimVerdict]:
        """Return the findings of a check that has ended since the last call; start another if one is due."""
        done = []
        if self._running is not None and not self._running.is_running:
            self._running.wait_end(0)
            document = json.loads(self._running.log.read_text())
            done.append(InterimVerdict(**{**document, "problems": tuple(document["problems"])}))
            self._running = None
        if self._running is None and self._times.is_due(self._lab.elapsed_s()):
            self._count += 1
            until_us = time.monotonic_ns() // 1_000 - MARGIN_US
            command = ["nice", sys.executable, "-m", "tests.campaign.verdict", str(self._lab.events), str(until_us)]
            self._running = self._lab.cluster.program(f"check-{self._count}", command)
            self._running.spawn()
        return done
