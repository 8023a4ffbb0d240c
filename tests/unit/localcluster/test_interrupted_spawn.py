"""Ctrl-C leaves no process: a spawn defers it until cleanup knows the process, and a short command is waited for."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from zkrebalancer.localcluster import commands
from zkrebalancer.localcluster.server import Program


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_deferred_until_the_process_is_recorded(tmp_path: Path, number: signal.Signals) -> None:
    def record() -> None:
        signal.raise_signal(number)
        recorded.append(program.pid)

    recorded: list[int] = []
    program = Program("sleeper", ["sleep", "60"], tmp_path / "sleeper.log", record)
    before = signal.signal(number, _interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            program.spawn()
        assert signal.getsignal(number) is _interrupt
        assert recorded == [program.pid]
    finally:
        signal.signal(number, before)
        program.kill()


def test_a_short_command_has_ended_when_an_interrupt_goes_on(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    before = signal.signal(signal.SIGINT, _interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            commands.run(["sh", "-c", f"echo $$ > {pid}; kill -INT $PPID; exec sleep 60"], 60)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not psutil.pid_exists(int(pid.read_text()))


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt
