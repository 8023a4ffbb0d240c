"""A broker of Kafka answers as the tables of the unit tests say: each request, in each state of a group.

The unit tests compare our groups with these tables, so together they say that ours answer as Kafka's. A group that is
being deleted cannot be made at a broker.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.integration.raw_requests import answer, request
from tests.support import classic_consumer
from tests.support.deadlines import WITHIN_S
from tests.support.waiting import wait_until
from tests.unit.group_protocol import test_classic_errors as classic
from tests.unit.group_protocol import test_consumer_errors as consumer
from zkrebalancer.gateway import translation
from zkrebalancer.group_protocol.error_codes import ErrorCode as E
from zkrebalancer.group_protocol.requests import ConsumerGroupHeartbeatRequest, Request
from zkrebalancer.localcluster.cluster import LocalCluster

pytestmark = pytest.mark.long  # a broker of its own, and hundreds of groups
SESSION_MS, REBALANCE_MS = 30_000, 60_000
WAITS_S = 0.3  # a request that is not answered within this time waits for others
METADATA = classic_consumer.subscription(frozenset())
PROTOCOLS = [{"name": "range", "metadata": METADATA}]
CLASSIC_STATES = classic.STATES[:-1]
CONSUMER_STATES = consumer.STATES[:-1]
# Since KIP-1251, a broker takes them for partitions that the member has had since then.
OF_EARLIER_EPOCHS = {"commit, earlier", "in transaction, earlier"}
PRODUCER = {"transactional_id": "x", "producer_id": 0, "producer_epoch": 0}
CHOSEN = {"protocol_type": "consumer", "protocol_name": "range"}
VERSIONS = {
    "JoinGroup": 5, "SyncGroup": 5, "Heartbeat": 4, "LeaveGroup": 5, "OffsetCommit": 9, "TxnOffsetCommit": 3,
    "OffsetFetch": 9, "OffsetDelete": 0, "ConsumerGroupHeartbeat": 1, "DescribeGroups": 5,
}  # fmt: skip
Fields = dict[str, Any]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[tuple[str, int]]:
    """Start a broker and return its address."""
    properties = {
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": "1",
        "transaction.partition.verification.enable": "false",  # else a transaction that does not exist is refused first
        "group.consumer.assignment.interval.ms": "0",  # or groups wait for up to a second, "Assigning", a state of 4.4
    }
    with LocalCluster(chroot="/codes", broker="kafka-4", kafka_properties=properties) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic("t", 4, 1)])["t"].result(WITHIN_S)
        host, _, port = cluster.bootstrap.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=WITHIN_S) as wire:

            def is_coordinator() -> bool:
                """Whether it serves groups; the first one who asks makes it create a topic for that."""
                wire.sendall(request("FindCoordinator", 3, {"key": "g"}))
                answer("FindCoordinator", 3, wire)
                wire.sendall(request("Heartbeat", 4, {"group_id": "g", "member_id": "m"}))
                return bool(answer("Heartbeat", 4, wire)["error_code"] == E.UNKNOWN_MEMBER_ID)

            wait_until(is_coordinator, "the broker coordinates no groups")
        yield host, int(port)


class Broker:
    """A broker, as somebody sees it who writes each request by hand."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._open = ExitStack()
        self.group = f"g{next(_numbers)}"

    def close(self) -> None:
        self._open.close()

    def send(self, name: str, fields: Fields, version: int | None = None) -> socket.socket:
        """Send a request on a connection of its own."""
        wire = self._open.enter_context(socket.create_connection(self._address, timeout=WITHIN_S))
        wire.sendall(request(name, VERSIONS[name] if version is None else version, {"group_id": self.group, **fields}))
        return wire

    def ask(self, name: str, fields: Fields, version: int | None = None) -> Fields:
        wire = self.send(name, fields, version)
        return answer(name, VERSIONS[name] if version is None else version, wire)

    def state(self) -> str:
        (group,) = self.ask("DescribeGroups", {"groups": [self.group]})["groups"]
        return str(group["group_state"])


# ---- classic groups


def joining(member_id: str = "", instance: str | None = None) -> Fields:
    return {
        "member_id": member_id,
        "group_instance_id": instance,
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": REBALANCE_MS,
        "protocol_type": "consumer",
        "protocols": PROTOCOLS,
    }


def joined(wire: socket.socket, version: int) -> Fields:
    found = answer("JoinGroup", version, wire)
    assert found["error_code"] == E.NONE
    return found


