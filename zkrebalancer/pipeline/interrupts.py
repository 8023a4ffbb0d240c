"""Ctrl-C and SIGTERM end Spark and all its processes at any moment.

PySpark alone does not ensure that. Ctrl-C during the JVM's start makes it forget the JVM, which then waits for ever.
Later, PySpark asks the JVM to cancel its jobs over a connection on which another answer is due; and its cleanup after
an exception first waits for the job's answer. So Spark's processes are killed before the interrupt is raised: every
call to them then fails at once. Executors on other machines survive the loss of a driver anyway.
"""

from __future__ import annotations

import contextlib
import io
import logging
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

import psutil

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SUSPEND_DEADLINE_S = 5.0
END_DEADLINE_S = 10.0  # of killed processes
ASK_INTERVAL_S = 0.001


@contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """Make both signals kill every process started in the block and end the block with KeyboardInterrupt.

    Later signals are ignored. Yields a function that installs the handlers again: PySpark replaces the one for Ctrl-C
    when Spark starts. Outside the main thread this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    others = set(psutil.Process().children())
    is_interrupted = False

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # nothing may interrupt the cleanup
        _silence(quiet)
        _kill_children_but(others)
        raise KeyboardInterrupt

    def install() -> None:
        for number in SIGNALS:
            signal.signal(number, interrupt)

    before = {number: signal.getsignal(number) for number in SIGNALS}
    with ExitStack() as quiet:
        install()
        try:
            yield install
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            if is_interrupted:
                raise KeyboardInterrupt from None  # the block may have turned the first one into another error


def _silence(quiet: ExitStack) -> None:
    """Hide errors of the lost connections to Spark; stderr is hidden until `quiet` ends."""
    logging.disable()
    warnings.simplefilter("ignore")
    quiet.enter_context(contextlib.redirect_stderr(io.StringIO()))


def _kill_children_but(others: set[psutil.Process]) -> None:
    """Kill every process below this one, except `others` and their descendants.

    Each process is suspended before its children are listed. Otherwise it could still start another child (the script
    that starts the JVM does), which nothing would find after the parent's death.
    """
    found: list[psutil.Process] = []
    unread = [child for child in psutil.Process().children() if child not in others]
    while unread:
        found += unread
        give_up_at = time.monotonic() + SUSPEND_DEADLINE_S
        for process in unread:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        for process in unread:
            while _runs(process) and time.monotonic() < give_up_at:
                time.sleep(ASK_INTERVAL_S)
        unread = [child for process in unread for child in _children(process)]
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(found, END_DEADLINE_S)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() not in {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE}
    except psutil.NoSuchProcess:
        return False


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children()
    except psutil.NoSuchProcess:
        return []
