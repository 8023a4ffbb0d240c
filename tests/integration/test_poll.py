"""The records that a poll chooses, and an application that does not poll, on a real ZooKeeper and a real Kafka."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from consumer_agent import Batch, Consumer, TopicPartition
from tests.integration.fake_coordinator import (
    SESSION_TIMEOUT_MS,
    WAIT_S,
    Application,
    Stage,
    assert_stays,
)
from tests.support.waiting import wait_until
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.command import Cause, StartFetcher
from zkrebalancer.protocol.errors import ConfigurationError

HOT_RECORDS = 60_000  # more than a consumer retains
COLD_RECORDS = 10


def consumer_of(stage: Stage, *partitions: int, **settings: Any) -> Consumer:
    """Return a consumer that owns these partitions and has buffered as much of them as it may."""
    config: dict[str, Any] = {"client_id": "app", "session_timeout_ms": SESSION_TIMEOUT_MS, **settings}
    consumer = Consumer(
        zookeeper=stage.cluster.zookeeper, bootstrap=stage.cluster.bootstrap, group=stage.group, **config
    )
    consumer.subscribe([stage.topic])
    assert not consumer.poll(0)
    stage.wait_ack(stage.start(stage.wait_member(), *partitions))
    wait_until(lambda: retained(consumer) >= sum(stage.produced.values()), "all records to be fetched")
    return consumer


def retained(consumer: Consumer) -> int:
    with consumer._frontend.shared.lock:
        return consumer._frontend.shared.buffer.record_count


def counts(batch: Batch) -> Counter[int]:
    return Counter(record.partition for record in batch)


def test_a_poll_returns_no_more_than_its_limit_and_the_rest_later(stage: Stage) -> None:
    stage.produce(range(3), 100)
    with consumer_of(stage, 0, 1, 2) as consumer:
        with pytest.raises(ConfigurationError, match="max_records must be 1 to 100000, not -2, or -1 for"):
            consumer.poll(0, max_records=-2)
        assert len(consumer.poll(0, max_records=0)) == 0
        assert len(consumer.poll(0, max_records=7)) == 7
        assert sum(consumer.position().values()) == 7
        consumer.commit()
        assert sum(stage.offset(partition) or 0 for partition in range(3)) == 7
        assert len(consumer.poll(0, max_records=150)) == 150
        assert len(consumer.poll(0, max_records=-1)) == 300 - 157


def test_proportional_gives_every_partition_the_same(stage: Stage) -> None:
    stage.produce([0, 1], 100)
    stage.produce([2], 10)
    with consumer_of(stage, 0, 1, 2, poll_fairness="proportional") as consumer:
        assert counts(consumer.poll(0, max_records=150)) == {0: 70, 1: 70, 2: 10}


def test_what_overwhelms_the_others_is_paused_and_nothing_of_it_is_lost(stage: Stage) -> None:
    stage.produce([0], HOT_RECORDS)
    with Application(stage, prefetch="per_partition", max_poll_records=200).start() as application:
        member = stage.wait_member()
        application.hold()
        stage.wait_ack(stage.start(member, 0, 1))
        wait_until(lambda: application.consumer._frontend._fetcher.current._held_back, "the fetching to be paused")  # type: ignore[union-attr]
        stage.produce([1], COLD_RECORDS)
        application.release()
        wait_until(lambda: len(application.records) == HOT_RECORDS + COLD_RECORDS, "all records")
        assert application.offsets(0) == list(range(HOT_RECORDS))
        assert application.offsets(1) == list(range(COLD_RECORDS))
        assert application.records[-1].partition == 0  # the cold records have overtaken the others


def test_who_does_not_poll_gives_up_its_partitions_and_joins_again(
    stage: Stage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stage.produce([0], 30)
    with Application(stage, max_poll_interval_ms=3_000, max_poll_records=20, events_directory=tmp_path) as application:
        application.start(ask=True)
        member = stage.wait_member()
        application.hold()
        stage.wait_ack(stage.start(member, 0))
        application.hold_after_a_batch()
        wait_until(lambda: not stage.children(paths.channel(stage.group)), "the consumer to leave in good order")
        assert stage.members() == ()
        assert stage.offset(0) in {None, 0}  # the current batch does not count as finished
        assert application.told == [("assign", sorted(stage.of(0)))]
        application.release()
        again = stage.wait_member(member)
        assert application.told[1:] == [("lost", sorted(stage.of(0)))]
        stage.wait_ack(stage.start(again, 0))
        wait_until(lambda: len(application.records) == 50, "what was in hand, again, and the rest")
    assert application.offsets(0) == [*range(20), *range(30)]
    late = [record.message for record in caplog.records if "has not polled" in record.message]
    warned, gave_up = late[-2:]  # on a busy machine, the time before its first batch may have caused a warning too
    assert re.search(r"in [01]\.\d s", warned)
    assert gave_up.endswith(f"(max_poll_interval_ms is 3000); it is processing {stage.topic}/0 0-19")
    kinds = [json.loads(line) for path in tmp_path.glob("*.jsonl") for line in path.read_text().splitlines()]
    assert [event["gives_up"] for event in kinds if event["kind"] == "poll_late"][-2:] == [False, True]
    assert application.consumer.metrics()["longest_since_poll_ms"] >= 3_000


def test_a_handler_that_hangs_gives_up_all_partitions_and_the_consumer_waits_for_it(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """Others process its records by then; it rejoins when none of its handlers has any."""
    stage.produce([0, 1], 10)
    handled: list[tuple[int, list[int]]] = []
    lost: list[list[TopicPartition]] = []
    may_return = threading.Event()

    def handle(batch: Batch) -> None:
        handled.append((batch[0].partition, [record.offset for record in batch]))
        if batch[0].partition == 0:
            assert may_return.wait(WAIT_S)
        elif len(handled) > 2:
            raise KeyboardInterrupt

    def consume() -> None:
        settings: dict[str, Any] = {
            "max_poll_interval_ms": 1_500,
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            "group": stage.group,
        }
        servers: dict[str, Any] = {"zookeeper": stage.cluster.zookeeper, "bootstrap": stage.cluster.bootstrap}
        with Consumer(**servers, **settings) as consumer:
            consumer.subscribe([stage.topic], on_lost=lost.append)
            consumer.run(handle, threads=2)

    with ThreadPoolExecutor(1) as executor:
        consuming = executor.submit(consume)
        member = stage.wait_member()
        stage.wait_ack(start_in_threads(stage, member))
        wait_until(lambda: lost == [sorted(stage.of(0, 1))], "on_lost, although a handler hangs")
        assert stage.members() == ()
        assert [stage.offset(0) or 0, stage.offset(1)] == [0, 10]
        assert_stays(lambda: stage.members() == (), 0.5)
        may_return.set()
        again = stage.wait_member(member)
        stage.wait_ack(start_in_threads(stage, again))
        wait_until(lambda: (0, list(range(10))) in handled[2:], "what was in hand, again")
        stage.produce([1], 1)
        with pytest.raises(KeyboardInterrupt):
            consuming.result(WAIT_S)
    late = [record.message for record in caplog.records if "has not polled" in record.message]
    assert late[-1].endswith(f"(max_poll_interval_ms is 1500); it is processing {stage.topic}/0 0-9")


def start_in_threads(stage: Stage, member: str) -> str:
    """Start partition 0 in the consumer's thread 0, and partition 1 in thread 1."""
    stage.generation += 1
    cause, owned = Cause(f"cause-{stage.generation}", "test"), {(stage.topic, 0): 0, (stage.topic, 1): 1}
    return stage.command(member, StartFetcher(f"start-{stage.generation}", 1, stage.generation, cause, owned))
