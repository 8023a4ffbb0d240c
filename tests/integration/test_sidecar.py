"""`consumer-agent run --exec` with children that are slow, hang, die, fail or write invalid frames, on real servers."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.integration.child import ACK, Agent, configure
from tests.integration.fake_coordinator import SESSION_TIMEOUT_MS, WAIT_S, Stage, assert_stays
from tests.support.answers import get
from tests.support.waiting import wait_until
from zkrebalancer.localcluster.ports import HOST, free_ports
from zkrebalancer.protocol.calls import Delete, Done, Multi
from zkrebalancer.protocol.settings import GroupSettings

HOUR_MS = 3_600_000  # for things that must not cause waits


def test_a_slow_child_bounds_what_is_in_flight_and_the_agent_stays_alive(stage: Stage, tmp_path: Path) -> None:
    stage.produce([0, 1], 50)
    agent = Agent(stage, tmp_path, "held.append(place)", "--max-in-flight-records", "10")
    member = stage.wait_member()
    stage.wait_ack(stage.start(member, 0, 1))
    wait_until(lambda: len(agent.given(0) + agent.given(1)) == 10, "as many records as allowed")
    assert_stays(lambda: len(agent.given(0) + agent.given(1)) == 10, 1.5 * SESSION_TIMEOUT_MS / 1_000)
    assert stage.members() == (member,)
    given = {number: agent.given(number) for number in (0, 1)}
    stage.wait_ack(stage.stop(member, 0, 1))  # the child acknowledges before it answers the revoke
    for number, offsets in given.items():
        assert offsets == list(range(len(offsets)))
        assert (stage.offset(number) or 0) == len(offsets)
    agent.stop()


def test_bytes_bound_what_is_in_flight_too(stage: Stage, tmp_path: Path) -> None:
    stage.produce([0], 50)
    agent = Agent(stage, tmp_path, "held.append(place)", "--max-in-flight-bytes", "1000")
    stage.wait_ack(stage.start(stage.wait_member(), 0))
    wait_until(lambda: len(agent.given(0)) == 4, "as many bytes as allowed")  # 257 each, as the agent counts
    assert_stays(lambda: len(agent.given(0)) == 4, 0.5)
    agent.stop()


def test_what_a_dead_child_did_not_acknowledge_is_given_to_the_next_one_in_order(stage: Stage, tmp_path: Path) -> None:
    stage.produce([0], 30)
    act = f"if offset == 7 and not (here / 'died').exists():\n        (here / 'died').touch(); os._exit(3)\n    {ACK}"
    agent = Agent(stage, tmp_path, act)
    stage.wait_ack(stage.start(stage.wait_member(), 0))
    wait_until(lambda: stage.offset(0) == 30, "all records")
    given = agent.given(0)
    assert given == [*range(8), *range(7, 30)]
    errors = agent.stop()
    assert "the child ended with exit status 3" in errors
    assert "another one starts in 100 ms" in errors


def test_a_child_that_is_killed_is_replaced(stage: Stage, tmp_path: Path) -> None:
    stage.produce([0], 5)
    agent = Agent(stage, tmp_path, ACK)
    stage.wait_ack(stage.start(stage.wait_member(), 0))
    for _ in range(3):
        wait_until(lambda: stage.offset(0) == stage.produced[0], "all records")
        os.kill(agent.children()[-1], signal.SIGKILL)
        stage.produce([0], 5)
    wait_until(lambda: stage.offset(0) == 20, "the rest")
    assert agent.given(0) == list(range(20))
    assert "the child was killed by SIGKILL" in agent.stop()


def test_the_child_of_a_killed_agent_ends_and_another_agent_goes_on(stage: Stage, tmp_path: Path) -> None:
    stage.produce([0], 20)
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    agent = Agent(stage, folders[0], f"if offset < 5:\n        {ACK}")
    member = stage.wait_member()
    stage.wait_ack(stage.start(member, 0))
    wait_until(lambda: len(agent.given(0)) == 20 and stage.offset(0) == 5, "the records")
    agent.process.kill()
    agent.process.communicate()
    wait_until(lambda: agent.notes()[-1] == "end", "the child to end")
    successor = Agent(stage, folders[1], ACK)
    stage.wait_ack(stage.start(stage.wait_member(member), 0))
    wait_until(lambda: stage.offset(0) == 20, "the rest")
    assert successor.given(0) == list(range(5, 20))
    successor.stop()


def test_a_record_that_fails_becomes_a_dead_letter_in_a_file(stage: Stage, tmp_path: Path) -> None:
    stage.produce([0], 10)
    act = f'if offset == 3:\n        say({{"fail": {{**place, "reason": "out of milk"}}}})\n    else:\n        {ACK}'
    letters = tmp_path / "dead.jsonl"
    agent = Agent(stage, tmp_path, act, "--dead-letter", f"file:{letters}", "--max-failures", "2")
    stage.wait_ack(stage.start(stage.wait_member(), 0))
    wait_until(lambda: stage.offset(0) == 10, "all records")
    (letter,) = map(json.loads, letters.read_text().splitlines())
    assert (letter["record"]["offset"], letter["failures"], letter["reason"]) == (3, 2, "out of milk")
    assert letter["group"] == stage.group
    assert agent.given(0).count(3) == 2
    agent.stop()


def test_a_record_is_not_finished_if_its_dead_letter_cannot_be_written(stage: Stage, tmp_path: Path) -> None:
    stage.produce([0], 5)
    act = f'if offset == 3:\n        say({{"fail": {{**place, "reason": "out of milk"}}}})\n    else:\n        {ACK}'
    agent = Agent(stage, tmp_path, act, "--dead-letter", "file:/dev/full", "--max-failures", "1")
    stage.wait_ack(stage.start(stage.wait_member(), 0))
    assert "Error: /dev/full: a dead letter cannot be written: No space left on device" in agent.end(1)
    assert stage.offset(0) == 3
    assert stage.members() == ()


def test_a_record_that_kills_its_child_becomes_a_dead_letter_in_a_topic(stage: Stage, tmp_path: Path) -> None:
    """Only the record that a child had alone is blamed."""
    stage.produce([0, 1], 3)
    sent_ms = 1_700_000_000_000
    producer = Producer({"bootstrap.servers": stage.cluster.bootstrap})
    producer.produce(stage.topic, b"poison", b"key", 0, timestamp=sent_ms, headers=[("colour", b"red")])
    assert producer.flush(WAIT_S) == 0
    stage.produce([0], 6)
    stage.produce([1], 7)
    act = f'if (record["partition"], offset) == (0, 3):\n        os._exit(9)\n    {ACK}'
    dead = Stage(stage.cluster, partitions=1)
    agent = Agent(stage, tmp_path, act, "--dead-letter", f"topic:{dead.topic}", "--max-failures", "2")
    stage.wait_ack(stage.start(stage.wait_member(), 0, 1))
    wait_until(lambda: (stage.offset(0), stage.offset(1)) == (10, 10), "all records")
    (letter,) = read_topic(stage.cluster.bootstrap, dead.topic)
    dead.close()
    headers = dict(letter.headers() or [])
    assert (letter.key(), letter.value(), letter.timestamp()[1]) == (b"key", b"poison", sent_ms)
    assert headers["colour"] == b"red"
    assert headers["dead_letter.group"] == stage.group.encode()
    assert headers["dead_letter.failures"] == b"2"
    assert headers["dead_letter.topic"] == stage.topic.encode()
    assert (headers["dead_letter.partition"], headers["dead_letter.offset"]) == (b"0", b"3")
    assert headers["dead_letter.reason"] == b"the child ended with exit status 9"
    assert sorted(set(agent.given(0))) == list(range(10))
    agent.stop()


def test_a_record_as_large_as_the_broker_takes_becomes_a_dead_letter_whatever_the_reason(
    stage: Stage, tmp_path: Path
) -> None:
    producer = Producer({"bootstrap.servers": stage.cluster.bootstrap, "message.max.bytes": 2_000_000})
    producer.produce(stage.topic, b"x" * 1_040_000, partition=0)
    assert producer.flush(WAIT_S) == 0
    dead = Stage(stage.cluster, partitions=1)
    act = 'say({"fail": {**place, "reason": "out of milk " * 10_000}})'
    agent = Agent(stage, tmp_path, act, "--dead-letter", f"topic:{dead.topic}", "--max-failures", "1")
    stage.wait_ack(stage.start(stage.wait_member(), 0))
    wait_until(lambda: stage.offset(0) == 1, "the letter")
    (letter,) = read_topic(stage.cluster.bootstrap, dead.topic)
    dead.close()
    assert len(letter) == 1_040_000
    assert dict(letter.headers() or [])["dead_letter.reason"] == (b"out of milk " * 100)[:1_000]
    agent.stop()


def test_a_record_whose_dead_letter_topic_has_vanished_is_not_finished(stage: Stage, tmp_path: Path) -> None:
    stage.produce([0], 5)
    act = (
        f'if offset in (1, 6):\n        say({{"fail": {{**place, "reason": "out of milk"}}}})\n    else:\n        {ACK}'
    )
    dead = Stage(stage.cluster, partitions=1)
    agent = Agent(stage, tmp_path, act, "--dead-letter", f"topic:{dead.topic}", "--max-failures", "1")
    stage.wait_ack(stage.start(stage.wait_member(), 0))
    wait_until(lambda: stage.offset(0) == 5, "the first dead letter")
    admin = AdminClient({"bootstrap.servers": stage.cluster.bootstrap})  # kept: its end would end its request
    admin.delete_topics([dead.topic])[dead.topic].result(WAIT_S)
    dead.close()
    stage.produce([0], 5)
    assert f"Error: topic {dead.topic}: a dead letter cannot be written: " in agent.end(1)
    assert stage.offset(0) == 6
    assert stage.members() == ()


def read_topic(bootstrap: str, topic: str) -> list[Message]:
    """Return all messages of a topic with one partition, without a group, whose start takes longer."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "dead"})
    found: list[Message] = []
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        give_up_s = time.monotonic() + WAIT_S
        while not found and time.monotonic() < give_up_s:
            found += consumer.consume(100, timeout=1.0)
        return found + consumer.consume(100, timeout=0.5)
    finally:
        consumer.close()


