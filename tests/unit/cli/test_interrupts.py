"""Ctrl-C in a command that runs servers."""

from __future__ import annotations

import signal

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
