"""The consumer agent on a real ZooKeeper and a real Kafka, with a scripted coordinator."""

from __future__ import annotations

import base64
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from consumer_agent import CommitFailedError, Consumer, ConsumerStateError, KafkaUnavailableError
from consumer_agent.kafka import topics
from consumer_agent.membership.state_machine import MachineSettings
from consumer_agent.runtime.clock import now_ms
from tests.integration.fake_coordinator import SESSION_TIMEOUT_MS, WAIT_S, Application, Stage, assert_stays
from tests.support.waiting import wait_until
from zkrebalancer.localcluster import faults
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.ports import HOST, free_ports
from zkrebalancer.protocol import calls, paths
from zkrebalancer.protocol.command import MAX_COMMAND_BYTES
from zkrebalancer.protocol.errors import ZooKeeperUnavailableError

AGENT = [sys.executable, "-m", "consumer_agent.sidecar.cli", "run"]


def read_events(directory: Path) -> list[dict[str, object]]:
    lines = [line for path in directory.glob("*.jsonl") for line in path.read_text().splitlines()]
    return sorted((json.loads(line) for line in lines), key=lambda event: event["mono_us"])


def expire_session(application: Application, stage: Stage) -> None:
    client = application.consumer._frontend.machine_thread._client  # type: ignore[union-attr]
    credentials = client.credentials if client is not None else None
    assert credentials is not None
    faults.expire_session(stage.cluster.zookeeper, *credentials)


# ---- start, deliver, stop


def test_start_deliver_stop(stage: Stage, tmp_path: Path) -> None:
    stage.produce(range(2), 100)
    with Application(stage, events_directory=tmp_path).start() as application:
        member = stage.wait_member()
        assert stage.owners(member).partitions == {}  # type: ignore[union-attr]
        stage.wait_ack(stage.start(member, 0, 1))
        assert set(stage.owners(member).partitions) == stage.of(0, 1)  # type: ignore[union-attr]
        wait_until(lambda: len(application.records) == 200, "all records")
        stage.wait_ack(stage.stop(member, 0))
        assert set(stage.owners(member).partitions) == stage.of(1)  # type: ignore[union-attr]
        assert stage.offset(0) == 100
        stage.produce(range(2), 50)
        wait_until(lambda: len(application.offsets(1)) == 150, "the records of what is still owned")
    assert application.offsets(0) == list(range(100))
    assert application.offsets(1) == list(range(150))
    assert {record.generation for record in application.records} == {1}
    assert application.told == [("assign", sorted(stage.of(0, 1)))]
    assert stage.offset(1) == 150
    events = read_events(tmp_path)
    kinds = [event["kind"] for event in events]
    assert kinds[0] == "fetcher_started"
    assert kinds[-1] == "committed" or kinds[-2:] == ["fetcher_stopped", "committed"]
    (revoked,) = [event for event in events if event.get("reason") == "revoked"]
    assert revoked["partitions"] == [0]
    assert revoked["positions"] == [100]
    after = events[events.index(revoked) :]
    assert [event for event in after if event["kind"] == "delivered" and event["partition"] == 0] == []
    (closed,) = [event for event in events if event.get("reason") == "closed"]
    assert closed["positions"] == [150]


def test_latest_begins_at_the_end(stage: Stage) -> None:
    stage.produce([0], 30)
    with Application(stage, auto_offset_reset="latest").start() as application:
        stage.wait_ack(stage.start(stage.wait_member(), 0))
        stage.produce([0], 5)
        wait_until(lambda: application.offsets(0) == [30, 31, 32, 33, 34], "the new records only")


def test_a_stored_offset_that_is_out_of_range_is_reset(stage: Stage) -> None:
    stage.produce([0], 10)
    with Application(stage).start() as application:
        member = stage.wait_member()
        topic = calls.Create(paths.offsets(stage.group, stage.topic))
        partition = calls.Create(paths.offsets(stage.group, stage.topic, 0), b"1000000")
        assert isinstance(stage.zk.perform(calls.Multi((topic, partition))), calls.Done)
        stage.wait_ack(stage.start(member, 0))
        wait_until(lambda: application.offsets(0) == list(range(10)), "all records from the beginning")


def test_partitions_that_come_and_go_lose_and_double_nothing(stage: Stage) -> None:
    """Stop and start under load, so that messages are in flight at every stage."""
    with Application(stage, max_poll_records=7).start() as application:
        member = stage.wait_member()
        stage.wait_ack(stage.start(member, 0, 1, 2, 3))
        for turn in range(30):
            stage.produce(range(4), 40)
            stage.wait_ack(stage.stop(member, turn % 4, (turn + 1) % 4))
            stage.wait_ack(stage.start(member, turn % 4, (turn + 1) % 4))
        wait_until(lambda: len(application.records) >= 4 * 30 * 40, "all records")
    for partition in range(4):
        assert application.offsets(partition) == list(range(30 * 40))


def test_a_partition_is_handed_over_without_a_gap(stage: Stage) -> None:
    with Application(stage, client_id="one").start() as one, Application(stage, client_id="two").start() as two:
        wait_until(lambda: len(stage.members()) == 2, "both consumers")
        first, second = sorted(stage.members())
        stage.wait_ack(stage.start(first, 0))
        for _turn in range(5):
            stage.produce([0], 200)
            stage.wait_ack(stage.stop(first, 0))
            stage.wait_ack(stage.start(second, 0))
            first, second = second, first
        wait_until(lambda: len(one.records) + len(two.records) >= 1_000, "all records")
    assert sorted(one.offsets(0) + two.offsets(0)) == list(range(1_000))
    assert one.offsets(0) == sorted(one.offsets(0))


# ---- the application's part


def test_a_slow_application_holds_the_stop_until_it_has_finished(stage: Stage) -> None:
    stage.produce([0], 10)
    with Application(stage).start() as application:
        member = stage.wait_member()
        application.hold()
        stage.wait_ack(stage.start(member, 0))  # a start does not need the application
        application.hold_after_a_batch()
        stop = stage.stop(member, 0)
        assert_stays(lambda: stage.is_pending(stop), 0.3)
        application.release()
        stage.wait_ack(stop)
        assert stage.offset(0) == len(application.offsets(0))


def test_a_blocked_application_keeps_its_session_and_its_partitions(stage: Stage) -> None:
    stage.produce([0], 10)
    with Application(stage).start() as application:
        member = stage.wait_member()
        stage.wait_ack(stage.start(member, 0))
        wait_until(lambda: len(application.records) == 10, "the records")
        application.hold()
        assert_stays(lambda: stage.members() == (member,), 1.5 * SESSION_TIMEOUT_MS / 1_000)
        stage.produce([0], 10)
        application.release()
        wait_until(lambda: application.offsets(0) == list(range(20)), "the new records")
    assert application.told == [("assign", sorted(stage.of(0)))]


def test_on_revoke_may_commit_and_what_is_not_committed_is_read_again(stage: Stage) -> None:
    stage.produce(range(2), 10)
    with Application(stage, enable_auto_commit=False).start(ask=True) as application:
        member = stage.wait_member()
        stage.wait_ack(stage.start(member, 0, 1))
        wait_until(lambda: len(application.records) == 20, "the records")
        stage.wait_ack(stage.stop(member, 0))
        assert stage.offset(0) is None or stage.offset(0) == 0  # nothing was committed
        application.on_revoke = application.consumer.commit
        stage.wait_ack(stage.stop(member, 1))
        assert stage.offset(1) == 10
        stage.wait_ack(stage.start(member, 0, 1))
        wait_until(lambda: application.offsets(0) == [*range(10), *range(10)], "the uncommitted records again")
        assert application.offsets(1) == list(range(10))
    assert [what for what, _ in application.told] == ["assign", "revoke", "revoke", "assign", "revoke"]


def test_a_cancelled_stop_goes_on_where_the_application_is(stage: Stage) -> None:
    stage.produce([0], 100)
    with Application(stage, max_poll_records=10).start(ask=True) as application:
        member = stage.wait_member()
        application.hold()
        stage.wait_ack(stage.start(member, 0))
        application.hold_after_a_batch()
        stop = stage.stop(member, 0)
        wait_until(lambda: application.consumer.assignment() == [], "the emission to end")
        assert isinstance(stage.zk.perform(calls.Multi((calls.Delete(stop),))), calls.Done)
        application.release()
        wait_until(lambda: application.offsets(0) == list(range(100)), "all records, once")
    own = sorted(stage.of(0))
    assert application.told == [("assign", own), ("revoke", own), ("assign", own), ("revoke", own)]