def classic_place(broker: Broker, state: str) -> classic.Place:
    """Bring a group to a state, as `classic.place` does."""
    there = classic.Place(None)  # type: ignore[arg-type]  # it has no coordinator of ours
    if state == "none":
        return there
    there.leader = joined(broker.send("JoinGroup", joining(), 3), 3)["member_id"]
    sync = {**CHOSEN, "generation_id": 1, "member_id": there.leader}
    given = [{"member_id": there.leader, "assignment": b"a"}]
    assert broker.ask("SyncGroup", {**sync, "assignments": given})["error_code"] == E.NONE
    waits = broker.send("JoinGroup", joining("", "pod"), 5)
    wait_until(lambda: broker.state() == "PreparingRebalance", "the follower does not join")
    again = broker.send("JoinGroup", joining(there.leader), 3)
    assert joined(again, 3)["leader"] == there.leader
    found = joined(waits, 5)
    there.follower, there.generation = found["member_id"], found["generation_id"]
    given = [{"member_id": name, "assignment": name.encode()} for name in (there.leader, there.follower)]
    own = {**CHOSEN, "generation_id": there.generation}
    assert broker.ask("SyncGroup", {**own, "member_id": there.leader, "assignments": given})["error_code"] == E.NONE
    follower = {**own, "member_id": there.follower, "group_instance_id": "pod"}
    assert broker.ask("SyncGroup", follower)["error_code"] == E.NONE
    if state == "Empty":
        members = [{"member_id": there.leader}, {"member_id": there.follower, "group_instance_id": "pod"}]
        assert broker.ask("LeaveGroup", {"members": members})["error_code"] == E.NONE
        there.generation += 1
    elif state != "Stable":
        newcomer = broker.send("JoinGroup", joining(), 3)
        wait_until(lambda: broker.state() == "PreparingRebalance", "the newcomer does not join")
        if state == "CompletingRebalance":
            others = [broker.send("JoinGroup", joining(there.leader), 3)]
            others.append(broker.send("JoinGroup", joining(there.follower, "pod"), 5))
            there.generation = joined(newcomer, 3)["generation_id"]
            joined(others[0], 3)
            joined(others[1], 5)
    assert broker.state() == state
    return there


def form_of(made: Request) -> tuple[str, int, Fields]:
    """Return the name, the version and the fields of a request of the tables."""
    name = type(made).__name__.removesuffix("Request")
    version, fields = VERSIONS[name], dict[str, Any](translation.fields_of(made))
    match name:
        case "JoinGroup":
            for protocol in fields["protocols"]:
                protocol["metadata"] = METADATA  # a broker of 4.1 never answers a consumer with unreadable ones
            if fields["group_instance_id"] is None:
                version = 3  # up to this one, a new member need not ask for its id first
        case "SyncGroup":
            fields |= {one: fields[one] or usual for one, usual in CHOSEN.items()}
        case "OffsetCommit" | "TxnOffsetCommit":
            fields |= PRODUCER
            fields["topics"] = [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 0}]}]
        case "OffsetFetch":
            fields = {"groups": [{**fields, "topics": [{"name": "t", "partition_indexes": [0]}]}]}
        case "OffsetDelete":
            fields["topics"] = [{"name": topic, "partitions": [{"partition_index": 0}]} for topic in fields["topics"]]
    return name, version, fields


def code_of(broker: Broker, made: Request) -> E | None:
    """Send a request of the tables, and return the code in its answer; None: it waits."""
    name, version, fields = form_of(made)
    for one in (fields, *fields.get("groups", ())):
        one["group_id"] = broker.group
    wire = broker.send(name, fields, version)
    wire.settimeout(WAITS_S)
    try:
        found = answer(name, version, wire)
    except TimeoutError:
        return None
    if name in {"OffsetCommit", "TxnOffsetCommit"}:
        (found,) = found["topics"][0]["partitions"]
    elif name == "OffsetFetch":
        (found,) = found["groups"]
    return E(found["error_code"])


@pytest.mark.parametrize("state", CLASSIC_STATES)
def test_a_newcomer_asks_for_its_id_first(broker: tuple[str, int], state: str) -> None:
    one = Broker(broker)
    classic_place(one, state)
    assert one.ask("JoinGroup", joining(), 4)["error_code"] == E.MEMBER_ID_REQUIRED
    one.close()


