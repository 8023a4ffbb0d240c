"""What is written is what is read, in every version; what is missing has its default."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.kafka_protocol.random_messages import FORMS, fields_of
from zkrebalancer.kafka_protocol import codec
from zkrebalancer.kafka_protocol.codec import Header
from zkrebalancer.kafka_protocol.errors import FrameError
from zkrebalancer.kafka_protocol.schema import apis, message, snake_case


@pytest.mark.parametrize(("name", "version"), FORMS)
def test_a_message_without_fields_is_read_as_its_defaults(name: str, version: int) -> None:
    content = codec.encode(name, version, {})
    fields = codec.decode(name, version, content)
    assert set(fields) == {field.name for field in message(name).fields}
    assert codec.encode(name, version, fields) == content


@given(st.sampled_from(FORMS).flatmap(lambda form: st.tuples(st.just(form), fields_of(message(form[0]), form[1]))))
def test_fields_are_read_as_they_were_written(drawn: tuple[tuple[str, int], dict[str, Any]]) -> None:
    (name, version), fields = drawn
    read = codec.decode(name, version, codec.encode(name, version, fields))
    assert _without_more(read, fields) == fields


def _without_more(read: Any, written: Any) -> Any:
    """Return of `read` what `written` has: fields that the version does not have are read as defaults."""
    if isinstance(written, dict):
        return {key: _without_more(read[key], value) for key, value in written.items()}
    if isinstance(written, list):
        assert len(read) == len(written)
        return [_without_more(one, other) for one, other in zip(read, written, strict=True)]
    return read


def test_bytes_of_a_message_as_kafka_writes_them() -> None:
    heartbeat = {"group_id": "g", "generation_id": 3, "member_id": "m", "group_instance_id": None}
    assert codec.encode("HeartbeatRequest", 3, heartbeat) == b"\0\1g\0\0\0\3\0\1m\xff\xff"
    assert codec.encode("HeartbeatRequest", 4, heartbeat) == b"\2g\0\0\0\3\2m\0\0"


def test_an_absent_field_has_kafkas_default() -> None:
    join = codec.decode("JoinGroupRequest", 0, codec.encode("JoinGroupRequest", 0, {"group_id": "g"}))
    assert (join["rebalance_timeout_ms"], join["group_instance_id"], join["protocols"]) == (-1, None, [])


def test_unknown_tagged_fields_are_skipped() -> None:
    content = codec.encode("HeartbeatRequest", 4, {"group_id": "g", "member_id": "m"})
    assert content.endswith(b"\0")
    newer = content[:-1] + b"\2" + b"\x07\3abc" + b"\x90\x01\0"
    assert codec.decode("HeartbeatRequest", 4, newer) == codec.decode("HeartbeatRequest", 4, content)


def test_a_tagged_field_is_read_and_written() -> None:
    fields = {"finalized_features_epoch": 7, "zk_migration_ready": True}
    content = codec.encode("ApiVersionsResponse", 3, fields)
    read = codec.decode("ApiVersionsResponse", 3, content)
    assert (read["finalized_features_epoch"], read["zk_migration_ready"]) == (7, True)


def test_a_null_struct() -> None:
    content = codec.encode("ConsumerGroupHeartbeatResponse", 0, {})
    assert codec.decode("ConsumerGroupHeartbeatResponse", 0, content)["assignment"] is None
    topic = {"topic_id": UUID(int=5), "partitions": [1]}
    content = codec.encode("ConsumerGroupHeartbeatResponse", 0, {"assignment": {"topic_partitions": [topic]}})
    read = codec.decode("ConsumerGroupHeartbeatResponse", 0, content)
    assert read["assignment"] == {"topic_partitions": [topic]}


def test_the_first_part_of_an_answer_can_be_replaced() -> None:
    brokers = [{"node_id": 1, "host": "b", "port": 9, "rack": None}]
    topics = [{"name": "t", "partitions": [{"leader_id": 1}]}]
    content = codec.encode("MetadataResponse", 12, {"brokers": brokers, "topics": topics, "controller_id": 1})
    first, end = codec.decode_first("MetadataResponse", 12, content, "brokers")
    assert first["brokers"] == brokers
    first["brokers"][0]["port"] = 10_001
    changed = codec.encode_first("MetadataResponse", 12, first, "brokers") + content[end:]
    read = codec.decode("MetadataResponse", 12, changed)
    assert (read["brokers"][0]["port"], read["topics"][0]["name"], read["controller_id"]) == (10_001, "t", 1)


@pytest.mark.parametrize("version", [3, 4])
def test_a_header_goes_before_its_request(version: int) -> None:
    header = Header(12, version, 77, "client")
    begin = codec.encode_header(header)
    assert codec.decode_header(begin + b"rest") == (header, len(begin))


def test_the_answer_to_api_versions_never_has_tagged_fields_in_its_header() -> None:
    assert codec.answer_header(18, 4, 5) == b"\0\0\0\5"
    assert codec.answer_header(12, 4, 5) == b"\0\0\0\5\0"
    assert codec.answer_body(12, 4, b"\0\0\0\5\1\0\1xrest") == 8


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"group_id": None}, "null in a field that cannot be null"),
        ({"group_id": "g" * 40_000}, "too long for this version"),
        ({"generation_id": 2**31}, "cannot be written"),
        ({"generation_id": "3"}, "cannot be written"),
    ],
)
def test_what_cannot_be_written_is_an_error(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(FrameError, match=reason):
        codec.encode("HeartbeatRequest", 3, fields)


def test_a_text_has_a_limit_in_every_version() -> None:
    """In `_text_reader` or `_length_writer`, have none if lengths are flexible: brokers end the gateway's own link."""
    longest = {"group_id": "g" * 32_767}
    content = codec.encode("HeartbeatRequest", 4, longest)
    assert codec.decode("HeartbeatRequest", 4, content)["group_id"] == longest["group_id"]
    begin, _group, rest = content.rpartition(longest["group_id"].encode())
    assert begin == b"\x80\x80\x02"
    with pytest.raises(FrameError, match="a text of 32768 bytes"):
        codec.decode("HeartbeatRequest", 4, b"\x81\x80\x02" + b"g" * 32_768 + rest)
    with pytest.raises(FrameError, match="too long"):
        codec.encode("HeartbeatRequest", 4, {"group_id": "g" * 32_768})