def test_a_child_that_hangs_at_a_revoke_is_killed_and_the_rest_goes_on(stage: Stage, tmp_path: Path) -> None:
    stage.produce([0, 1], 5)
    (tmp_path / "hold-revoke").touch()
    agent = Agent(stage, tmp_path, ACK, "--revoke-timeout-ms", "300")
    member = stage.wait_member()
    stage.wait_ack(stage.start(member, 0, 1))
    wait_until(lambda: (stage.offset(0), stage.offset(1)) == (5, 5), "the records")
    stage.wait_ack(stage.stop(member, 0))
    stage.produce([1], 5)
    wait_until(lambda: stage.offset(1) == 10, "the other partition")
    assert len(agent.children()) == 2
    (tmp_path / "hold-revoke").unlink()
    assert "the child has not released revoked partitions within 0.3 s" in agent.stop()


def test_a_child_gets_nothing_of_a_lost_partition_until_it_has_answered_the_loss(stage: Stage, tmp_path: Path) -> None:
    """The child is slow: meanwhile the partition has come back."""
    stage.produce([0], 2)
    name = """f'go-{offset}-{record["generation"]}'"""
    act = f"wait_while(lambda: not (here / {name}).exists())\n    {ACK}"
    http = f"{HOST}:{free_ports(1)[0]}"
    agent = Agent(stage, tmp_path, act, "--http", http)
    member = stage.wait_member()
    stage.wait_ack(stage.start(member, 0))
    wait_until(lambda: agent.given(0) == [0], "the first record")
    stage.evict(member)
    again = stage.wait_member(member)
    stage.wait_ack(stage.start(again, 0))
    numbers = re.compile("^consumer_agent_(in_flight_records|lost_partitions_total){.*} (.*)$", re.MULTILINE)
    nothing_given = [("lost_partitions_total", "1.0"), ("in_flight_records", "0.0")]
    wait_until(lambda: numbers.findall(get(http, "metrics")[1]) == nothing_given, "the loss")
    assert_stays(lambda: numbers.findall(get(http, "metrics")[1]) == nothing_given, 0.3)
    for name in ("go-0-1", "go-1-1"):
        (tmp_path / name).touch()
    wait_until(lambda: agent.given(0) == [0, 1, 0], "the child to answer the loss and to get the first record again")
    assert agent.notes().count("revoke") == 1
    stop = stage.stop(again, 0)
    assert_stays(lambda: stage.is_pending(stop), 0.3)
    for name in ("go-0-2", "go-1-2"):
        (tmp_path / name).touch()
    stage.wait_ack(stop)
    assert agent.notes().count("revoke") == 2
    assert stage.offset(0) == 2
    agent.stop()


def test_a_revoke_that_is_taken_back_loses_nothing(stage: Stage, tmp_path: Path) -> None:
    stage.produce([0], 30)
    (tmp_path / "hold-revoke").touch()
    act = f"if offset < 5 or (here / 'go').exists():\n        {ACK}"
    agent = Agent(stage, tmp_path, act, "--max-in-flight-records", "12")
    member = stage.wait_member()
    stage.wait_ack(stage.start(member, 0))
    wait_until(lambda: len(agent.given(0)) == 17 and stage.offset(0) == 5, "the child to be full")
    path = stage.stop(member, 0)
    wait_until(lambda: "revoke" in agent.notes(), "the revoke")
    assert isinstance(stage.zk.perform(Multi((Delete(path),))), Done)
    (tmp_path / "go").touch()
    (tmp_path / "hold-revoke").unlink()
    wait_until(lambda: stage.offset(0) == 30, "all records, once more from where they were acknowledged")
    assert agent.given(0) == [*range(17), *range(5, 30)]
    agent.stop()


def test_a_stop_lets_the_child_finish_what_it_has(stage: Stage, tmp_path: Path) -> None:
    stage.produce([0], 200)
    agent = Agent(stage, tmp_path, f"time.sleep(0.01)\n    {ACK}", "--max-in-flight-records", "50")
    stage.wait_ack(stage.start(stage.wait_member(), 0))
    wait_until(lambda: len(agent.given(0)) >= 20, "some records")
    agent.stop()
    assert agent.notes()[-2:] == ["revoke", "end"]
    assert agent.given(0) == list(range(len(agent.given(0))))
    assert stage.offset(0) == len(agent.given(0)) < 200
    assert stage.members() == ()


def test_a_revoke_takes_no_longer_than_two_thirds_of_what_the_coordinator_waits(stage: Stage, tmp_path: Path) -> None:
    configure(stage, GroupSettings(rebalance_timeout_ms=600))
    stage.produce([0], 5)
    (tmp_path / "hold-revoke").touch()
    agent = Agent(stage, tmp_path, ACK, "--stop-timeout-ms", "100")
    member = stage.wait_member()
    stage.wait_ack(stage.start(member, 0))
    wait_until(lambda: stage.offset(0) == 5, "the records")
    stage.wait_ack(stage.stop(member, 0))
    (tmp_path / "hold-revoke").unlink()
    assert "the child has not released revoked partitions within 0.4 s" in agent.stop()


@pytest.mark.parametrize("is_revoked", [False, True], ids=["working", "revoking"])
def test_a_child_that_hangs_does_not_hold_up_sigterm(stage: Stage, tmp_path: Path, is_revoked: bool) -> None:
    stage.produce([0], 5)
    (tmp_path / "hold-revoke").touch()
    limits = (
        "--max-poll-interval-ms",
        f"{2 * HOUR_MS}",
        "--revoke-timeout-ms",
        f"{HOUR_MS - 1}",
        "--drain-timeout-ms",
        "300",
    )
    configure(stage, GroupSettings(rebalance_timeout_ms=HOUR_MS))
    agent = Agent(stage, tmp_path, "pass", *limits)
    member = stage.wait_member()
    stage.wait_ack(stage.start(member, 0))
    wait_until(lambda: len(agent.given(0)) == 5, "the records")
    if is_revoked:
        stage.stop(member, 0)
        wait_until(lambda: "revoke" in agent.notes(), "the revoke")
    assert "warning: stopped before the child had acknowledged 5 records" in agent.stop()
    assert stage.members() == ()
    assert stage.offset(0) in {None, 0}


def test_a_second_signal_waits_for_nobody(stage: Stage, tmp_path: Path) -> None:
    stage.produce([0], 5)
    (tmp_path / "hold-revoke").touch()
    agent = Agent(stage, tmp_path, "pass", "--drain-timeout-ms", f"{HOUR_MS}")
    stage.wait_ack(stage.start(stage.wait_member(), 0))
    wait_until(lambda: len(agent.given(0)) == 5, "the records")
    agent.signal(signal.SIGINT)
    wait_until(lambda: "revoke" in agent.notes(), "the drain")
    agent.signal(signal.SIGINT)
    assert "stopped before the child had acknowledged 5 records" in agent.end()
    assert stage.members() == ()
