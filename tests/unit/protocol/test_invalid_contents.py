"""Decoding rejects contents that look harmless but would crash a leader or an agent later."""

from __future__ import annotations

import json

import msgpack
import pytest

from zkrebalancer.protocol import cluster_nodes, command, ownership, registration, settings
from zkrebalancer.protocol.command import Cause
from zkrebalancer.protocol.errors import CommandError, NodeContentError

REGISTRATION: dict[str, object] = {
    "version": 1,
    "pattern": "static",
    "subscription": {"orders": 2},
    "timestamp": "0",
    "client_id": "c",
    "host": "h",
    "session_timeout_ms": 10_000,
}
COMMAND: dict[str, object] = {
    "version": 1,
    "command_id": "id",
    "option": "start-fetcher",
    "coordinator_epoch": 3,
    "generation": 7,
    "cause": {"id": "id", "kind": "member-joined"},
    "ownership_map": {"0": {"orders": [[0, 2]]}},
}


def test_the_documents_that_the_tests_change_are_valid() -> None:
    registration.decode(json.dumps(REGISTRATION).encode())
    assert len(command.decode(msgpack.packb(COMMAND)).partitions or ()) == 3


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"instance_id": "a/b"}, id="instance id with a slash: node static/a/b cannot be created"),
        pytest.param({"instance_id": ""}, id="empty instance id"),
        pytest.param({"instance_id": ".."}, id="instance id that is a relative path"),
        pytest.param({"subscription": {"\ud800": 1}}, id="lone surrogate, which cannot be encoded again"),
        pytest.param({"subscription": {"a/b": 1}}, id="illegal topic name"),
        pytest.param({"subscription": {"t" * 250: 1}}, id="topic name too long"),
        pytest.param({"subscription": {"orders": True}}, id="threads: boolean"),
        pytest.param({"subscription": {"orders": 0}}, id="threads: none"),
        pytest.param({"subscription": {"orders": 1_001}}, id="threads: too many"),
        pytest.param({"pattern": "white_list", "subscription": {"^a": 1, "^b": 1}}, id="two expressions"),
        pytest.param({"capacity": 10**400}, id="capacity beyond a float"),
        pytest.param({"capacity": float("nan")}, id="capacity NaN"),
        pytest.param({"capacity": -1}, id="capacity negative"),
        pytest.param({"session_timeout_ms": 0}, id="session timeout 0"),
        pytest.param({"version": 2}, id="newer version"),
        pytest.param({"version": None}, id="no version"),
    ],
)
def test_registration(change: dict[str, object]) -> None:
    with pytest.raises(NodeContentError, match="registration"):
        registration.decode(json.dumps(REGISTRATION | change).encode())


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"ownership_map": {"0": {"t" * 70_000: [[0, 0]]}}}, id="command too large"),
        pytest.param({"ownership_map": {"0": {"t" * 250: [[0, 0]]}}}, id="topic name too long"),
        pytest.param({"ownership_map": {"0": {"../../x": [[0, 0]]}}}, id="path traversal in a topic name"),
        pytest.param({"ownership_map": {"0": {"t": [[0, 0]]}, "1": {"t": [[0, 0]]}}}, id="partition under two threads"),
        pytest.param({"ownership_map": {"0": {"t": [[0, 2**31 - 1]]}}}, id="range that would exhaust memory"),
        pytest.param({"ownership_map": {"-1": {"t": [[0, 0]]}}}, id="negative consumer thread"),
        pytest.param({"ownership_map": None}, id="start of everything"),
        pytest.param({"option": "pause-fetcher"}, id="unknown option"),
        pytest.param({"coordinator_epoch": "3"}, id="epoch as text"),
        pytest.param({"version": 2}, id="newer version"),
    ],
)
def test_command(change: dict[str, object]) -> None:
    with pytest.raises(CommandError):
        command.decode(msgpack.packb(COMMAND | change))


@pytest.mark.parametrize("extension", [b"\xd4\x05x", b"\xd6\xff\0\0\0\1"], ids=["type 5", "timestamp"])
def test_a_command_with_an_extension_type(extension: bytes) -> None:
    text = b"\xa6the id"
    content = msgpack.packb(COMMAND | {"command_id": "the id"})
    command.decode(content)
    with pytest.raises(CommandError):
        command.decode(content.replace(text, extension))


def test_a_stop_of_everything_needs_an_explicit_null_map() -> None:
    stop = COMMAND | {"option": "stop-fetcher", "ownership_map": None}
    assert command.decode(msgpack.packb(stop)).partitions is None
    del stop["ownership_map"]
    with pytest.raises(CommandError, match="ownership_map is missing"):
        command.decode(msgpack.packb(stop))


