"""Bytes that are no message: always a FrameError, and never more work than the bytes are worth."""

from __future__ import annotations

import contextlib
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.kafka_protocol.random_messages import FORMS, fields_of
from zkrebalancer.kafka_protocol import codec
from zkrebalancer.kafka_protocol.errors import FrameError
from zkrebalancer.kafka_protocol.schema import message

MAX_MEMORY = 1 << 20


@given(st.sampled_from(FORMS), st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(form: tuple[str, int], content: bytes) -> None:
    with contextlib.suppress(FrameError):
        codec.decode(*form, content)


@given(st.data(), st.sampled_from(FORMS))
def test_a_message_with_changed_bytes_is_read_or_refused(data: st.DataObject, form: tuple[str, int]) -> None:
    content = bytearray(codec.encode(*form, data.draw(fields_of(message(form[0]), form[1]))))
    for _ in range(data.draw(st.integers(1, 3))):
        if content:
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(FrameError):
        codec.decode(*form, bytes(content))


def test_a_message_with_more_elements_than_allowed_is_refused_before_they_are_made() -> None:
    topics = [{"name": "t", "partition_indexes": [0, 1, 2]} for _ in range(5)]
    content = codec.encode("OffsetFetchRequest", 7, {"group_id": "g", "topics": topics})
    assert len(codec.decode("OffsetFetchRequest", 7, content, 20)["topics"]) == 5
    with pytest.raises(FrameError, match="OffsetFetchRequest: more than 19 elements"):
        codec.decode("OffsetFetchRequest", 7, content, 19)
    tagged = codec.encode("HeartbeatRequest", 4, {})[:-1] + b"\3\7\0\x08\0\x09\0"
    codec.decode("HeartbeatRequest", 4, tagged, 3)
    with pytest.raises(FrameError, match="more than 2 elements"):
        codec.decode("HeartbeatRequest", 4, tagged, 2)


@given(st.data(), st.sampled_from(FORMS))
def test_a_message_that_is_cut_off_is_refused(data: st.DataObject, form: tuple[str, int]) -> None:
    content = codec.encode(*form, data.draw(fields_of(message(form[0]), form[1])))
    if content:
        with pytest.raises(FrameError):
            codec.decode(*form, content[: data.draw(st.integers(0, len(content) - 1))])


@given(st.binary(max_size=60))
def test_any_bytes_are_a_header_or_refused(content: bytes) -> None:
    with contextlib.suppress(FrameError):
        codec.decode_header(content)


@pytest.mark.parametrize(
    ("name", "version", "content", "reason"),
    [
        ("HeartbeatRequest", 3, b"\0\1g\0\0\0\3\0\1m\xff\xffmore", "4 bytes too many"),
        ("HeartbeatRequest", 3, b"\0\1\xff\0\0\0\3\0\1m\xff\xff", "a text is not UTF-8"),
        ("HeartbeatRequest", 3, b"\xff\xff\0\0\0\3\0\1m\xff\xff", "a length of -1"),
        ("HeartbeatRequest", 4, b"\xff\xff\xff\xff\xff\xff\1", "a varint of more than five bytes"),
        ("DescribeGroupsRequest", 0, b"\x7f\xff\xff\xff", "2147483647 elements are announced, 0 bytes are left"),
        ("MetadataRequest", 0, b"\xff\xff\xff\xff", "-1 elements"),
        ("ApiVersionsResponse", 3, b"\0\0\1\0\0\0\0\1\1\x09" + bytes(9), "another size than announced"),
        ("ConsumerGroupHeartbeatResponse", 0, b"\0\0\0\0\0\0\0\0" + bytes(8) + b"\7\0", "begins with 7"),
    ],
)
def test_what_is_wrong_is_said(name: str, version: int, content: bytes, reason: str) -> None:
    with pytest.raises(FrameError, match=reason):
        codec.decode(name, version, content)


def test_an_announced_size_costs_no_memory() -> None:
    content = b"\xff\xff\xff\xff\x07" + b"\0" * 100
    codec.encode("DescribeGroupsRequest", 5, {})  # what is composed once does not count
    with contextlib.suppress(FrameError):
        codec.decode("DescribeGroupsRequest", 5, content)
    tracemalloc.start()
    try:
        with pytest.raises(FrameError, match="elements are announced"):
            codec.decode("DescribeGroupsRequest", 5, content)
        assert tracemalloc.get_traced_memory()[1] < MAX_MEMORY
    finally:
        tracemalloc.stop()
