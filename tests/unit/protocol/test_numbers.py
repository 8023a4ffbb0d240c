"""Strict decoding of integers in nodes and in names of nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkrebalancer.protocol.numbers import MAX_INTEGER, decimal


@given(st.integers(0, MAX_INTEGER))
def test_every_integer_is_decoded(number: int) -> None:
    assert decimal(str(number)) == decimal(str(number).encode()) == number


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("9" * 5_000, id="more digits than Python converts"),
        pytest.param("0" * 20, id="more digits than the maximum"),
        pytest.param(str(MAX_INTEGER + 1), id="one too large"),
        pytest.param("²", id="a digit to Unicode only"),
        pytest.param("٣", id="a digit of another script"),
        pytest.param("-1", id="negative"),
        pytest.param("+1", id="a sign"),
        pytest.param("1_000", id="underscore"),
        pytest.param(" 1", id="a space"),
        pytest.param("1\n", id="a line break"),
        pytest.param("0x1", id="hexadecimal"),
    ],
)
def test_any_other_text_gives_none(text: str) -> None:
    assert decimal(text) is None
    assert decimal(text.encode()) is None


def test_the_maximum_is_inclusive() -> None:
    assert [decimal("7", maximum) for maximum in (6, 7)] == [None, 7]
