"""A header name that is not UTF-8 (Kafka allows any bytes) loses neither its record nor others."""

from __future__ import annotations

import ctypes
from pathlib import Path

import confluent_kafka
import pytest

from consumer_agent import Batch
from tests.integration.fake_coordinator import WAIT_S, Application, Stage
from tests.support.waiting import wait_until

PRODUCER, END, TOPIC, PARTITION, VALUE, HEADER = 0, 0, 1, 3, 4, 9  # of rdkafka.h


def produce_with_header(bootstrap: str, topic: str, name: bytes) -> None:
    """Produce with any bytes as a header's name, as a C client can; confluent-kafka accepts only text."""
    (library,) = Path(confluent_kafka.__file__).parent.parent.glob("confluent_kafka.libs/librdkafka-*.so*")
    rdkafka = ctypes.CDLL(str(library))
    rdkafka.rd_kafka_conf_new.restype = rdkafka.rd_kafka_new.restype = ctypes.c_void_p
    error = ctypes.create_string_buffer(512)
    conf = ctypes.c_void_p(rdkafka.rd_kafka_conf_new())
    rdkafka.rd_kafka_conf_set(conf, b"bootstrap.servers", bootstrap.encode(), error, len(error))
    client = ctypes.c_void_p(rdkafka.rd_kafka_new(PRODUCER, conf, error, len(error)))
    assert client.value, error.value
    place = (TOPIC, topic.encode(), PARTITION, ctypes.c_int32(0))
    header = (HEADER, name, b"v", ctypes.c_ssize_t(1))
    assert rdkafka.rd_kafka_producev(client, *place, VALUE, b"odd", ctypes.c_size_t(3), *header, END) == 0
    assert rdkafka.rd_kafka_flush(client, int(WAIT_S * 1_000)) == 0
    rdkafka.rd_kafka_destroy(client)


def test_a_header_name_that_is_not_utf_8(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.produce([0], 2)
    produce_with_header(stage.cluster.bootstrap, stage.topic, b"caf\xe9")
    stage.produce([0], 2)
    application = Application(stage)
    poll = application.consumer.poll

    def poll_and_look(timeout_s: float) -> Batch:
        batch = poll(timeout_s)
        assert list(batch) == list(batch)  # looking twice has crashed
        return batch

    monkeypatch.setattr(application.consumer, "poll", poll_and_look)
    with application.start():
        stage.wait_ack(stage.start(stage.wait_member(), 0))
        wait_until(lambda: len(application.records) == 5, "all records")
    assert [record.value for record in application.records] == [b"0", b"1", b"odd", b"2", b"3"]
    assert application.records[2].headers == ()
    assert f"{stage.topic}/0 offset 2: the name of a header is not UTF-8" in caplog.text
