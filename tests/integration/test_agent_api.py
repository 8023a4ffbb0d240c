"""Operations on partitions: seek, pause, read one by one, unsubscribe. The test plays the coordinator."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from consumer_agent import Batch, CommitFailedError, Consumer, ConsumerStateError, TopicPartition
from tests.integration.fake_coordinator import SESSION_TIMEOUT_MS, WAIT_S, Stage, assert_stays
from tests.support.waiting import wait_until
from zkrebalancer.observe.checker import check

BUFFERED = 50  # records of a full poll


@pytest.fixture
def consumer(stage: Stage) -> Iterator[Consumer]:
    """Make a consumer of the stage's group."""
    with new_consumer(stage) as consumer:
        yield consumer


def new_consumer(stage: Stage, **settings: Any) -> Consumer:
    servers: dict[str, Any] = {"zookeeper": stage.cluster.zookeeper, "bootstrap": stage.cluster.bootstrap}
    return Consumer(**servers, group=stage.group, session_timeout_ms=SESSION_TIMEOUT_MS, **settings)


def joined(stage: Stage, consumer: Consumer, *partitions: int) -> str:
    """Poll until the consumer is registered, and give it partitions; return its name."""
    consumer.poll(0)
    member = stage.wait_member()
    stage.wait_ack(stage.start(member, *partitions))
    return member


def read(consumer: Consumer, count: int) -> dict[int, list[int]]:
    """Poll until so many records were returned; return their offsets by partition."""
    offsets: dict[int, list[int]] = {}

    def is_enough() -> bool:
        for record in consumer.poll(0.05):
            offsets.setdefault(record.partition, []).append(record.offset)
        return sum(map(len, offsets.values())) >= count

    wait_until(is_enough, f"{count} records")
    return offsets


def test_on_assign_may_seek_before_the_first_record(stage: Stage, consumer: Consumer) -> None:
    stage.produce(range(2), 10)
    consumer.subscribe([stage.topic], on_assign=lambda assigned: consumer.seek(dict.fromkeys(assigned, 7)))
    joined(stage, consumer, 0, 1)
    assert read(consumer, 6) == {0: [7, 8, 9], 1: [7, 8, 9]}
    consumer.commit()
    assert [stage.offset(0), stage.offset(1)] == [10, 10]


@pytest.mark.parametrize("target", [3, 17])
def test_a_seek_drops_what_is_buffered_and_commits_follow(stage: Stage, target: int, tmp_path: Path) -> None:
    """Seek several partitions back and forth; a third one is not affected."""
    stage.produce(range(3), 20)
    with new_consumer(stage, max_poll_records=10, events_directory=tmp_path) as consumer:
        consumer.subscribe([stage.topic])
        joined(stage, consumer, 0, 1, 2)
        read(consumer, 30)  # of two or three partitions; the rest is buffered or in flight
        positions = consumer.position()
        again = sum(max(0, positions.get((stage.topic, number), 0) - target) for number in (0, 1))
        consumer.seek({(stage.topic, 0): target, (stage.topic, 1): target})
        left = 20 - positions[stage.topic, 2]
        offsets = read(consumer, left + 2 * (20 - target))
        assert offsets[0] == offsets[1] == list(range(target, 20))
        assert len(offsets.get(2, [])) == left
        consumer.seek({(stage.topic, 0): 5})
        consumer.commit()
        assert [stage.offset(p) for p in range(3)] == [5, 20, 20]
    verdict = check(tmp_path)  # records read again on the application's request are no fault
    assert (verdict.problems, verdict.duplicated_outside_crash, verdict.out_of_order) == ((), 0, 0)
    assert verdict.duplicated == again


def test_only_what_is_assigned_can_be_moved(stage: Stage, consumer: Consumer) -> None:
    consumer.subscribe([stage.topic])
    joined(stage, consumer, 0)
    stage.produce([0], 5)
    read(consumer, 5)
    with pytest.raises(ConsumerStateError, match=f"seek: {stage.topic}/1 is not assigned"):
        consumer.seek({(stage.topic, 0): 0, (stage.topic, 1): 0})
    assert consumer.position() == {(stage.topic, 0): 5}  # all or none
    for method in (consumer.pause, consumer.resume):
        with pytest.raises(ConsumerStateError, match="is not assigned"):
            method([(stage.topic, 1)])