def test_close_leaves_nothing_behind_and_frees_the_partitions_at_once(stage: Stage) -> None:
    stage.produce([0], 10)
    application = Application(stage).start()
    member = stage.wait_member()
    stage.wait_ack(stage.start(member, 0))
    wait_until(lambda: len(application.records) == 10, "the records")
    application.end()
    for kind in ("ids", "owners", "channel"):
        assert stage.children(f"{paths.group(stage.group)}/{kind}") == ()
    assert stage.offset(0) == 10


def test_a_batch_that_failed_is_read_again(stage: Stage) -> None:
    stage.produce([0], 10)
    cluster = stage.cluster
    settings: dict[str, Any] = {"zookeeper": cluster.zookeeper, "bootstrap": cluster.bootstrap, "group": stage.group}

    def fail_at_the_first_batch() -> None:
        with Consumer(**settings) as consumer:
            consumer.subscribe([stage.topic])
            assert not consumer.poll(0)
            stage.start(stage.wait_member(), 0)
            for _batch in consumer:
                raise ValueError("the application fails")

    with pytest.raises(ValueError, match="the application fails"):
        fail_at_the_first_batch()
    assert stage.members() == ()
    assert stage.offset(0) in {None, 0}


def test_methods_outside_of_their_time_are_refused(stage: Stage) -> None:
    consumer = Consumer(zookeeper=stage.cluster.zookeeper, bootstrap=stage.cluster.bootstrap, group=stage.group)
    with pytest.raises(ConsumerStateError, match="subscribe"):
        consumer.poll(0)
    consumer.subscribe([stage.topic])
    with pytest.raises(ConsumerStateError):
        consumer.commit()
    consumer.close()
    with pytest.raises(ConsumerStateError, match="closed"):
        consumer.poll(0)


# ---- what the coordinator or the network may do to it


@pytest.mark.parametrize("poison", [b"\xc1 not msgpack", b"x" * (MAX_COMMAND_BYTES + 1)], ids=["garbage", "oversized"])
def test_poison_goes_into_quarantine_and_the_consumer_registers_anew(stage: Stage, poison: bytes) -> None:
    stage.produce([0], 10)
    with Application(stage).start() as application:
        member = stage.wait_member()
        stage.wait_ack(stage.start(member, 0))
        wait_until(lambda: len(application.records) == 10, "the records")
        stage.send(member, poison)
        successor = stage.wait_member(member)
        assert stage.owners(member) is None
        (digest,) = stage.children(paths.quarantine(stage.group))
        document = json.loads(stage.content(paths.quarantine(stage.group, digest)) or b"")
        assert base64.b64decode(document["content_base64"]) == poison
        wait_until(lambda: application.told[-1] == ("lost", sorted(stage.of(0))), "on_lost")
        stage.wait_ack(stage.start(successor, 1))


def test_an_evicted_consumer_is_told_and_comes_back_under_a_new_name(stage: Stage) -> None:
    stage.produce([0], 10)
    with Application(stage).start() as application:
        member = stage.wait_member()
        stage.wait_ack(stage.start(member, 0))
        wait_until(lambda: len(application.records) == 10, "the records")
        stage.evict(member)
        successor = stage.wait_member(member)
        assert application.told[-1] == ("lost", sorted(stage.of(0)))
        stage.wait_ack(stage.start(successor, 0))


def test_an_evicted_consumer_comes_back_only_when_its_application_polls(stage: Stage) -> None:
    with Application(stage).start() as application:
        member = stage.wait_member()
        stage.wait_ack(stage.start(member, 0))
        application.hold()
        stage.evict(member)
        assert_stays(lambda: stage.members() == (), SESSION_TIMEOUT_MS / 1_000)
        application.release()
        stage.wait_member(member)


