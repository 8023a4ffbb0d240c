"""The version after this one: what only adds is understood, what means something else is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from zkrebalancer.protocol import cluster_nodes, command, ownership, registration, settings, weights
from zkrebalancer.protocol.cluster_nodes import CoordinatorAddress
from zkrebalancer.protocol.command import Cause, StartFetcher, StopFetcher
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.ownership import EvictionRecord, OwnersRecord, StaticMember
from zkrebalancer.protocol.registration import Registration
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.protocol.weights import Weights

PARTITIONS = {("orders", 0): 0, ("orders", 1): 1}
CAUSE = Cause("id", "member-joined")

Codec = tuple[bytes, Callable[[bytes], object]]
KINDS: dict[str, Codec] = {
    "registration": (registration.encode(Registration("static", {"t": 1}, "0", "c", "h", 9_000)), registration.decode),
    "owners": (ownership.encode_owners(OwnersRecord(1, "id", PARTITIONS)), ownership.decode_owners),
    "evicted": (ownership.encode_eviction(EvictionRecord(1, PARTITIONS, 5, 7)), ownership.decode_eviction),
    "static": (ownership.encode_static(StaticMember("c", frozenset(PARTITIONS), None)), ownership.decode_static),
    "static, of a consumer": (
        ownership.encode_static(StaticMember("c", frozenset(PARTITIONS), None)),
        ownership.decode_static_consumer,
    ),
    "group settings": (settings.encode(GroupSettings()), settings.decode),
    "weights": (weights.encode(Weights(1, {"t": [[1.0]]})), weights.decode),
    "coordinator": (
        cluster_nodes.encode_coordinator(CoordinatorAddress(1, "h", 2, None, "0")),
        cluster_nodes.decode_coordinator,
    ),
    "command, start": (command.encode(StartFetcher("id", 1, 1, CAUSE, PARTITIONS)), command.decode),
    "command, stop": (command.encode(StopFetcher("id", 1, 1, CAUSE, frozenset(PARTITIONS))), command.decode),
}


def changed(kind: str, **change: object) -> bytes:
    content = KINDS[kind][0]
    if kind.startswith("command"):
        packed: bytes = msgpack.packb({**msgpack.unpackb(content), **change})
        return packed
    document: dict[str, Any] = json.loads(content)
    return json.dumps({**document, **change}).encode()


@pytest.mark.parametrize("kind", KINDS)
def test_keys_that_the_next_version_adds_are_passed_over(kind: str) -> None:
    content, decode = KINDS[kind]
    assert decode(changed(kind, added={"some": ["thing"]}, another=1)) == decode(content)


@pytest.mark.parametrize("kind", KINDS)
def test_another_meaning_is_refused_by_its_version(kind: str) -> None:
    what = kind.partition(",")[0]
    with pytest.raises(NodeContentError, match=f"{what}: version 2 is newer than 1"):
        KINDS[kind][1](changed(kind, version=2))


def test_kafkas_own_nodes_count_their_versions_by_themselves() -> None:
    topic = cluster_nodes.decode_topic(b'{"version":9,"partitions":{"0":[1]},"added":1}', 1)
    assert topic.partitions == {0}
    assert cluster_nodes.decode_rack(b'{"version":9,"rack":"r","added":1}') == "r"


def test_a_level_that_the_next_version_adds_leaves_all_settings_in_force() -> None:
    """In `settings._levels`, refuse names: a leader of this version would never see the freeze."""
    known = settings.decode(changed("group settings", slo={"lag_s": 30, "added": 1}, frozen=True))
    assert (known.frozen, known.slo) == (True, {"lag_s": 30, "added": 1})
