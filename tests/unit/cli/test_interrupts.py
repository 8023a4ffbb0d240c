"""Ctrl-C in a command that runs servers."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import nullcontext

import gevent
import pytest

from zkrebalancer.cli.interrupts import interrupts_end_here
from zkrebalancer.protocol.errors import RebalancerError

WAIT_S = 60.0


def test_an_interrupt_ends_the_command_in_any_greenlet() -> None:
    def interrupt_another_greenlet() -> None:
        gevent.spawn(signal.raise_signal, signal.SIGINT)
        gevent.sleep(WAIT_S)

    before = signal.getsignal(signal.SIGINT)  # Spark installs its own if it ran in this process
    with pytest.raises(KeyboardInterrupt), interrupts_end_here():
        signal.raise_signal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), interrupts_end_here():
        interrupt_another_greenlet()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("is_below_nohup", [False, True])
def test_a_terminal_that_is_gone_ends_the_command_as_well(*, is_below_nohup: bool) -> None:
    """In `interrupts_end_here`, leave SIGHUP out: a backup leaves a part behind, a restore keeps all from leading."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if is_below_nohup else lambda _number, _frame: None)
    try:
        with nullcontext() if is_below_nohup else pytest.raises(KeyboardInterrupt), interrupts_end_here():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


INTERRUPTED_ELSEWHERE = """
import signal
import click, gevent
from gevent.event import Event
from zkrebalancer.cli.main import run

interrupted = Event()

def connection():
    signal.raise_signal(signal.SIGINT)
    interrupted.set()

@click.command()
def command():
    gevent.spawn(connection)
    try:
        gevent.sleep(60)
    finally:
        print("the connection lives:", interrupted.wait(10))

run(command)
"""


def test_an_interrupt_ends_the_command_and_not_its_connection() -> None:
    """In `main.run`, leave SIGINT to Python: it raises in the connection's greenlet, and the clean-up waits for it."""
    command = [sys.executable, "-c", INTERRUPTED_ELSEWHERE]
    found = subprocess.run(command, check=False, capture_output=True, text=True, timeout=WAIT_S)
    assert (found.returncode, found.stdout, found.stderr) == (
        130,
        "the connection lives: True\n",
        "\nError: interrupted\n",
    )


@pytest.mark.parametrize("failure", [RebalancerError("kafka does not end"), OSError("disk full")])
def test_a_failing_cleanup_is_reported_and_does_not_hide_the_interrupt(
    failure: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)  # an impatient user
            raise failure

    with pytest.raises(KeyboardInterrupt), interrupts_end_here():
        run()
    assert capsys.readouterr().err == f"during the clean-up: {failure}\n"


def test_a_failure_alone_is_not_an_interrupt() -> None:
    with pytest.raises(OSError, match="disk full"), interrupts_end_here():
        raise OSError("disk full")
