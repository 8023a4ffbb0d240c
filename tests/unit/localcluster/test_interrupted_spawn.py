"""Ctrl-C during a spawn is deferred until the process is recorded, so that cleanup can kill it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from zkrebalancer.localcluster.server import Program


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_deferred_until_the_process_is_recorded(tmp_path: Path, number: signal.Signals) -> None:
    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    def record() -> None:
        signal.raise_signal(number)
        recorded.append(program.pid)

    recorded: list[int] = []
    program = Program("sleeper", ["sleep", "60"], tmp_path / "sleeper.log", record)
    before = signal.signal(number, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            program.spawn()
        assert signal.getsignal(number) is interrupt
        assert recorded == [program.pid]
    finally:
        signal.signal(number, before)
        program.kill()