@pytest.mark.parametrize("state", CLASSIC_STATES)
def test_a_classic_group(broker: tuple[str, int], state: str) -> None:
    found, expected = dict[str, E | None](), dict[str, E | None]()
    for name, (make, codes) in classic.TABLE.items():
        one = Broker(broker)
        there = classic_place(one, state)
        found[name], expected[name] = code_of(one, make(there)), codes[CLASSIC_STATES.index(state)]
        if state in {"none", "Empty"} and expected[name] is None:
            expected[name] = E.NONE  # this broker waits for no others before the first join
        one.close()
    differ = {name: (code, expected[name]) for name, code in found.items() if code is not expected[name]}
    assert differ == {}


@pytest.mark.parametrize("state", CLASSIC_STATES)
def test_who_leaves_a_classic_group(broker: tuple[str, int], state: str) -> None:
    found, expected = dict[str, E](), dict[str, E]()
    for name, (codes, make) in classic.LEAVES.items():
        one = Broker(broker)
        who = make(classic_place(one, state))
        (left,) = one.ask("LeaveGroup", {"members": [translation.fields_of(who)]})["members"]
        found[name], expected[name] = E(left["error_code"]), codes[CLASSIC_STATES.index(state)]
        one.close()
    assert found == expected


# ---- groups of KIP-848


def reported(broker: Broker, member_id: str, epoch: int, **more: object) -> Fields:
    """Send a heartbeat that must be accepted, and return its answer."""
    found = broker.ask("ConsumerGroupHeartbeat", {"member_id": member_id, "member_epoch": epoch, **more})
    assert found["error_code"] == E.NONE, found
    return found


def consumer_place(broker: Broker, state: str) -> int:
    """Bring a group to a state, as `consumer.place` does; return the epoch of "a"."""
    if state == "none":
        return 1
    joins: Fields = {
        "rebalance_timeout_ms": REBALANCE_MS, "subscribed_topic_names": ["t"], "topic_partitions": [],
    }  # fmt: skip
    epochs = {"a": reported(broker, "a", 0, **joins)["member_epoch"]}
    epochs["b"] = reported(broker, "b", 0, instance_id="pod", **joins)["member_epoch"]
    owned: dict[str, list[Fields]] = {"a": [], "b": []}

    def is_settled() -> bool:
        for name, instance in (("a", None), ("b", "pod")):
            more = {"instance_id": instance, "topic_partitions": owned[name]}
            found = reported(broker, name, epochs[name], **more)
            epochs[name] = found["member_epoch"]
            if found["assignment"] is not None:
                owned[name] = found["assignment"]["topic_partitions"]
        sizes = [sum(len(topic["partitions"]) for topic in topics) for topics in owned.values()]
        return sizes == [2, 2] and described_state(broker) == "Stable"

    wait_until(is_settled, "the two do not share the topic")
    if state == "Reconciling":
        reported(broker, "c", 0, **joins)
    elif state == "Empty":
        reported(broker, "a", -1)
        reported(broker, "b", -1, instance_id="pod")
    assert described_state(broker) == state
    return int(epochs["a"])


def described_state(broker: Broker) -> str:
    wire = broker.send("ConsumerGroupDescribe", {"group_ids": [broker.group]}, 1)
    (group,) = answer("ConsumerGroupDescribe", 1, wire)["groups"]
    return str(group["group_state"])


@pytest.mark.parametrize("state", CONSUMER_STATES)
def test_a_group_of_kip_848(broker: tuple[str, int], state: str) -> None:
    found, expected = dict[str, E | None](), dict[str, E | None]()
    for name, (make, codes) in consumer.TABLE.items():
        one = Broker(broker)
        made = make(consumer_place(one, state))
        found[name], expected[name] = code_of(one, made), codes[CONSUMER_STATES.index(state)]
        if (
            state == "none"
            and isinstance(made, ConsumerGroupHeartbeatRequest)
            and expected[name] is E.UNKNOWN_MEMBER_ID
        ):
            expected[name] = E.GROUP_ID_NOT_FOUND  # ours differs, because this code ends Java's client
        if state in {"Reconciling", "Stable"} and name in OF_EARLIER_EPOCHS:
            expected[name] = E.NONE  # ours answers as Kafka did before KIP-1251
        one.close()
    differ = {name: (code, expected[name]) for name, code in found.items() if code is not expected[name]}
    assert differ == {}
