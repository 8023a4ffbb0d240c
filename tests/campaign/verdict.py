"""`python -m tests.campaign.verdict EVENTS UNTIL_US`: the checker on a run in progress.

Prints one JSON document: the problems in the events before UNTIL_US (`mono_us`). It does not check for lost records and
final owners, because the run goes on. Each check reads all events; `CheckTimes` doubles the time between two checks, so
that all together cost no more than twice the last one.
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
    """The findings and the cost of a check of a part of the events."""

    problems: tuple[str, ...]
    events: int
    files: int
    elapsed_s: float
    memory_mb: float


class CheckTimes:
    """When to check: after a minute, then whenever the run's duration has doubled."""

    def __init__(self) -> None:
        self._next_s = FIRST_CHECK_S

    def is_due(self, elapsed_s: float) -> bool:
        """Whether a check is due; True once for each check."""
        if elapsed_s < self._next_s:
            return False
        self._next_s = 2 * elapsed_s
        return True


def allow_open_files() -> None:
    """Raise this process's limit of open files, up to MAX_OPEN_FILES."""
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
