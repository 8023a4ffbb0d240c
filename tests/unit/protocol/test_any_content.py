"""Decoding any node content gives either a usable value or a named error of one line.

Decoded values are encoded again elsewhere: an eviction record and a stop-fetcher repeat an ownership record, a path
contains an instance id. A value that cannot be encoded would crash the leader much later.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support import examples
from tests.unit.protocol import shapes
from zkrebalancer.gateway import layout
from zkrebalancer.protocol import (
    cluster_nodes,
    command,
    fields,
    history,
    obstacles,
    offset_copy,
    offset_lives,
    ownership,
    paths,
    registration,
    rights,
    weights,
)
from zkrebalancer.protocol import settings as group_settings
from zkrebalancer.protocol.command import Cause, StartFetcher, StopFetcher
from zkrebalancer.protocol.errors import CommandError, NodeContentError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.ownership import EvictionRecord, OwnersRecord
from zkrebalancer.protocol.registration import Registration
from zkrebalancer.protocol.rights import Principals
from zkrebalancer.region import documents

CAUSE = Cause("id", "member-joined")


def use_partitions(partitions: dict[TopicPartition, int]) -> None:
    """Encode partitions as the leader does, in a start and in a stop."""
    start = command.fitting_start("id", 1, 1, CAUSE, dict(list(partitions.items())[:50]))
    stop = command.fitting_stop("id", 1, 1, CAUSE, frozenset(list(partitions)[:50]))
    for sent in (start, stop):
        assert command.decode(command.encode(sent)) == sent
    for topic, _partition in partitions:
        assert "/" not in topic


def use_owners(record: OwnersRecord) -> None:
    use_partitions(dict(record.partitions))
    assert ownership.decode_owners(ownership.encode_owners(record)) == record


def use_eviction(record: EvictionRecord) -> None:
    use_partitions(dict(record.partitions))
    assert ownership.decode_eviction(ownership.encode_eviction(record)) == record


def use_registration(described: Registration) -> None:
    assert registration.decode(registration.encode(described)) == described
    if described.instance_id is not None:
        paths.validate_name("instance id", described.instance_id)
    if described.pattern == registration.STATIC:
        ownership.encode_eviction(EvictionRecord(1, {}, 0, described.lease_ms, tuple(described.subscription)))


def use_command(received: command.Command) -> None:
    assert isinstance(received, StartFetcher | StopFetcher)
    use_partitions(dict.fromkeys(received.partitions or (), 0))


def use_topic(topic: cluster_nodes.Topic) -> None:
    assert max(topic.partitions, default=0) < fields.MAX_PARTITIONS_PER_NODE, "strategies loop up to the highest one"
    assert topic.incarnation.encode()


def use_settings(group: group_settings.GroupSettings) -> None:
    assert group_settings.decode(group_settings.encode(group)) == group


def again(decode: Callable[[bytes], Any], encode: Callable[[Any], bytes]) -> Callable[[Any], object]:
    return lambda found: decode(encode(found))


Reader = tuple[Callable[[bytes], Any], Callable[[Any], object]]
READERS: dict[str, Reader] = {
    "owners": (ownership.decode_owners, use_owners),
    "evicted": (ownership.decode_eviction, use_eviction),
    "static": (ownership.decode_static, lambda member: use_partitions(dict.fromkeys(member.partitions, 0))),
    "ids": (registration.decode, use_registration),
    "settings": (group_settings.decode, use_settings),
    "coordinator": (cluster_nodes.decode_coordinator, cluster_nodes.encode_coordinator),
    "topic": (lambda content: cluster_nodes.decode_topic(content, 7), use_topic),
    "replicas": (cluster_nodes.decode_replicas, lambda replicas: sum(map(sum, replicas.values()))),
    "broker": (cluster_nodes.decode_rack, lambda rack: rack is None or rack.encode()),
    "counter": (lambda content: cluster_nodes.decode_counter("epoch", content), cluster_nodes.encode_counter),
    "command": (command.decode, use_command),
    "given": (ownership.decode_given, lambda given: use_partitions(dict.fromkeys(given, 0))),
    "mark": (cluster_nodes.decode_mark, str.encode),
    "obstacles": (obstacles.decode, lambda found: obstacles.encode(found[0], found[1][: obstacles.MAX_OBSTACLES])),
    "offset copy": (offset_copy.decode, lambda copy: offset_copy.decode(offset_copy.encode(copy))),
    "lives": (offset_lives.decode, lambda lives: offset_lives.decode(offset_lives.encode(lives))),
    "history": (history.decode, lambda found: history.decode(history.extended([], found.rebalances))),
    "weights": (weights.decode, lambda found: weights.decode(weights.encode(found))),
    "security": (rights.decode, lambda who: rights.decode(rights.encode(who))),
    "gateways": (layout.decode, lambda found: layout.decode(layout.encode(found))),
    **{
        f"region: {name}": (decode, again(decode, encode))
        for name, decode, encode in (
            ("settings", documents.decode_settings, documents.encode_settings),
            ("request", documents.decode_request, documents.encode_request),
            ("initial", documents.decode_initial, documents.encode_initial),
            ("order", documents.decode_order, documents.encode_order),
            ("contribution", documents.decode_contribution, documents.encode_contribution),
            ("merge", documents.decode_merge, documents.encode_merge),
        )
    },
    "a gateway": (lambda content: layout.decode_alive("1", content), lambda found: found[1][0].encode()),
}
LEGAL: dict[str, st.SearchStrategy[bytes]] = {
    "owners": shapes.OWNERS_RECORDS.map(ownership.encode_owners),
    "evicted": shapes.EVICTION_RECORDS.map(ownership.encode_eviction),
    "static": shapes.STATIC_MEMBERS.map(ownership.encode_static),
    "ids": shapes.registrations().map(registration.encode),
    "settings": shapes.SETTINGS.map(group_settings.encode),
    "coordinator": shapes.ADDRESSES.map(cluster_nodes.encode_coordinator),
    "security": st.just(rights.encode(Principals(("sasl:c",), ("x509:CN=o",), groups={"g": ("sasl:g",)}))),
    "gateways": st.just(layout.encode(layout.Layout({1: 0}, {"h:1": 2}))),
    "lives": st.dictionaries(st.integers(0, 9), st.integers(0, 9)).map(offset_lives.encode),
    "region: settings": st.just(documents.encode_settings(documents.Settings("r", "group", 10, 20))),
    "region: request": st.just(documents.encode_request(documents.Request("reset", "m", "why"))),
    "region: initial": st.just(documents.encode_initial(documents.Initial(3, "id"))),
    "region: order": st.just(
        documents.encode_order(
            documents.Order(4, 3, 2, 1, "why", documents.Round(4, "reset", ("m",)), {"m": 7}, ("m",), {"n": 8})
        )
    ),
    "region: contribution": st.just(
        documents.encode_contribution(documents.Contribution(4, 0, 1, "c-1", {("t", 0): 5}, {"t": "id"}))
    ),
    "region: merge": st.just(documents.encode_merge(documents.Merge(4, {("t", 0): 5}, {"t": "id"}, {"m": 4}))),
    "topic": st.just(b'{"version":3,"topic_id":"x","partitions":{"0":[1],"1":[2]}}'),
}


def read(kind: str, content: bytes) -> None:
    decode, use = READERS[kind]
    error_type = CommandError if kind == "command" else NodeContentError
    message = ""
    try:
        value = decode(content)
    except error_type as error:
        message = str(error)
    else:
        use(value)
    assert message.isprintable(), f"not one readable line: {message!r}"
    assert len(message) < 500, f"{len(message)} characters long"


@pytest.mark.parametrize("kind", READERS)
@given(content=st.binary(max_size=200))
@example(content=b"")
@example(content=b"\xff\xfe{\x00}\x00")
@example(content=b"\xef\xbb\xbf{}")
@example(content=b'{"version":1,"a":' + b"[" * 100_000)
@example(content=b"\x91" * 60_000)
@example(content=b'{"version":' + b"9" * 5_000 + b"}")
@example(content=b'{"version":' + b"9" * 4_000 + b"}")
@example(content=b"9" * 5_000)
@example(content="٣".encode())
@example(content=b"x" * 1_000_001)
def test_any_bytes(kind: str, content: bytes) -> None:
    read(kind, content)


@pytest.mark.parametrize("kind", READERS)
@given(value=shapes.ODD_VALUES)
def test_any_json(kind: str, value: object) -> None:
    read(kind, json.dumps(value).encode())


@given(value=shapes.ODD_VALUES)
def test_any_msgpack(value: object) -> None:
    try:
        content = msgpack.packb(value, unicode_errors="surrogatepass")
    except OverflowError:
        return  # msgpack has no such number
    read("command", content)


@pytest.mark.parametrize("kind", LEGAL)
@given(data=st.data())
@examples.times(3)
def test_a_document_with_one_odd_value(kind: str, data: st.DataObject) -> None:
    document = data.draw(shapes.distorted(LEGAL[kind].map(json.loads)))
    read(kind, json.dumps(document).encode())


@given(data=st.data())
@examples.times(3)
def test_a_command_with_one_odd_value(data: st.DataObject) -> None:
    documents = shapes.COMMANDS.map(lambda sent: msgpack.unpackb(command.encode(sent)))
    document = data.draw(shapes.distorted(documents))
    try:
        content = msgpack.packb(document, unicode_errors="surrogatepass")
    except OverflowError:
        return  # msgpack has no such number
    read("command", content)
