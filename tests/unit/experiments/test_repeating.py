"""What is done again and again beside a run."""

from __future__ import annotations

import threading

import pytest

from zkrebalancer.experiments.repeating import Repeating, RepeatingError

WAIT_S = 60.0


def test_it_is_done_until_the_end() -> None:
    times = threading.Semaphore(0)
    with Repeating(times.release, 0.0):
        assert times.acquire(timeout=WAIT_S)
        assert times.acquire(timeout=WAIT_S)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_is_not_passed_over() -> None:
    """A run whose costs nobody writes down any more, or whose machine nobody watches, has not been measured."""

    def fail() -> None:
        raise OSError("disk full")

    def wait_end() -> None:
        for thread in threading.enumerate():
            if thread.name == "Repeating":
                thread.join(WAIT_S)

    with pytest.raises(RepeatingError, match="Repeating has failed"), Repeating(fail, 0.0):
        wait_end()
