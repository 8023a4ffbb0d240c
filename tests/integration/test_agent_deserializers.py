"""Keys and values made by the application's deserializers, on real servers; no bad record is lost, or returned."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from consumer_agent import AsyncConsumer, Consumer, DeserializationError
from tests.integration.fake_coordinator import SESSION_TIMEOUT_MS, WAIT_S, Stage, assert_stays
from tests.support.waiting import wait_until
from zkrebalancer.observe.checker import check

BAD = 3  # the value that the deserializer of these tests refuses


def settings_of(stage: Stage, **settings: Any) -> dict[str, Any]:
    servers = {"zookeeper": stage.cluster.zookeeper, "bootstrap": stage.cluster.bootstrap, "group": stage.group}
    return {**servers, "session_timeout_ms": SESSION_TIMEOUT_MS, "auto_commit_interval_ms": 10, **settings}


def number(data: bytes) -> int:
    found = json.loads(data)
    if found == BAD:
        raise ValueError("it is\nbad")
    return int(found)


def joined(stage: Stage, consumer: Consumer, *partitions: int) -> None:
    consumer.poll(0)
    stage.wait_ack(stage.start(stage.wait_member(), *partitions))


def read(consumer: Consumer, count: int) -> list[Any]:
    """Poll until so many records were returned; return their values."""
    values: list[Any] = []

    def is_enough() -> bool:
        values.extend(consumer.poll(0.05).values())
        return len(values) >= count

    wait_until(is_enough, f"{count} records")
    return values


def test_a_partition_stays_at_a_bad_record_until_the_application_seeks(stage: Stage, tmp_path: Path) -> None:
    stage.produce([0], 10)
    place = (stage.topic, 0)
    with Consumer(**settings_of(stage, value_deserializer=number, events_directory=tmp_path)) as consumer:
        consumer.subscribe([stage.topic])
        joined(stage, consumer, 0)
        assert read(consumer, BAD) == list(range(BAD))
        assert_stays(lambda: (stage.offset(0) or 0) < BAD, 0.2)  # the last of them is not finished yet
        for _ in range(2):
            with pytest.raises(DeserializationError) as raised:
                read(consumer, 1)
            assert (
                str(raised.value)
                == f"{stage.topic}/0 offset 3: the value cannot be deserialized: ValueError: it is bad"
            )
            assert (raised.value.partition, raised.value.offset) == (place, BAD)
            assert raised.value.record.value == b"3"
        assert isinstance(raised.value.__cause__, ValueError)
        assert consumer.position() == {place: BAD}
        wait_until(lambda: stage.offset(0) == BAD, "the records before it to be committed, and no more")
        consumer.seek({place: BAD + 1})
        assert read(consumer, 10 - BAD - 1) == list(range(BAD + 1, 10))
    assert stage.offset(0) == 10
    verdict = check(tmp_path)
    assert (verdict.problems, verdict.duplicated_outside_crash, verdict.out_of_order) == ((), 0, 0)


def test_bad_records_are_put_aside_and_skipped(stage: Stage) -> None:
    """Also if there are no others; and null is no bad record."""
    stage.produce([0], 10)
    aside: list[DeserializationError] = []
    settings = settings_of(stage, value_deserializer=number, on_deserialization_error=aside.append)
    with Consumer(**settings) as consumer:
        consumer.subscribe([stage.topic])
        joined(stage, consumer, 0)
        assert read(consumer, 9) == [value for value in range(10) if value != BAD]
        assert [(error.what, error.record.value, error.offset) for error in aside] == [("value", b"3", BAD)]
        assert consumer.metrics()["undecodable_records_total"] == 1
        consumer.seek({(stage.topic, 0): BAD})
        batch = consumer.poll(WAIT_S, max_records=1)
        assert batch.values() == [BAD + 1]
        stage.send_values(1, None)
        stage.wait_ack(stage.start(stage.wait_member(), 1))
        assert read(consumer, 6) == [5, 6, 7, 8, 9, None]
    assert stage.offset(0) == 10


def test_threads_deserialize_what_they_get(stage: Stage) -> None:
    stage.produce(range(2), 10)
    values: list[int] = []
    with Consumer(**settings_of(stage, value_deserializer=number)) as consumer:
        consumer.subscribe([stage.topic])
        joined(stage, consumer, 0, 1)
        with pytest.raises(DeserializationError, match="offset 3: the value"):
            consumer.run(lambda batch: values.extend(batch.values()), threads=2)
    assert set(values) <= set(range(BAD))
    assert BAD in {stage.offset(0), stage.offset(1)}


def test_a_deserializer_of_a_schema_registry_in_an_event_loop(stage: Stage, executor: ThreadPoolExecutor) -> None:
    """It gets the topic and the field; what it refuses, a coroutine puts aside."""
    registry = SchemaRegistryClient.new_client({"url": "mock://of-the-test"})
    schema = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]})
    registry.register_schema(f"{stage.topic}-value", Schema(schema, "AVRO"))
    serialize = AvroSerializer(registry, schema)
    context = SerializationContext(stage.topic, MessageField.VALUE)
    stage.send_values(0, serialize({"id": 7}, context), b"not avro", serialize({"id": 8}, context))
    aside: list[DeserializationError] = []

    async def put_aside(error: DeserializationError) -> None:
        await asyncio.sleep(0)
        aside.append(error)

    settings = settings_of(stage, value_deserializer=AvroDeserializer(registry), on_deserialization_error=put_aside)

    async def consume() -> list[Any]:
        async with AsyncConsumer(**settings) as consumer:
            consumer.subscribe([stage.topic])
            values: list[Any] = []
            while len(values) < 2:
                values += (await consumer.poll(WAIT_S)).values()
            return values

    reading = executor.submit(asyncio.run, consume())
    stage.start(stage.wait_member(), 0)
    assert reading.result(WAIT_S) == [{"id": 7}, {"id": 8}]
    assert [(error.offset, error.record.value) for error in aside] == [(1, b"not avro")]
    assert stage.offset(0) == 3


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    """Make a thread for the event loop; the test is the coordinator."""
    with ThreadPoolExecutor(1) as executor:
        yield executor
