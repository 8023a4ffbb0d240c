"""Actions repeated in a thread beside a run."""

from __future__ import annotations

import threading

import pytest

from zkrebalancer.experiments.repeating import Repeating, RepeatingError

WAIT_S = 60.0


def test_the_action_repeats_until_the_end() -> None:
    times = threading.Semaphore(0)
    with Repeating(times.release, 0.0):
        assert times.acquire(timeout=WAIT_S)
        assert times.acquire(timeout=WAIT_S)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_is_not_ignored() -> None:
    """Without its costs or its heartbeat, a run is not measured."""

    def fail() -> None:
        raise OSError("disk full")

    def wait_end() -> None:
        for thread in threading.enumerate():
            if thread.name == "Repeating":
                thread.join(WAIT_S)

    with pytest.raises(RepeatingError, match="Repeating has failed"), Repeating(fail, 0.0):
        wait_end()