def test_a_commit_after_an_eviction_fails(stage: Stage) -> None:
    stage.produce([0], 10)
    with Application(stage, enable_auto_commit=False).start() as application:
        member = stage.wait_member()
        application.hold()
        stage.wait_ack(stage.start(member, 0))
        application.hold_after_a_batch()
        stage.evict(member)
        with pytest.raises(CommitFailedError):
            application.consumer.commit()
        assert stage.offset(0) in {None, 0}


def test_an_expired_session_is_a_loss(stage: Stage) -> None:
    stage.produce([0], 10)
    with Application(stage).start() as application:
        member = stage.wait_member()
        stage.wait_ack(stage.start(member, 0))
        wait_until(lambda: len(application.records) == 10, "the records")
        expire_session(application, stage)
        successor = stage.wait_member(member)
        wait_until(lambda: application.told[-1] == ("lost", sorted(stage.of(0))), "on_lost")
        stage.wait_ack(stage.start(successor, 0))


def test_a_restart_of_zookeeper_loses_nothing(stage: Stage) -> None:
    stage.produce([0], 10)
    with Application(stage).start() as application:
        member = stage.wait_member()
        stage.wait_ack(stage.start(member, 0))
        wait_until(lambda: len(application.records) == 10, "the records")
        stage.zk.close()
        faults.restart_zookeeper(stage.cluster.zookeeper_servers[0])
        fresh = Stage.__new__(Stage)
        fresh.__dict__.update(stage.__dict__)
        stage.__dict__.update(
            Stage(stage.cluster).__dict__, topic=fresh.topic, group=fresh.group, produced=fresh.produced
        )
        stage.produce([0], 10)
        wait_until(lambda: application.offsets(0) == list(range(20)), "the new records")
        assert stage.members() == (member,)
        stage.wait_ack(stage.stop(member, 0))
        assert stage.offset(0) == 20
    assert application.told == [("assign", sorted(stage.of(0)))]


def test_without_zookeeper_nothing_is_emitted_after_the_lease_and_close_does_not_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("consumer_agent.consumer.CLOSE_TIMEOUT_S", 1.0)
    with LocalCluster() as own:
        stage = Stage(own)
        application = Application(stage).start()
        member = stage.wait_member()
        stage.wait_ack(stage.start(member, 0))
        stage.produce([0], 10)
        wait_until(lambda: len(application.records) == 10, "the records")
        machine_thread = application.consumer._frontend.machine_thread
        assert machine_thread is not None
        assert machine_thread._machine.member is not None
        emission = machine_thread._machine.member.emission
        stage.zk.close()
        faults.stop_zookeeper(own.zookeeper_servers[0])
        wait_until(lambda: emission.again_ms is None and now_ms() >= emission._until_ms, "the lease to end")
        count = len(application.records)
        stage.produce([0], 10)
        assert_stays(lambda: len(application.records) == count, 0.5)
        begun = time.monotonic()
        application.end()
        assert time.monotonic() - begun < WAIT_S
        stage._producer.close()


def test_no_kafka_at_the_first_connection_is_told_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer is still a member, and Kafka's client keeps trying."""
    monkeypatch.setattr(topics, "CONNECT_TIMEOUT_S", 0.5)
    nowhere = f"{HOST}:{free_ports(1)[0]}"
    with Consumer(zookeeper=stage.cluster.zookeeper, bootstrap=nowhere, group=stage.group) as consumer:
        consumer.subscribe([stage.topic])
        with pytest.raises(KafkaUnavailableError, match=f"^no Kafka broker answered at {nowhere}: .*refused"):
            consumer.poll(WAIT_S)
        assert not consumer.poll(0.2)
        stage.wait_member()
    assert stage.members() == ()


def test_no_zookeeper_is_an_error_of_poll(agent_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "consumer_agent.runtime.engine.MachineSettings", partial(MachineSettings, connect_timeout_ms=1_000)
    )
    with Consumer(zookeeper="127.0.0.1:1", bootstrap=agent_cluster.bootstrap, group="g") as consumer:
        consumer.subscribe(["t"])
        with pytest.raises(ZooKeeperUnavailableError, match=r"127\.0\.0\.1:1 "):
            consumer.poll(WAIT_S)
