"""The size of transactions; tests/integration/test_request_size.py compares it with a real server."""

from __future__ import annotations

import pytest

from zkrebalancer.protocol.calls import Check, Create, Delete, Operation, SetContent
from zkrebalancer.protocol.errors import ConfigurationError
from zkrebalancer.protocol.numbers import number_setting
from zkrebalancer.protocol.requests import RequestLimit

ONE_OF_EACH: tuple[Operation, ...] = (
    Create("/a", b"12345", sequence=True),
    SetContent("/ü", b"123"),
    Delete("/a/b"),
    Check("/c"),
)


def test_the_size_includes_every_path_and_content() -> None:
    header = 4 + 1 + 4  # of each operation: type, done, error
    create = header + (4 + 2) + (4 + 5) + (4 + 4 + 4 + len("world") + 4 + len("anyone")) + 4
    written = header + (4 + len("/ü".encode())) + (4 + 3) + 4
    deleted, checked = header + (4 + 4) + 4, header + (4 + 2) + 4
    whole = 8 + create + written + deleted + checked + header
    assert RequestLimit().size(ONE_OF_EACH) == whole
    assert RequestLimit(chroot_bytes=10).size(ONE_OF_EACH) == whole + 4 * 10
    assert [RequestLimit(limit).fits(ONE_OF_EACH) for limit in (whole - 1, whole)] == [False, True]


def test_fitting_operations_next_to_others() -> None:
    deletes = [Delete(f"/n/{number}") for number in range(10, 20)]
    fence = (Check("/epoch", 3),)
    for count in range(1, 11):
        exact = RequestLimit().size([*fence, *deletes[:count]])
        assert RequestLimit(exact).fitting(deletes, fence) == count
        assert RequestLimit(exact + 1).fitting(deletes, fence) == count
    assert RequestLimit(1).fitting(deletes, fence) == 1, "a single operation is sent even if it is too large"
    assert RequestLimit().fitting([], fence) == 0


@pytest.mark.parametrize("text", ["", "x", "-1", "9", "21", "9" * 5_000, "1e6"])
def test_a_setting_that_is_not_a_number_in_range(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"SIZE=.*: must be an integer from 10 to 20"):
        number_setting("SIZE", text, 15, 10, 20)


def test_a_setting_and_its_default() -> None:
    assert [number_setting("SIZE", text, 15, 10, 20) for text in (None, "10", "20")] == [15, 10, 20]
