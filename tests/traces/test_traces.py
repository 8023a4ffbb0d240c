"""Scenarios as text: the diff of a trace is the review of a change. `TRACES_REWRITE=1` writes them anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.traces.trace import play

TRACES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_trace(path: Path) -> None:
    text = path.read_text()
    played = play(text)
    if os.environ.get("TRACES_REWRITE"):
        path.write_text(played)
    else:
        assert played == text


def test_every_trace_is_found() -> None:
    assert len(TRACES) >= 12
