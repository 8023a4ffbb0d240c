"""The clocks: one that never jumps and runs while the machine sleeps, and the wall clock."""

from __future__ import annotations

import time

_STEADY_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def steady_us() -> int:
    """Microseconds of a clock that never jumps and counts the time that the machine sleeps (Linux: CLOCK_BOOTTIME)."""
    return time.clock_gettime_ns(_STEADY_CLOCK) // 1_000


def epoch_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
