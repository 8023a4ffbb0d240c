"""`python -m tests.campaign.verdict EVENTS UNTIL_US`: the checker on a run that still goes on, in a process of its own.

Prints one JSON document: what is wrong in the events until then (`mono_us`). What is lost and who owns what at the end
cannot be told while the run goes on, so it is left out. A check reads all events: `CheckTimes` lets the time between
two grow with the run, so that all of them together cost no more than twice the last one.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from zkrebalancer.observe.checker import Run
from zkrebalancer.observe.reading import EventFiles, Problems

FIRST_CHECK_S = 60.0
MAX_OPEN_FILES = 16_384  # every event file is open while they are merged


@dataclass(frozen=True, slots=True)
class InterimVerdict:
    """What a check of a part of the events has found and has cost."""

    problems: tuple[str, ...]
    events: int
    files: int
    elapsed_s: float
    memory_mb: float


class CheckTimes:
    """When to check: after a minute, and then whenever the run has become twice as old."""

    def __init__(self) -> None:
        self._next_s = FIRST_CHECK_S

    def is_due(self, elapsed_s: float) -> bool:
        """Whether it is time; says so once."""
        if elapsed_s < self._next_s:
            return False
        self._next_s = 2 * elapsed_s
        return True


def allow_open_files() -> None:
    """Let this process open as many files as the system lets it, up to MAX_OPEN_FILES."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def check_until(events: Path, until_us: int) -> InterimVerdict:
    """Check the events that were written before a moment; raises NoEventsError."""
    began = time.monotonic()
    problems = Problems()
    run, count = Run(problems), 0
    for event in EventFiles(events, problems):
        if event["mono_us"] > until_us:
            break
        run.apply(event)
        count += 1
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    files = sum(1 for _ in events.glob("*.jsonl"))
    return InterimVerdict(problems.lines(), count, files, round(time.monotonic() - began, 2), round(memory_mb))


if __name__ == "__main__":
    allow_open_files()
    sys.stdout.write(json.dumps(asdict(check_until(Path(sys.argv[1]), int(sys.argv[2])))) + "\n")
