"""The swarm, with which we measure many groups: its members behave as agents do, and a small run comes to its end."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.benchmarks.swarm.lab import make_tree, new_chroot, running
from tests.benchmarks.swarm.members import Counted, SessionOfMany, wait_until
from tests.benchmarks.swarm.player import Cast
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.server import child_environment
from zkrebalancer.protocol import command, ownership, paths
from zkrebalancer.protocol.calls import Children, Content, Create, Delete, Get, ListChildren, Multi
from zkrebalancer.protocol.command import Cause, StartFetcher
from zkrebalancer.protocol.ownership import EvictionRecord
from zkrebalancer.runtime.zk import BlockingZk

GROUP, TOPIC = "swarm-0", "swarm-0"
DEADLINE_S = 30.0
RUN_DEADLINE_S = 240.0
SMALL = ("--groups", "6", "--members", "2", "--partitions", "4", "--joins", "1", "--rest", "0.2", "--renewals", "0.2")


def test_a_member_answers_a_command_and_leaves(shared_cluster: LocalCluster) -> None:
    """Fails if a member does not watch its commands, or acknowledges without what the command starts."""
    address = new_chroot(shared_cluster)
    make_tree(address, groups=1, topics=1, partitions=4)
    counted = Counted()
    session = SessionOfMany(address, counted)
    with BlockingZk(address) as zk:
        try:
            member = session.add(GROUP, TOPIC, "m")
            wait_until(lambda: counted.registered == 1, DEADLINE_S, "a registration")
            partitions = {(TOPIC, number): 0 for number in range(4)}
            start = StartFetcher("id", 1, 1, Cause("cause", "member-joined"), partitions)
            channel = paths.channel(GROUP, member.name)
            zk.perform(Multi((Create(f"{channel}/command-", command.encode(start), sequence=True),)))
            wait_until(lambda: counted.owned.get(GROUP) == 4, DEADLINE_S, "an acknowledgement")
            assert zk.perform(ListChildren(channel)) == Children(())
            record = zk.perform(Get(paths.owners(GROUP, member.name)))
            assert isinstance(record, Content)
            assert ownership.decode_owners(record.content) == ownership.OwnersRecord(1, "id", partitions)
            session.remove(member)
            wait_until(lambda: zk.perform(ListChildren(paths.ids(GROUP))) == Children(()), DEADLINE_S, "a leave")
            assert (counted.registered, counted.total, counted.faults) == (0, 0, [])
        finally:
            session.close()


def test_a_swarm_with_an_evicted_member_ends_with_an_error(shared_cluster: LocalCluster) -> None:
    """Fails if a member overlooks that its channel is gone: the figures would be those of fewer members."""
    address = new_chroot(shared_cluster)
    cast = Cast(address, range(1), members=2, partitions=4, topics=1, session_timeout_ms=10_000)
    with running(shared_cluster, cast, 1) as lab, BlockingZk(address) as zk:
        lab.players[0].order("fill", 0, 1)
        wait_until(lambda: lab.look()["registered"] == 2, DEADLINE_S, "two registrations")
        names = zk.perform(ListChildren(paths.ids(GROUP)))
        assert isinstance(names, Children)
        record = ownership.encode_eviction(EvictionRecord(1, {}, 1, 1))
        gone = tuple(Delete(path(GROUP, names.names[0])) for path in (paths.channel, paths.ids, paths.owners))
        zk.perform(Multi((*gone, Create(paths.evicted(GROUP, names.names[0]), record))))
        with pytest.raises(RuntimeError, match=f"the swarm is not what it should be: .*{names.names[0]} was evicted"):
            wait_until(lambda: not lab.look(), DEADLINE_S, "an error")


def measured(*options: str) -> dict[str, Any]:
    """Return the figures of a small swarm."""
    command_line = [sys.executable, "-m", "tests.benchmarks.swarm", "--session-timeout", "4", *SMALL, *options]
    ran = subprocess.run(
        command_line, capture_output=True, text=True, env=child_environment(), timeout=RUN_DEADLINE_S, check=False
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


@pytest.mark.long
def test_coordinators_of_a_swarm_share_its_groups() -> None:
    found = measured("--groups", "30", "--shards", "6", "--coordinators", "3")
    assert [one["shards"] for one in found["before the death"].values()] == [2, 2]
    assert [one["shards"] for one in found["after the death"].values()] == [3, 3]
    assert sum(one["groups"] for one in found["after the death"].values()) == 30
    assert found["meanwhile"]["join of another group ms"] < found["meanwhile"]["join of one of them ms"]


@pytest.mark.long
def test_a_small_swarm_is_measured_to_its_end() -> None:
    """Fails if a phase does not settle, such as with members that drop every second watch."""
    found = measured("--changes", "12")
    assert set(found) >= {"alone", "start of all", "rest", "beside all", "election", "restart of all", "death"}
    assert found["full"]["zk_ephemerals_count"] >= 6 * 2 * 2
    assert found["end"]["zk_ephemerals_count"] < found["full"]["zk_ephemerals_count"]
    assert len(found["mb after 12 changes"]) == 3
    assert found["commands of the restart"] >= 6
