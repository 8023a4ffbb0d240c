"""The frames that the agent and its child exchange, in both codecs."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer_agent.records import Record
from consumer_agent.sidecar.frames import (
    CODECS,
    MAX_FRAME_BYTES,
    Ack,
    Codec,
    Fail,
    Frame,
    FrameError,
    JsonLines,
    LengthPrefixed,
    Revoked,
)

RECORD = Record("t", 1, 9, None, b"\x00\xff", (("h", b"x"), ("empty", None)), 123, 4)
PLACE = {"topic": "t", "partition": 1, "offset": 9, "timestamp_ms": 123, "generation": 4}
FRAMES: list[tuple[dict[str, Any], Frame]] = [
    ({"ack": {"topic": "t", "partition": 0, "offset": 5}}, Ack(("t", 0), 5)),
    ({"fail": {"topic": "t", "partition": 0, "offset": 5, "reason": "no"}}, Fail(("t", 0), 5, "no")),
    ({"revoked": {"t": [0, 2]}}, Revoked(frozenset({("t", 0), ("t", 2)}))),
]


def written(codec: Codec, document: object) -> bytes:
    if isinstance(codec, JsonLines):
        return json.dumps(document).encode() + b"\n"
    body = msgpack.packb(document)
    return len(body).to_bytes(4, "big") + body


def test_a_record_as_a_line() -> None:
    line = JsonLines().record(RECORD)
    assert line.endswith(b"\n")
    assert json.loads(line) == {
        "record": {**PLACE, "key_base64": None, "value_base64": "AP8=", "headers": [["h", "eA=="], ["empty", None]]}
    }


def test_a_record_length_prefixed() -> None:
    frame = LengthPrefixed().record(RECORD)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    headers = [["h", b"x"], ["empty", None]]
    assert msgpack.unpackb(frame[4:]) == {"record": {**PLACE, "key": None, "value": b"\x00\xff", "headers": headers}}


def test_a_revoke() -> None:
    partitions = [("u", 1), ("t", 2), ("t", 0)]
    assert json.loads(JsonLines().revoke(partitions)) == {"revoke": {"t": [0, 2], "u": [1]}}
    assert msgpack.unpackb(LengthPrefixed().revoke(partitions)[4:]) == {"revoke": {"t": [0, 2], "u": [1]}}


@pytest.mark.parametrize("name", CODECS)
@given(data=st.data())
def test_frames_come_out_whole_however_they_are_cut(name: str, data: st.DataObject) -> None:
    codec = CODECS[name]()
    wanted = data.draw(st.lists(st.sampled_from(FRAMES), max_size=5))
    stream = b"".join(written(codec, document) for document, _ in wanted)
    found: list[Frame] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += codec.feed(stream[:size])
        stream = stream[size:]
    assert found == [frame for _, frame in wanted]


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        {"done": 1},
        {"ack": 5},
        {"ack": {"topic": "t", "partition": "0", "offset": 5}},
        {"fail": {"topic": "t", "partition": 0, "offset": 5}},
        {"revoked": {"t": 0}},
        {"revoked": {"t": ["0"]}},
    ],
)
@pytest.mark.parametrize("name", CODECS)
def test_what_is_no_frame_is_refused(name: str, document: object) -> None:
    codec = CODECS[name]()
    with pytest.raises(FrameError) as refused:
        list(codec.feed(written(codec, document)))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "data", "quoted"),
    [
        ("json", b"hello\n", "'hello'"),
        ("json", b"\xff\xfe\n", r"\\xff\\xfe"),
        ("json", b"x" * 5_000 + b"\n", "x" * 100),
        ("json", b"x" * (MAX_FRAME_BYTES + 1), "longer than"),
        ("msgpack", b"hello\n", "'hello"),
        ("msgpack", b"\x00\x00\x00\x01\xc1", "not msgpack"),
        ("msgpack", b"\x00\x00\x00\x02\x01\x01", "not msgpack"),
    ],
)
def test_garbage_is_quoted(name: str, data: bytes, quoted: str) -> None:
    with pytest.raises(FrameError) as refused:
        list(CODECS[name]().feed(data))
    text = str(refused.value)
    assert quoted in text
    assert "\n" not in text
    assert len(text) < 1_000
