"""Documents are read as Python's own JSON parser reads them, in less time."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.fields import read_document

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
BLANK = st.text(" \t\n\r\f\v\u00a0", max_size=3)
ODD = (
    "",
    " ",
    "{}{}",
    "{} x",
    "\ufeff{}",
    '{"a":1,"a":2}',
    '{"a":NaN}',
    '{"a":1e999}',
    '{"a":01}',
    "{,}",
    "[]",
    '{"a":1',
)


def expected(text: str) -> dict[str, Any] | None:
    found = None
    with suppress(ValueError):
        found = json.loads(text)
    return found if isinstance(found, dict) else None


def found(text: str) -> dict[str, Any] | None:
    try:
        return read_document("node", text.encode())
    except NodeContentError:
        return None


@given(st.dictionaries(st.text(), VALUES, max_size=3), BLANK, BLANK, st.sampled_from(["", "x", "{", "\x00"]))
def test_documents_are_those_of_pythons_parser(value: dict[str, object], before: str, after: str, more: str) -> None:
    """Fails if other space than JSON's is allowed around a document, or more than one document."""
    text = before + json.dumps(value, ensure_ascii=False) + after + more
    assert found(text) == expected(text)


@pytest.mark.parametrize("text", ODD)
def test_odd_documents_are_those_of_pythons_parser(text: str) -> None:
    assert repr(found(text)) == repr(expected(text))
