"""Ctrl-C and SIGTERM end Spark with all of its processes, at whatever moment they come.

PySpark alone does not see to that. While it starts the JVM, Ctrl-C makes it forget the JVM, which waits for ever. Later
it asks the JVM to cancel its jobs, over a connection on which it awaits another answer; and where it cleans up behind
an exception, it first waits for what the job would have answered. So Spark's processes are killed before anybody is
told here: whatever asks them then fails at once. Whoever works for this driver elsewhere copes with its loss anyway.
"""

from __future__ import annotations

import contextlib
import io
import logging
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

import psutil

SIGNALS = (signal.SIGINT, signal.SIGTERM)
END_DEADLINE_S = 10.0  # for processes that were killed to be gone


@contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """Let both signals kill every process that was begun in the block, and end it with KeyboardInterrupt.

    Those that come after the first are ignored. Yields what makes it so once more: whoever starts Spark gets PySpark's
    own answer to Ctrl-C in the place of this one. In another thread than the main one nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None  # signals never interrupt another thread
        return
    others = set(psutil.Process().children())
    is_interrupted = False

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # what follows is cleaning up
        _say_no_more(quiet)
        _kill_children_but(others)
        raise KeyboardInterrupt

    def take() -> None:
        for number in SIGNALS:
            signal.signal(number, interrupt)

    before = {number: signal.getsignal(number) for number in SIGNALS}
    with ExitStack() as quiet:
        take()
        try:
            yield take
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            if is_interrupted:
                raise KeyboardInterrupt from None  # whatever has become of the first one on its way


def _say_no_more(quiet: ExitStack) -> None:
    """Hide what everybody who has lost a connection would tell; what is printed is hidden until `quiet` ends."""
    logging.disable()
    warnings.simplefilter("ignore")
    quiet.enter_context(contextlib.redirect_stderr(io.StringIO()))


def _kill_children_but(others: set[psutil.Process]) -> None:
    begun = [child for child in psutil.Process().children() if child not in others]
    below = [process for child in begun for process in child.children(recursive=True)]
    for process in [*begun, *below]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs([*begun, *below], END_DEADLINE_S)
