"""Tables show any text unchanged."""

from __future__ import annotations

import pytest
from rich.table import Table

from zkrebalancer.cli.tables import console


@pytest.mark.parametrize("text", ["white_list: [a-z]+", "[/]", "[red]host", ":smile:"])
def test_what_looks_like_markup_is_text(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A pattern of topics, or the host that a consumer has registered. In `console`, leave out `markup` or `emoji`."""
    table = Table("column")
    table.add_row(text)
    console().print(table)
    assert text in capsys.readouterr().out
