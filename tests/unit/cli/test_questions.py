"""A question on a terminal: connections live while a person thinks, and Ctrl-C is one line."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import click
import gevent
import pytest

from zkrebalancer.cli.questions import is_confirmed

WAIT_S = 60.0


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """What is written there is entered at the terminal of this process."""
    written, read = os.openpty()
    with os.fdopen(read) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        yield written
    os.close(written)


@pytest.mark.parametrize(("lines", "answer"), [("what?\nYes\n", True), ("\n", False), ("n\n", False)])
def test_others_run_until_the_answer_comes(keyboard: int, lines: str, answer: bool) -> None:
    """In `is_confirmed`, read at once."""
    ran = threading.Event()
    gevent.spawn(ran.set)

    def person() -> None:
        ran.wait(WAIT_S / 10)
        os.write(keyboard, lines.encode())

    threading.Thread(target=person).start()
    assert (is_confirmed("Sure?"), ran.is_set()) == (answer, True)


def test_the_end_of_the_input_is_no_answer(keyboard: int) -> None:
    os.write(keyboard, b"\x04")
    with pytest.raises(click.Abort):
        is_confirmed("Sure?")


INTERRUPTED = """
import signal
import click, gevent
from zkrebalancer.cli.main import run
from zkrebalancer.cli.questions import is_confirmed

@click.command()
def command():
    gevent.spawn(signal.raise_signal, signal.SIGINT)
    is_confirmed("Sure?")

run(command)
"""


def test_an_interrupt_during_a_question_ends_the_command_with_one_line(keyboard: int) -> None:
    """In `is_confirmed`, read in a thread: Python cannot end while it waits there."""
    command = [sys.executable, "-c", INTERRUPTED]
    found = subprocess.run(command, check=False, stdin=sys.stdin, capture_output=True, text=True, timeout=WAIT_S)
    assert (found.returncode, found.stdout, found.stderr) == (130, "Sure? [y/N]: ", "\nError: interrupted\n")