def test_a_paused_partition_returns_nothing_until_it_is_resumed(stage: Stage, consumer: Consumer) -> None:
    stage.produce(range(2), 10)
    consumer.subscribe([stage.topic], on_assign=lambda _: consumer.pause([(stage.topic, 0)]))
    joined(stage, consumer, 0, 1)
    assert read(consumer, 10) == {1: list(range(10))}
    stage.produce(range(2), 10)
    assert read(consumer, 10) == {1: list(range(10, 20))}
    assert consumer.paused() == [(stage.topic, 0)]
    assert consumer.assignment() == sorted(stage.of(0, 1))
    assert consumer.metrics()["paused_partitions"] == 1
    assert consumer.generation() == dict.fromkeys(stage.of(0, 1), 1)
    consumer.resume([(stage.topic, 0)])
    assert read(consumer, 20) == {0: list(range(20))}
    assert consumer.paused() == []


def test_a_pause_keeps_what_is_buffered_and_lets_others_be_fetched(stage: Stage) -> None:
    """As many records of one partition as a consumer buffers, and it is paused; the other one is read to its end."""
    stage.produce([0], 3 * BUFFERED)
    with new_consumer(stage, max_poll_records=BUFFERED) as consumer:
        consumer.subscribe([stage.topic])
        joined(stage, consumer, 0, 1)
        first = {0: [0, 1, 2]}
        wait_until(lambda: consumer.metrics()["retained_records"] >= BUFFERED, "records to be buffered")
        assert {0: [record.offset for record in consumer.poll(0, max_records=3)]} == first
        kept = consumer.metrics()["retained_records"]
        consumer.pause([(stage.topic, 0)])
        assert consumer.metrics()["retained_records"] == kept > 0
        stage.produce([1], 2 * BUFFERED)
        assert read(consumer, 2 * BUFFERED) == {1: list(range(2 * BUFFERED))}
        assert consumer.metrics()["retained_records"] == kept
        consumer.resume([(stage.topic, 0)])
        assert [record.offset for record in consumer.poll(0, max_records=1)] == [3]  # at once, without a fetch
        assert read(consumer, 3 * BUFFERED - 4) == {0: list(range(4, 3 * BUFFERED))}


def test_questions_and_answers_of_kafka(stage: Stage) -> None:
    """`on_assign` may ask, too; a question about a topic does not create it."""
    stage.produce(range(2), 5, timestamp_ms=1_000)
    stage.produce(range(2), 5, timestamp_ms=2_000)
    own = sorted(stage.of(0, 1))
    with new_consumer(stage) as consumer:
        assert consumer.partitions_for_topic(stage.topic) == {0, 1, 2, 3}
        assert consumer.partitions_for_topic(f"{stage.topic}-more") is None
        assert consumer.partitions_for_topic(f"{stage.topic}-more") is None
        assert consumer.offsets_for_times({own[0]: 1_500, own[1]: 2_500}) == {own[0]: 5, own[1]: 10}
        consumer.subscribe([stage.topic], on_assign=lambda assigned: consumer.seek_to_end(assigned[1:]))
        joined(stage, consumer, 0, 1)
        assert read(consumer, 10) == {0: list(range(10))}
        stage.produce(range(2), 3)
        assert consumer.beginning_offsets() == dict.fromkeys(own, 0)
        assert consumer.end_offsets(own) == dict.fromkeys(own, 13)
        assert consumer.lag() == dict.fromkeys(own, 3)
        consumer.seek(consumer.offsets_for_times({own[0]: 2_000}))
        consumer.seek_to_beginning([own[1]])
        consumer.pause(own)
        assert consumer.lag() == {own[0]: 8, own[1]: 13}
        wait_until(lambda: consumer.metrics()["unmeasured_partitions"] == 0, "the ends to be known")
        assert consumer.metrics()["lag_records"] == 21
        assert consumer.known_lag() == {own[0]: 8, own[1]: 13}
        with pytest.raises(ConsumerStateError, match=f"seek_to_end: {stage.topic}/3 is not assigned"):
            consumer.seek_to_end([(stage.topic, 3)])


