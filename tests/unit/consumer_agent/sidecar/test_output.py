"""What `consumer-agent run` prints of records."""

from __future__ import annotations

import io
import signal
from types import SimpleNamespace

import pytest

from consumer_agent.sidecar import cli


def test_a_terminal_that_lacks_a_character_shows_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `_print_line`, write the text as it is: the error ended the program, again after each restart."""
    shown = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(shown, encoding="latin-1", write_through=True))
    record = SimpleNamespace(topic="t", partition=0, offset=5, key="é".encode(), value="5 €".encode())
    cli._print_line(record)  # type: ignore[arg-type]
    assert shown.getvalue().decode("latin-1") == "t/0 5 é 5 \\u20ac\n"


def test_a_signal_that_asks_for_something_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `_Signals.take_wishes`, keep it: the settings are read again after every poll."""
    monkeypatch.setattr("consumer_agent.sidecar.cli.signal.signal", lambda *_: None)
    signals = cli._Signals()
    for number in (signal.SIGHUP, signal.SIGUSR1):
        signals._wish(number, None)
    assert signals.take_wishes() == {signal.SIGHUP, signal.SIGUSR1}
    assert signals.take_wishes() == set()
