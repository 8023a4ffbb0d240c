"""Commands whose standard input or output was closed before they began: Python has none then."""

from __future__ import annotations

from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from consumer_agent.sidecar import cli as agent
from zkrebalancer.assignment.document import InputError
from zkrebalancer.cli import assign, topics

NOBODY = "127.0.0.1:1"
AGENT = ["--bootstrap", NOBODY, "--zookeeper", NOBODY, "--group", "g", "--topic", "t"]


def test_a_closed_input_is_no_document(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assign, "sys", SimpleNamespace(stdin=None))
    found = CliRunner().invoke(assign.assign, ["--strategy", "sticky", "--input", "-"])
    assert isinstance(found.exception, InputError)
    assert str(found.exception) == "--input -: standard input is closed"


@pytest.mark.parametrize(
    ("module", "command", "arguments", "told"),
    [
        (topics, topics.topics, ["produce", "t", "--stdin", "--bootstrap", NOBODY], "standard input is closed"),
        (agent, agent.run, AGENT, "standard output is closed"),
        (agent, agent.run, [*AGENT, "--json"], "standard output is closed"),
    ],
    ids=["produce", "agent", "agent with JSON"],
)
def test_what_needs_a_closed_stream_does_not_begin(
    monkeypatch: pytest.MonkeyPatch, module: object, command: click.Command, arguments: list[str], told: str
) -> None:
    """In `topics.produce` or `cli.run`, look at it when it is needed: the command has connected, or joined, then."""
    monkeypatch.setattr(module, "sys", SimpleNamespace(stdin=None, stdout=None))
    found = CliRunner().invoke(command, arguments)
    assert (found.exit_code, told in found.output) == (2, True)
