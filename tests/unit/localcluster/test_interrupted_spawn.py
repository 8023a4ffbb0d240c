"""Ctrl-C while a process is being begun: it is written down first, so that whoever cleans up can end it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from zkrebalancer.localcluster.server import Program


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_waits_until_the_process_is_written_down(tmp_path: Path, number: signal.Signals) -> None:
    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    def write_down() -> None:
        signal.raise_signal(number)
        written_down.append(program.pid)

    written_down: list[int] = []
    program = Program("sleeper", ["sleep", "60"], tmp_path / "sleeper.log", write_down)
    before = signal.signal(number, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            program.spawn()
        assert signal.getsignal(number) is interrupt
        assert written_down == [program.pid]
    finally:
        signal.signal(number, before)
        program.kill()