def test_a_version_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(FrameError, match="HeartbeatRequest has no version 99"):
        codec.decode("HeartbeatRequest", 99, b"")


def test_names_of_fields() -> None:
    names = ["GroupId", "IsrNodes", "SSLPort", "MaxWaitMs", "ZkMigrationReady", "Topics"]
    assert [snake_case(name) for name in names] == [
        "group_id", "isr_nodes", "ssl_port", "max_wait_ms", "zk_migration_ready", "topics",
    ]  # fmt: skip


def test_every_group_request_is_defined() -> None:
    assert {8, 9, 10, 11, 12, 13, 14, 15, 16, 28, 42, 47, 68, 69} <= set(apis())


@pytest.mark.parametrize("is_flat", [True, False])
def test_a_long_message_is_written_and_read_with_pauses(is_flat: bool) -> None:
    """In `Budget.note_read` or `Out.note_written`, count each array for itself, or never pause."""
    partitions = [{"partition_index": number} for number in range(2_500)]
    topics = [{"name": "t", "partitions": partitions}]
    if not is_flat:
        topics = [{"name": f"t{number}", "partitions": partitions[:1]} for number in range(1_250)]
    pauses: list[int] = []
    content = codec.encode("OffsetCommitRequest", 8, {"topics": topics}, pause=lambda: pauses.append(1))
    assert sum(pauses) == 2
    fields = codec.decode("OffsetCommitRequest", 8, content, pause=lambda: pauses.append(1))
    assert sum(pauses) == 4
    assert fields == codec.decode("OffsetCommitRequest", 8, content)
