"""The four points at which a coordinator of the classic protocol may fail: `kill -9`, then its successor.

Each point has a group of its own, so one gateway dies once, for all of them. Clients are raw connections. The
tests check their answers, and whether they have to rejoin.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.gateway_process import GatewayProcess
from tests.integration.raw_requests import answer, request
from tests.support.waiting import wait_until
from zkrebalancer.gateway.layout import BUCKETS
from zkrebalancer.gateway.nodes import node_name
from zkrebalancer.group_protocol import stored
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.placement import bucket_of
from zkrebalancer.group_protocol.stored import StoredGroup
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.ports import HOST
from zkrebalancer.protocol.calls import Content, Get
from zkrebalancer.runtime.zk import BlockingZk

WAIT_S = 30.0
SESSION_MS = 60_000  # nobody's session ends meanwhile
JOIN, SYNC, HEARTBEAT = ("JoinGroup", 3), ("SyncGroup", 2), ("Heartbeat", 2)
Kind = tuple[str, int]
Fields = dict[str, Any]


class Member:
    """A member, with a connection of its own, because its requests may have to wait for others'."""

    def __init__(self, gateway: GatewayProcess, group: str) -> None:
        self._gateway = gateway
        self.group = group
        self.member_id = ""
        self.generation = -1
        self.connect()

    def connect(self) -> None:
        self._wire = socket.create_connection((HOST, self._gateway.port), timeout=WAIT_S)

    def send(self, kind: Kind, **fields: object) -> None:
        name, version = kind
        self._wire.sendall(request(name, version, {"group_id": self.group, "member_id": self.member_id, **fields}))

    def hear(self, kind: Kind) -> Fields:
        return answer(*kind, self._wire)

    def close(self) -> None:
        self._wire.close()

    def send_join(self) -> None:
        timeouts = {"session_timeout_ms": SESSION_MS, "rebalance_timeout_ms": SESSION_MS}
        self.send(JOIN, protocol_type="consumer", protocols=[{"name": "range", "metadata": b"m"}], **timeouts)

    def hear_join(self) -> Fields:
        joined = self.hear(JOIN)
        assert joined["error_code"] == ErrorCode.NONE
        self.member_id, self.generation = joined["member_id"], joined["generation_id"]
        return joined

    def send_sync(self, shares: dict[str, bytes] | None = None) -> None:
        given = [{"member_id": name, "assignment": share} for name, share in (shares or {}).items()]
        self.send(SYNC, generation_id=self.generation, assignments=given)

    def hear_share(self) -> bytes:
        synced = self.hear(SYNC)
        assert synced["error_code"] == ErrorCode.NONE
        share: bytes = synced["assignment"]
        return share

    def heartbeat(self) -> int:
        self.send(HEARTBEAT, generation_id=self.generation)
        code: int = self.hear(HEARTBEAT)["error_code"]
        return code


class Pair:
    """A group of two: the one that leads, and the one that follows."""

    def __init__(self, gateway: GatewayProcess, group: str) -> None:
        """Let both join."""
        both = [Member(gateway, group) for _ in range(2)]
        for member in both:
            member.send_join()
        leader_ids = {member.hear_join()["leader"] for member in both}
        self.leader, self.follower = sorted(both, key=lambda member: member.member_id not in leader_ids)
        self.shares = {self.leader.member_id: b"leader's", self.follower.member_id: b"follower's"}

    def both(self) -> tuple[Member, Member]:
        return self.leader, self.follower

    def go_on(self) -> None:
        """Go on in the same generation: sync, and report."""
        self.follower.send_sync()
        self.leader.send_sync(self.shares)
        assert (self.leader.hear_share(), self.follower.hear_share()) == (b"leader's", b"follower's")
        assert [member.heartbeat() for member in self.both()] == [ErrorCode.NONE] * 2


@pytest.fixture
def gateway(shared_cluster: LocalCluster, folder: Path) -> Iterator[GatewayProcess]:
    """Start a gateway; its log may show nothing unexpected."""
    one = GatewayProcess(shared_cluster, folder, "--initial-rebalance-delay-ms", 1_000)
    one.start()
    yield one
    one.end()
    assert one.troubles() == []


def stored_group(cluster: LocalCluster, group: str) -> StoredGroup:
    with BlockingZk(cluster.zookeeper) as zk:
        content = zk.perform(Get(f"{BUCKETS}/{bucket_of(group)}/{node_name(group)}"))
    assert isinstance(content, Content)
    found = stored.from_bytes(content.content)
    assert isinstance(found, StoredGroup)
    return found


def test_a_coordinator_is_killed_at_each_of_the_four_points(
    shared_cluster: LocalCluster, gateway: GatewayProcess
) -> None:
    with socket.create_connection((HOST, gateway.port), timeout=WAIT_S) as client:

        def is_found() -> bool:
            client.sendall(request("FindCoordinator", 3, {"key": "unstored"}))
            return bool(answer("FindCoordinator", 3, client)["error_code"] == ErrorCode.NONE)

        wait_until(is_found, "the brokers have no coordinators")
    names = ("unstored", "generation", "waiting", "assigned")
    unstored, generation, waiting, assigned = pairs = [Pair(gateway, f"crash-{name}") for name in names]
    unstored.go_on()
    newcomer = Member(gateway, unstored.leader.group)
    newcomer.send_join()  # waits for the others to join again: nothing of this is stored
    wait_until(lambda: unstored.leader.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS, "no rebalance has begun")
    waiting.follower.send_sync()  # waits for what the leader assigns
    assigned.leader.send_sync(assigned.shares)
    assert assigned.leader.hear_share() == b"leader's"
    kept = [stored_group(shared_cluster, pair.leader.group) for pair in pairs]
    assert [one.generation_id for one in kept] == [pair.leader.generation for pair in pairs]
    assert [len(one.members) for one in kept] == [2] * len(pairs)
    assert [one.is_assigned for one in kept] == [True, False, False, True]

    gateway.kill()
    gateway.start()
    everybody = [*(member for pair in pairs for member in pair.both()), newcomer]
    for member in everybody:
        member.close()
        member.connect()

    # Before the generation was stored: the former one goes on until the newcomer repeats its join.
    assert [member.heartbeat() for member in unstored.both()] == [ErrorCode.NONE] * 2
    # After it, with some joins answered: who has no answer repeats its join, and gets the same generation.
    former = generation.follower.generation
    generation.follower.send_join()
    generation.follower.hear_join()
    assert generation.follower.generation == former
    generation.go_on()
    # Before the assignment was stored: both send SyncGroup again.
    waiting.go_on()
    # After it, with some answered: the others have their share at once, without the leader.
    assigned.follower.send_sync()
    assert assigned.follower.hear_share() == b"follower's"
    assert [member.heartbeat() for member in assigned.both()] == [ErrorCode.NONE] * 2

    newcomer.send_join()
    wait_until(lambda: unstored.follower.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS, "the newcomer is not heard")
    for member in unstored.both():
        member.send_join()
    for member in (*unstored.both(), newcomer):
        member.hear_join()
    assert {member.generation for member in (*unstored.both(), newcomer)} == {kept[0].generation_id + 1}
    for member in everybody:
        member.close()
