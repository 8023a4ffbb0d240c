"""What `consumer-agent run` prints of records."""

from __future__ import annotations

import io
import logging
import signal
from types import SimpleNamespace

import pytest

from consumer_agent.sidecar import cli
from consumer_agent.sidecar.settings import gather


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


def test_settings_that_are_read_again_bring_the_log_level_into_force(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In `_read_again`, take the former level, or that of settings with faults."""
    flags = {"zookeeper": "z:1", "bootstrap": "b:1", "group": "g", "topics": ["t"]}
    levels: list[str] = []
    monkeypatch.setattr(logging.getLogger(), "setLevel", levels.append)
    known = gather((), {}, flags)
    cli._read_again(known, lambda: gather((), {}, {**flags, "log_level": "error", "group": "h"}))
    cli._read_again(known, lambda: gather((), {}, {"log_level": "debug"}))
    assert levels == ["ERROR"]
    assert caplog.messages[0] == "a restart is needed for the new values of group"
    assert caplog.messages[1].startswith("the former settings stay in force: ")
