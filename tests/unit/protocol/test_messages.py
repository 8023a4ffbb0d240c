"""An unreadable node is described in one line: its kind, the key, and its value."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import pytest

from zkrebalancer.protocol import cluster_nodes, command, fields, ownership, registration, settings, weights
from zkrebalancer.protocol.addresses import servers_fault
from zkrebalancer.protocol.cluster_nodes import CoordinatorAddress
from zkrebalancer.protocol.command import Cause, StartFetcher
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.fields import MAX_ABSENT_PARTITIONS, Bound, topics_from_ranges
from zkrebalancer.protocol.ownership import EvictionRecord, OwnersRecord, StaticMember
from zkrebalancer.protocol.registration import Registration
from zkrebalancer.protocol.settings import GroupSettings

ODD = ["odd"]  # is nowhere allowed
OWNED = {("t", 0): 0, ("t", 1): 1}
REGISTRATION = Registration("static", {"t": 1}, "0", "c", "h", 10_000, "i", "r", 1.0, 5)
NODES: dict[str, tuple[Callable[[bytes], object], bytes]] = {
    "registration": (registration.decode, registration.encode(REGISTRATION)),
    "owners": (ownership.decode_owners, ownership.encode_owners(OwnersRecord(1, "c", OWNED))),
    "evicted": (ownership.decode_eviction, ownership.encode_eviction(EvictionRecord(1, OWNED, 2, 3, ("u",)))),
    "static": (ownership.decode_static, ownership.encode_static(StaticMember("c-1", frozenset(OWNED), 5))),
    "coordinator": (
        cluster_nodes.decode_coordinator,
        cluster_nodes.encode_coordinator(CoordinatorAddress(1, "h", 2, "h:1", "0")),
    ),
    "group settings": (settings.decode, settings.encode(GroupSettings())),
    "command": (command.decode, command.encode(StartFetcher("c", 1, 2, Cause("i", "k"), OWNED))),
}


def document_of(kind: str) -> dict[str, Any]:
    content = NODES[kind][1]
    found: dict[str, Any] = msgpack.unpackb(content) if kind == "command" else json.loads(content)
    return found


def fault_of(kind: str, document: object) -> str | None:
    try:
        NODES[kind][0](msgpack.packb(document) if kind == "command" else json.dumps(document).encode())
    except NodeContentError as error:
        return str(error)
    return None


NOT_READ = {  # a list of names is allowed, or nothing reads it
    ("evicted", "command_id"),
    ("evicted", "topics"),
    ("group settings", "drained_members"),
    ("group settings", "drained_hosts"),
}
# As messages call them:
UNNAMED = {"threads": "threads", "partitions": "topics", "former": "topics", "ownership_map": "threads"}


def keys() -> Iterator[tuple[str, str]]:
    for kind in NODES:
        for key in document_of(kind):
            if (kind, key) not in NOT_READ:
                yield kind, key


@pytest.mark.parametrize(("kind", "key"), list(keys()))
def test_a_value_of_another_kind_is_told_with_its_node_and_its_key(kind: str, key: str) -> None:
    fault = fault_of(kind, {**document_of(kind), key: ODD})

    assert fault is not None
    assert fault.startswith(f"{kind}: ")
    assert UNNAMED.get(key, key) in fault
    assert "\n" not in fault


@pytest.mark.parametrize("kind", NODES)
def test_what_is_no_document_at_all(kind: str) -> None:
    assert (fault_of(kind, ODD) or "").startswith(f"{kind}: must be a ")
    with pytest.raises(NodeContentError, match=f"^{kind}: "):
        NODES[kind][0](b"\xc1")


def test_a_partition_under_two_threads_is_named() -> None:
    threads = {"0": {"t": [[0, 3]]}, "1": {"u": [[0, 0]], "t": [[2, 5]]}}
    fault = fault_of("owners", {**document_of("owners"), "threads": threads})
    assert fault == "owners: ('t', 2) is listed under two consumer threads"


@pytest.mark.parametrize("text", ["1" * 200, "x" * 200])
def test_a_long_value_is_shortened(text: str) -> None:
    fault = fault_of("registration", {**document_of("registration"), "session_timeout_ms": text})
    assert fault is not None
    assert len(fault) < 150


@pytest.mark.parametrize(("first", "last", "absent"), [(0, 9, 0), (10, 10, 1), (9, 10, 1), (0, 19, 10), (15, 19, 5)])
def test_partitions_that_do_not_exist_are_counted(first: int, last: int, absent: int) -> None:
    bound = Bound({"t": 10}.__getitem__)
    assert len(topics_from_ranges("owners", {"t": [[first, last]]}, bound)) == last + 1 - first
    assert bound.absent == MAX_ABSENT_PARTITIONS - absent


def test_the_last_partition_that_need_not_exist_is_allowed_and_the_next_is_not() -> None:
    bound = Bound({"t": 10, "u": 0}.__getitem__, absent=3)
    topics_from_ranges("owners", {"t": [[10, 11]], "u": [[0, 0]]}, bound)
    with pytest.raises(NodeContentError, match="owners: u: names partition 1 of 0; "):
        topics_from_ranges("owners", {"u": [[1, 1]]}, bound)


def test_a_pause_that_is_over_names_nobody() -> None:
    paused = settings.paused(b'{"version":1,"later":2}', "me")
    assert json.loads(paused) == {"version": 1, "later": 2, "starts_paused": True, "paused_by": "me"}
    assert json.loads(settings.resumed(paused)) == {"version": 1, "later": 2, "starts_paused": False, "paused_by": ""}


@pytest.mark.parametrize("pair", [[True, 1], [0, True], [0.0, 1], [0, 1.0], ["0", 1], [0, "1"], [None, 1], [0, None]])
def test_both_ends_of_a_range_are_integers(pair: list[object]) -> None:
    with pytest.raises(NodeContentError, match=r"owners: t: a range must be \[first, last\], not "):
        topics_from_ranges("owners", {"t": [pair]})


@pytest.mark.parametrize("key", ["timestamp", "host", "client_id", "rack"])
def test_a_text_that_cannot_be_encoded_again_is_refused(key: str) -> None:
    fault = fault_of("registration", {**document_of("registration"), key: "a\ud800"})
    assert fault is not None
    assert fault.startswith("registration: not JSON (")


def test_partitions_of_all_threads_together_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "MAX_PARTITIONS_PER_NODE", 3)
    document = document_of("owners")
    assert fault_of("owners", {**document, "threads": {"0": {"t": [[0, 1]]}, "1": {"t": [[2, 2]]}}}) is None
    two_and_two = {"0": {"t": [[0, 1]]}, "1": {"t": [[2, 3]]}}
    assert fault_of("owners", {**document, "threads": two_and_two}) == "owners: more than 3 partitions"
    assert fault_of("owners", {**document, "threads": {"0": {"t": [[0, 2]]}}}) is None
    assert fault_of("owners", {**document, "threads": {"0": {"t": [[0, 3]]}}}) == "owners: t: more than 3 partitions"


def test_weights_of_what_is_no_topic() -> None:
    with pytest.raises(NodeContentError, match=r"^weights: 'a/b' is not a topic name$"):
        weights.decode(json.dumps({"version": 1, "slot_count": 1, "rates": {"a/b": [[1]]}}).encode())


def test_a_service_level_of_an_odd_name_is_named_in_one_line() -> None:
    """In `settings._levels`, show the name as it is: it could end the line, or command a terminal."""
    fault = fault_of("group settings", {**document_of("group settings"), "slo": {"a\n": None}})
    assert fault == "group settings: slo: 'a\\n' must be a number above 0, not None"


@pytest.mark.parametrize(
    ("servers", "is_valid"), [("h:1", True), ("h:65535", True), ("h:0", False), ("h:65536", False), ("h:1,i:0", False)]
)
def test_a_port_is_a_number_from_1_on(servers: str, is_valid: bool) -> None:
    assert (servers_fault(servers) is None) == is_valid


@pytest.mark.parametrize("kind", ["start", "stop"])
@pytest.mark.parametrize("limit_bytes", [90, 140, 200, 400])
def test_a_command_takes_as_many_partitions_as_fit_and_at_least_one(
    monkeypatch: pytest.MonkeyPatch, kind: str, limit_bytes: int
) -> None:
    """Halved until it fits: it takes more than a quarter of what would fit, and goes on until all are sent."""
    monkeypatch.setattr(command, "MAX_COMMAND_BYTES", limit_bytes)
    monkeypatch.setattr(command, "SURE_TO_FIT", 0)
    waiting = {(f"topic-{number:02d}", 0): 0 for number in range(9)}
    sent: list[int] = []
    while waiting:
        made = (
            command.fitting_start("c", 1, 2, Cause("i", "k"), waiting)
            if kind == "start"
            else command.fitting_stop("c", 1, 2, Cause("i", "k"), frozenset(waiting))
        )
        taken = sorted(made.partitions or ())
        assert taken == sorted(waiting)[: len(taken)]
        assert len(taken) == 1 or command.fits(made)
        sent.append(len(taken))
        for partition in taken:
            del waiting[partition]
    assert sum(sent) == 9
    assert sent[0] in {1, 2, 3, 5, 9}


@pytest.mark.parametrize("key", ["id", "kind"])
def test_a_cause_that_is_none(key: str) -> None:
    document = document_of("command")
    fault = fault_of("command", {**document, "cause": {**document["cause"], key: 5}})
    assert fault == f"cause: {key} must be a string, not 5"


@pytest.mark.parametrize("names", ["odd", [""], [1], ["x" * 301], ["x"] * 1_001])
def test_what_is_no_list_of_drained_names(names: object) -> None:
    fault = fault_of("group settings", {**document_of("group settings"), "drained_hosts": names})

    assert (fault or "").startswith("group settings: drained_hosts ")
    assert len(fault or "") < 200
