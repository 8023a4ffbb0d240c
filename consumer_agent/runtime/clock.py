"""The clock of leases."""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # runs while the machine sleeps, as the lease does


def now_ms() -> int:
    """Read the clock of leases, in milliseconds."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000