def test_a_quiet_topic_of_transactions_has_no_lag(stage: Stage, consumer: Consumer) -> None:
    """Its last offsets are a transaction's marker, and what another transaction has aborted."""
    producer = Producer({"bootstrap.servers": stage.cluster.bootstrap, "transactional.id": stage.topic})
    producer.init_transactions(WAIT_S)
    for count, end in ((5, producer.commit_transaction), (3, producer.abort_transaction)):
        producer.begin_transaction()
        for _ in range(count):
            producer.produce(stage.topic, b"", partition=0)
        assert producer.flush(WAIT_S) == 0
        end(WAIT_S)
    consumer.subscribe([stage.topic])
    joined(stage, consumer, 0)
    assert read(consumer, 5) == {0: [0, 1, 2, 3, 4]}
    ends = set[int]()

    def is_read() -> bool:
        assert not consumer.poll(0.05)
        ends.update(consumer.known_lag().values())
        return ends == {0}

    assert consumer.end_offsets() == {(stage.topic, 0): 10}
    wait_until(is_read, "a lag without what no consumer gets")
    assert consumer.metrics()["lag_records"] == 0
    consumer.seek({(stage.topic, 0): 3})
    assert consumer.metrics()["lag_records"] == 2


def test_a_partition_that_comes_again_is_not_paused(stage: Stage, consumer: Consumer) -> None:
    stage.produce([0], 10)
    times: list[int] = []

    def pause_the_first_time(assigned: list[TopicPartition]) -> None:
        times.append(1)
        if len(times) == 1:
            consumer.pause(assigned)

    consumer.subscribe([stage.topic], on_assign=pause_the_first_time)
    member = joined(stage, consumer, 0)
    wait_until(lambda: consumer.poll(0.05) or times, "the partition")
    assert consumer.paused() == [(stage.topic, 0)]
    stage.wait_ack(stage.stop(member, 0))
    stage.wait_ack(stage.start(member, 0))
    assert read(consumer, 10) == {0: list(range(10))}


def test_one_by_one_a_record_is_finished_when_the_next_is_asked_for(stage: Stage) -> None:
    """The last record stays unfinished: the loop may have ended in the middle of it."""
    stage.produce([0], 10)
    with new_consumer(stage, auto_commit_interval_ms=10) as consumer:
        consumer.subscribe([stage.topic])
        joined(stage, consumer, 0)
        taken: list[int] = []
        for record in consumer.records():
            taken.append(record.offset)
            if len(taken) == 4:
                break
        assert taken == [0, 1, 2, 3]
        wait_until(lambda: stage.offset(0) == 3, "three records to be committed, not the fourth")
        assert not consumer.poll(0, max_records=0)
    assert stage.offset(0) == 3


def test_another_thread_closes_but_does_not_finish_the_batch_in_hand(stage: Stage) -> None:
    """Nor does a poll without records; `close(finish=True)` finishes the batch."""
    stage.produce([0], 20)
    stored: list[int | None] = []
    for finish in (None, True):
        consumer = new_consumer(stage, max_poll_records=5, auto_commit_interval_ms=10)
        consumer.subscribe([stage.topic])
        joined(stage, consumer, 0)
        begin = stage.offset(0) or 0
        assert read(consumer, 5) == {0: list(range(begin, begin + 5))}
        assert not consumer.poll(0, max_records=0)
        with ThreadPoolExecutor(1) as executor:
            executor.submit(consumer.close, WAIT_S, finish=finish).result(2 * WAIT_S)
        stored.append(stage.offset(0))
        assert stage.members() == ()
    assert stored[0] in {None, 0}
    assert stored[1] == 5


def test_a_poll_without_a_limit_ends_with_a_record_or_with_the_consumer(stage: Stage) -> None:
    consumer = new_consumer(stage, auto_commit_interval_ms=10)
    consumer.subscribe([stage.topic])
    joined(stage, consumer, 0)
    with ThreadPoolExecutor(1) as executor:
        polling = executor.submit(consumer.poll, None)
        stage.produce([0], 1)
        assert [record.timestamp_type for record in polling.result(WAIT_S)] == ["CreateTime"]
        polling = executor.submit(consumer.poll, None)
        wait_until(lambda: stage.offset(0) == 1, "the second poll to finish the record")
        consumer.close(WAIT_S)
        assert polling.result(WAIT_S).keys() == []


