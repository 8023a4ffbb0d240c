"""The clocks: a monotonic one that also runs while the machine is suspended, and the wall clock."""

from __future__ import annotations

import time

_STEADY_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def steady_us() -> int:
    """Microseconds of a monotonic clock that also runs while the machine is suspended (CLOCK_BOOTTIME on Linux)."""
    return time.clock_gettime_ns(_STEADY_CLOCK) // 1_000


def monotonic_us(at_us: int) -> int:
    """Return a moment of `steady_us` on the clock of events; they differ by the time that the machine was suspended."""
    return at_us - steady_us() + time.monotonic_ns() // 1_000


def epoch_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def boot_ms() -> int:
    """Return when `steady_us` was 0, by the present wall clock: it differs once that has jumped."""
    return epoch_ms() - steady_us() // 1_000
