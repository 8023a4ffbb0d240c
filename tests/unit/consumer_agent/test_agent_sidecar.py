"""The frames of a child process."""

from __future__ import annotations

import pytest

from consumer_agent.buffer import Record
from consumer_agent.sidecar import Ack, ChildError, Fail, Revoked, read_frame, record_document


def test_a_record_as_a_document() -> None:
    record = Record("t", 1, 9, None, b"\x00\xff", (("h", b"x"), ("empty", None)), 123, 4)
    assert record_document(record) == {
        "topic": "t",
        "partition": 1,
        "offset": 9,
        "timestamp_ms": 123,
        "generation": 4,
        "key_base64": None,
        "value_base64": "AP8=",
        "headers": [["h", "eA=="], ["empty", None]],
    }


def test_frames() -> None:
    assert read_frame(b'{"ack": {"topic": "t", "partition": 0, "offset": 5}}\n') == Ack(("t", 0), 5)
    fail = b'{"fail": {"topic": "t", "partition": 0, "offset": 5, "reason": "no"}}'
    assert read_frame(fail) == Fail(("t", 0), 5, "no")
    assert read_frame(b'{"revoked": {"t": [0, 2]}}') == Revoked(frozenset({("t", 0), ("t", 2)}))


@pytest.mark.parametrize(
    "line",
    [
        b"hello\n",
        b"[]",
        b"{}",
        b'{"done": 1}',
        b'{"ack": 5}',
        b'{"ack": {"topic": "t", "partition": "0", "offset": 5}}',
        b'{"fail": {"topic": "t", "partition": 0, "offset": 5}}',
        b'{"revoked": {"t": 0}}',
        b'{"revoked": {"t": ["0"]}}',
        b"\xff\xfe",
        b"x" * 5_000,
    ],
)
def test_a_line_that_is_no_frame_is_quoted(line: bytes) -> None:
    with pytest.raises(ChildError) as refused:
        read_frame(line)
    text = str(refused.value)
    assert "\n" not in text
    assert line[:20].decode(errors="backslashreplace").rstrip("\n").replace("\\", "\\\\") in text
    assert len(text) < 1_000