def test_unsubscribing_leaves_the_group_and_another_subscription_begins_anew(stage: Stage, consumer: Consumer) -> None:
    stage.produce([0], 10)
    told: list[str] = []

    def note(what: str) -> Callable[[object], None]:
        return lambda _partitions: told.append(what)

    consumer.subscribe([stage.topic], on_assign=note("assign"), on_revoke=note("revoke"), on_lost=note("lost"))
    joined(stage, consumer, 0)
    read(consumer, 10)
    consumer.unsubscribe(WAIT_S)
    assert stage.members() == ()
    assert stage.offset(0) == 10
    assert told == ["assign", "revoke"]
    assert consumer.assignment() == []
    assert consumer.metrics()["polled_records_total"] == 10
    stage.produce([0], 5)
    consumer.subscribe([stage.topic])
    joined(stage, consumer, 0)
    assert read(consumer, 5) == {0: list(range(10, 15))}
    assert consumer.metrics()["polled_records_total"] == 15


def test_callbacks_that_raise_at_the_end_do_not_keep_the_group_from_being_left(stage: Stage) -> None:
    stage.produce([0], 10)
    consumer = new_consumer(stage, auto_commit_interval_ms=60_000)
    ends: list[CommitFailedError | None] = []

    def fail(partitions: object) -> None:
        raise ValueError(f"of {partitions}")

    consumer.subscribe([stage.topic], on_revoke=fail)
    joined(stage, consumer, 0)
    read(consumer, 10)
    consumer.commit_async({(stage.topic, 0): 2}, fail)
    consumer.commit_async({(stage.topic, 0): 3}, ends.append)
    with pytest.raises(ValueError, match=f"of .*{stage.topic}") as raised:
        consumer.close(WAIT_S)
    assert str(raised.value.__context__) == "of None"
    assert ends == [None]
    assert stage.offset(0) == 10
    assert stage.members() == ()
    consumer.close()


def test_what_another_thread_may_do_beside_a_poll(stage: Stage) -> None:
    """A commit is refused, because it would run callbacks in the wrong thread; `close` ends the poll."""
    consumer = new_consumer(stage)
    consumer.subscribe([stage.topic])
    with ThreadPoolExecutor(1) as executor:
        polling = executor.submit(consumer.poll, 2 * WAIT_S)
        stage.wait_member()
        calls: list[Callable[[], object]] = [consumer.commit, consumer.commit_async, consumer.committed]
        for call in (*calls, consumer.unsubscribe, consumer.poll):
            with pytest.raises(ConsumerStateError, match="another poll is under way"):
                call()
        consumer.close()
        assert not polling.result(WAIT_S)
    assert list(consumer) == []
    assert stage.members() == ()


def test_a_commit_before_anything_was_returned_is_no_failure(stage: Stage) -> None:
    """An application that commits after every poll also commits while it joins."""
    with new_consumer(stage) as consumer:
        consumer.subscribe([stage.topic])
        assert not consumer.poll(0)
        consumer.commit()


def test_a_revoke_waits_for_the_handler_and_an_error_of_one_ends_all(stage: Stage) -> None:
    """Finished batches are stored; nothing of the failed batch is."""
    stage.produce([0], 10)
    consumer = new_consumer(stage, max_poll_records=10)
    told: list[str] = []
    may_return, working = threading.Event(), threading.Event()

    def handle(batch: Batch) -> None:
        if batch[0].partition == 1:
            raise ValueError("the handler fails")
        working.set()
        assert may_return.wait(WAIT_S)
        told.append("handled")

    def consume() -> None:
        with consumer:
            consumer.subscribe([stage.topic], on_revoke=lambda _: told.append("revoked"))
            consumer.run(handle, threads=2)

    with ThreadPoolExecutor(1) as executor:
        consuming = executor.submit(consume)
        member = stage.wait_member()
        stage.wait_ack(stage.start(member, 0))
        assert working.wait(WAIT_S)
        stop = stage.stop(member, 0)
        assert_stays(lambda: stage.is_pending(stop), 0.3)
        may_return.set()
        stage.wait_ack(stop)
        stage.produce([1], 10)
        stage.start(member, 1)
        with pytest.raises(ValueError, match="the handler fails"):
            consuming.result(WAIT_S)
    assert told[:2] == ["handled", "revoked"]
    assert stage.offset(0) == 10
    assert stage.offset(1) in {None, 0}
