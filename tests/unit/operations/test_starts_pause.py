"""Whether a group has consumers, when some have just ended."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from tests.support.groups import world_with
from tests.support.world import GROUP
from tests.unit.operations.model_client import ModelClient
from tests.unit.operations.test_move_offsets import client_of
from zkrebalancer.gateway.nodes import node_path
from zkrebalancer.group_protocol import stored
from zkrebalancer.group_protocol.placement import bucket_of
from zkrebalancer.group_protocol.stored import StoredGroup, StoredMember
from zkrebalancer.operations import starts_pause
from zkrebalancer.operations.group_lifecycle import GroupInUseError, read_nodes
from zkrebalancer.operations.kafka_offsets import KafkaOffsetsError
from zkrebalancer.operations.starts_pause import OffsetsRefusedError, refuse_consumers, starts_paused
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Call, Create, Delete, Multi, Refusal, Reply
from zkrebalancer.protocol.errors import ZooKeeperUnavailableError
from zkrebalancer.runtime.zk import BlockingZk

LEFT_BEHIND = f"{paths.owners(GROUP)}/c-1"
MEMBER = StoredMember("app-1", None, "app", "/10.0.0.1", 10_000, 60_000, (), b"")
AT_GATEWAY = StoredGroup(3, "consumer", "range", "app-1", is_assigned=True, members=(MEMBER,))


def test_what_an_ended_consumer_leaves_behind_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the wait, a command right after a consumer's end asks to stop that consumer."""
    world = world_with()
    world.zk.perform(Multi((Create(LEFT_BEHIND),)))
    waits: list[float] = []

    def clean_up(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            world.zk.perform(Multi((Delete(LEFT_BEHIND),)))

    monkeypatch.setattr(starts_pause, "gevent", SimpleNamespace(sleep=clean_up))
    refuse_consumers(client_of(world), GROUP)
    assert len(waits) == 2


def test_a_consumer_that_lives_is_refused_at_once_and_what_stays_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_with()
    world.zk.perform(Multi((Create(LEFT_BEHIND),)))
    now_s = [0.0]

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    monkeypatch.setattr(starts_pause, "gevent", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(starts_pause, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    with pytest.raises(OffsetsRefusedError, match=r"consumers \(c-1\); stop them first"):
        refuse_consumers(client_of(world), GROUP)
    assert now_s[0] > starts_pause.CLEANUP_TIMEOUT_S
    waited_s = now_s[0]
    world.zk.perform(Multi((Create(f"{paths.ids(GROUP)}/c-2"),)))
    with pytest.raises(OffsetsRefusedError, match=r"c-2"):
        refuse_consumers(client_of(world), GROUP)
    assert now_s[0] == waited_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let sleeping take no time; return the seconds that have passed."""
    now_s = [0.0]

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    monkeypatch.setattr(starts_pause, "gevent", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(starts_pause, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    return now_s


def test_the_channel_of_a_dead_consumer_keeps_no_command_from_a_group_without_a_coordinator(clock: list[float]) -> None:
    """In `refuse_consumers`, count it as a consumer. Nobody can stop it, so a large group could not be deleted."""
    world = world_with()
    world.kill_coordinator(world.leader())
    channel = paths.channel(GROUP, "c-1")
    world.zk.perform(Multi((Create(channel), Create(f"{channel}/command-0000000000"))))
    refuse_consumers(client_of(world), GROUP)
    assert clock[0] > starts_pause.CLEANUP_TIMEOUT_S  # it waits for a leader, which might remove it


@pytest.mark.usefixtures("clock")
def test_a_lease_that_lasts_is_not_called_a_consumer_to_stop() -> None:
    world = world_with()
    world.kill_coordinator(world.leader())
    world.zk.perform(Multi((Create(paths.evicted(GROUP, "c-1")),)))
    with pytest.raises(OffsetsRefusedError, match=r"has evicted consumers \(c-1\): their leases may not be over"):
        refuse_consumers(client_of(world), GROUP)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("is_served", [True, False])
def test_members_at_a_gateway_are_consumers(*, is_served: bool) -> None:
    """In `refuse_consumers`, look at agents only: offsets are reset while clients read on, and then commit others."""
    world = world_with()
    node, client = node_path(GROUP), ModelClient(world.zk)
    client.create(node, stored.to_bytes(AT_GATEWAY))
    if is_served:
        client.create(f"{paths.BUCKET_OWNERS}/{bucket_of(GROUP)}")
    text = r"group g has members at a gateway \(app on /10\.0\.0\.1\); stop them first"
    unserved = rf"; no gateway serves them now: start one, or delete {node} if none is used any more"
    wanted = rf"^{text}{'' if is_served else unserved}$"
    zk = cast("BlockingZk", client)
    with pytest.raises(OffsetsRefusedError, match=wanted):
        refuse_consumers(zk, GROUP)
    with pytest.raises(GroupInUseError, match=wanted):
        read_nodes(zk, GROUP)
    client.set(node, b"unreadable")
    with pytest.raises(OffsetsRefusedError, match=r"may have members at a gateway: .* delete this node"):
        refuse_consumers(zk, GROUP)
    client.set(node, stored.to_bytes(replace(AT_GATEWAY, members=())))
    refuse_consumers(zk, GROUP)
    read_nodes(zk, GROUP)


@pytest.mark.usefixtures("clock")
def test_members_of_a_region_are_members_of_the_group() -> None:
    """In `members_of_region`, return nothing: those of a `ForcedRegion` have no other node, and lose their state."""
    world = world_with()
    region, zk = world.zk.open(), client_of(world)
    members = paths.region(GROUP, "members")
    world.zk.perform(Multi((Create(paths.region(GROUP)), Create(members), Create(f"{members}/copied"))))
    refuse_consumers(zk, GROUP)
    read_nodes(zk, GROUP)
    world.zk.perform(Multi((Create(f"{members}/m", ephemeral=True),)), region.session_id)
    wanted = r"^group g has members of a region \(m\); stop them first$"
    with pytest.raises(OffsetsRefusedError, match=wanted):
        refuse_consumers(client_of(world, 1_000), GROUP)
    with pytest.raises(GroupInUseError, match=wanted):
        read_nodes(zk, GROUP)


def test_a_member_of_a_region_whose_second_session_ends_later_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `refuse_consumers`, refuse it at once: a command right after its end asks to stop a process that is gone."""
    world = world_with()
    region, members = world.zk.open(), paths.region(GROUP, "members")
    nodes = (Create(paths.region(GROUP)), Create(members), Create(f"{members}/m", ephemeral=True))
    world.zk.perform(Multi(nodes), region.session_id)
    ends: list[float] = []

    def end(seconds: float) -> None:
        ends.append(seconds)
        world.zk.expire(region)

    monkeypatch.setattr(starts_pause, "gevent", SimpleNamespace(sleep=end))
    refuse_consumers(client_of(world), GROUP)
    assert len(ends) == 1


class Breaking(ModelClient):
    """Its connection may break."""

    is_broken = False

    def perform(self, call: Call, expected: Collection[Refusal] = ()) -> Reply:
        if self.is_broken:
            raise ZooKeeperUnavailableError("the connection to ZooKeeper broke")
        return super().perform(call, expected)


def test_why_nothing_was_written_is_told_though_the_pause_cannot_be_ended_either() -> None:
    """In `starts_paused`, end the pause in `finally`."""
    client = Breaking(world_with().zk)

    def fail() -> None:
        client.is_broken = True
        raise KafkaOffsetsError("no answer from Kafka")

    with pytest.raises(KafkaOffsetsError, match="no answer"), starts_paused(cast("BlockingZk", client), GROUP, "reset"):
        fail()
    client.is_broken = False
    with pytest.raises(ZooKeeperUnavailableError), starts_paused(cast("BlockingZk", client), GROUP, "reset"):
        client.is_broken = True