@pytest.mark.parametrize("threads", ['{"0":{"\\ud800":[[0,0]]}}', '{"0":{"a b":[[0,0]]}}', "null", "[]", '{"0":[]}'])
def test_owners(threads: str) -> None:
    with pytest.raises(NodeContentError):
        ownership.decode_owners(f'{{"version":1,"generation":1,"command_id":null,"threads":{threads}}}'.encode())


@pytest.mark.parametrize("ranges", ["[[0,1],[1,2]]", "[[3,2]]", "[[-1,0]]", "[[0]]", "[[0,true]]", "[0]", "{}"])
def test_ranges(ranges: str) -> None:
    content = f'{{"version":1,"consumer":"c","partitions":{{"t":{ranges}}},"deadline_ms":null}}'
    with pytest.raises(NodeContentError, match="static"):
        ownership.decode_static(content.encode())


def test_a_million_partitions_in_two_topics() -> None:
    content = b'{"version":1,"consumer":"c","partitions":{"t":[[0,999999]],"u":[[0,0]]}}'
    with pytest.raises(NodeContentError, match="more than 1000000 partitions"):
        ownership.decode_static(content)


@pytest.mark.parametrize("name", ["2147483647", "1000000", "-1", "1.0", "٣", ""])
def test_partition_numbers_of_a_topic(name: str) -> None:
    """A strategy loops up to the highest partition, so one huge number must not keep it busy for hours."""
    with pytest.raises(NodeContentError, match="is not a number below"):
        cluster_nodes.decode_topic(f'{{"partitions":{{"{name}":[1]}}}}'.encode(), 1)


def test_a_topic_without_an_id_is_identified_by_its_creation_zxid() -> None:
    assert cluster_nodes.decode_topic(b'{"partitions":{"0":[1]}}', 12).incarnation == "czxid-12"
    assert cluster_nodes.decode_topic(b'{"partitions":{"0":[1]},"topic_id":"x"}', 12).incarnation == "x czxid-12"


@pytest.mark.parametrize("content", [b"-1", b"1.5", b"", b"0x1", b"1_000", "٣".encode(), b"1" * 19, b"9" * 5_000])
def test_counter(content: bytes) -> None:
    with pytest.raises(NodeContentError, match="must be a decimal integer"):
        cluster_nodes.decode_counter("epoch", content)


@pytest.mark.parametrize(
    "change",
    [
        *('"mode":"lazy"', '"frozen":1', '"rebalance_timeout_ms":9', '"rebalance_timeout_ms":true', '"strategy":null'),
        '"options":' + '{"a":' * 20 + "[[]]" + "}" * 20,  # what shows them calls itself for each level
        *('"options":{"peak_cost":NaN}', '"options":{"pinned":{"t":[1e999]}}'),  # no page could show these
    ],
)
def test_settings(change: str) -> None:
    with pytest.raises(NodeContentError, match="group settings"):
        settings.decode(f'{{"version":1,{change}}}'.encode())


def test_encoding_rejects_a_command_that_is_too_large() -> None:
    partitions = {(f"{'topic' * 40}-{number}", 0): 0 for number in range(1_000)}
    with pytest.raises(CommandError, match="at most 65536"):
        command.encode(command.StartFetcher("id", 1, 1, Cause("id", "kind"), partitions))


@pytest.mark.parametrize("partitions", ['{"0":1}', '{"0":["1"]}', '{"0":[true]}', '{"x":[1]}', "[]"])
def test_replicas(partitions: str) -> None:
    with pytest.raises(NodeContentError, match="topic"):
        cluster_nodes.decode_replicas(f'{{"partitions":{partitions}}}'.encode())
    assert cluster_nodes.decode_replicas(b'{"partitions":{"1":[3,1],"0":[]}}') == {1: [3, 1], 0: []}


def test_rack_of_a_broker() -> None:
    assert cluster_nodes.decode_rack(b'{"rack":"r1"}') == "r1"
    assert cluster_nodes.decode_rack(b'{"host":"b1"}') is None
    with pytest.raises(NodeContentError, match="broker: rack must be a string"):
        cluster_nodes.decode_rack(b'{"rack":1}')
    with pytest.raises(NodeContentError, match=r"^broker: "):
        cluster_nodes.decode_rack(b"no JSON")


def test_a_topic_of_an_eviction_record_that_is_none() -> None:
    content = ownership.encode_eviction(ownership.EvictionRecord(1, {}, 2, 3, ("t",)))
    with pytest.raises(NodeContentError, match=r"^evicted: "):
        ownership.decode_eviction(content.replace(b'"t"', b'"a/b"'))
