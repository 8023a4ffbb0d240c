"""The totals of several runs, in a file: a proof can be continued."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from tests.exactly_once.run import Outcome
from zkrebalancer.protocol.errors import ConfigurationError


def add(file: Path, outcome: Outcome) -> dict[str, object]:
    """Add a run to the totals, and return them; raises ConfigurationError if the file is none of ours."""
    before = read(file)
    steps = Counter(before.get("kills_by_step", {})) + outcome.kills
    suspended = Counter(before.get("suspended_by_step", {})) + outcome.suspended
    totals = {
        "runs": before.get("runs", 0) + 1,
        "failed_runs": before.get("failed_runs", 0) + bool(outcome.problems),
        "elapsed_s": round(before.get("elapsed_s", 0) + outcome.elapsed_s, 1),
        "records": before.get("records", 0) + outcome.records,
        "results": before.get("results", 0) + sum(found.stored for found in outcome.sinks.values()),
        "kills": steps.total(),
        "kills_by_step": dict(sorted(steps.items())),
        "suspended_by_step": dict(sorted(suspended.items())),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(totals, indent=1) + "\n")
    return totals


def read(file: Path) -> dict[str, Any]:
    """Return the totals so far; raises ConfigurationError."""
    if not file.exists():
        return {}
    try:
        found = json.loads(file.read_text())
    except ValueError:
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("kills_by_step"), dict):
        raise ConfigurationError(f"--totals {file}: no totals of earlier runs; name another file")
    return found
