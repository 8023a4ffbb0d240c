"""SIGTERM as the end of a loop, for programs that wait for it between two beats."""

from __future__ import annotations

import signal


def block_sigterm() -> None:
    """Keep SIGTERM for `is_told_to_end`, also from threads that are started from here on."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def is_told_to_end(within_s: float) -> bool:
    """Wait for SIGTERM for so long; return whether it came.

    If the process is suspended meanwhile, `sigtimedwait` returns an empty answer instead of none.
    """
    found = signal.sigtimedwait({signal.SIGTERM}, within_s)
    return found is not None and found.si_signo == signal.SIGTERM
