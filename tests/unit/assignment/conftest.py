"""Runs the command line within the test process."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import pytest

from zkrebalancer.cli.main import main


@dataclass(frozen=True, slots=True)
class Outcome:
    exit_code: int
    stdout: str
    stderr: str


Run: TypeAlias = Callable[..., Outcome]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`run("--json", strategy="range", content="{}")`: run `zkrebalancer assign` with the content as standard input."""

    def run_assign(
        *arguments: str, content: str | bytes = b"", strategy: str = "sticky", input_name: str = "-"
    ) -> Outcome:
        stdin = content if isinstance(content, bytes) else content.encode()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        command_line = ["zkrebalancer", "assign", "--strategy", strategy, "--input", input_name, *arguments]
        monkeypatch.setattr("sys.argv", command_line)
        with pytest.raises(SystemExit) as exit_info:
            main()
        assert isinstance(exit_info.value.code, int)
        return Outcome(exit_info.value.code, *capsys.readouterr())

    return run_assign
