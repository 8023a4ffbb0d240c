"""Tables show any text unchanged."""

from __future__ import annotations

import click
import pytest
from rich.table import Table

from zkrebalancer.cli import watching
from zkrebalancer.cli.groups import leading
from zkrebalancer.cli.main import run
from zkrebalancer.cli.plain import plain
from zkrebalancer.cli.tables import console
from zkrebalancer.protocol.cluster_nodes import CoordinatorAddress, unknown_coordinator
from zkrebalancer.protocol.errors import NodeContentError, RebalancerError

HOSTILE = "\x1b[2J\x1b]0;me\x07a\nb\u202ec"


@pytest.mark.parametrize("text", ["white_list: [a-z]+", "[/]", "[red]host", ":smile:"])
def test_what_looks_like_markup_is_text(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A pattern of topics, or the host that a consumer has registered. In `console`, leave out `markup` or `emoji`."""
    table = Table("column")
    table.add_row(text)
    console().print(table)
    assert text in capsys.readouterr().out


def test_what_another_program_wrote_cannot_command_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `tables._Plain`, show text as it is: a consumer's host clears the operator's screen, or adds a row."""
    table = Table("host", HOSTILE, title=HOSTILE)
    table.add_row("h", HOSTILE)
    watching.show(lambda: ((HOSTILE, table), (HOSTILE,)), watch=False)
    monkeypatch.setattr("sys.argv", ["fail"])
    with pytest.raises(SystemExit):
        run(click.Command("fail", callback=_fail))
    shown = "".join(capsys.readouterr())
    assert {character for character in shown if not character.isprintable()} == {"\n"}
    assert shown.count("?[2J?]0;me?a?b?c") == 6  # line, title, heading, cell, problem, error


def _fail() -> None:
    raise RebalancerError(HOSTILE.replace("\n", "?"))


def test_text_of_every_language_is_shown() -> None:
    for text in ("Bücher, 本, אב, \u00a0", "a-b_c"):
        assert plain(text) == text


def test_leaders_are_named() -> None:
    known = CoordinatorAddress(1, "h", 3, None, "0")
    other = unknown_coordinator(NodeContentError("version 2"))
    assert leading.heading([known]) == "coordinator: broker 1 on h, epoch 3"
    assert leading.heading([other]) == "coordinator: one whose node cannot be read (version 2)"
    assert leading.heading([known, other, None]).endswith(
        "broker 1 on h leads 0; none leads 2; one whose node cannot be read (version 2) leads 1"
    )
    assert leading.document([other])["coordinator"]["brokerid"] is None
