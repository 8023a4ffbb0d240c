"""What a sink ends is over at once: clients close without a garbage collection, and a closed sink does not wait."""

from __future__ import annotations

import gc
import logging
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from threading import Barrier
from typing import Any, cast
from unittest import mock

import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException

from consumer_agent.errors import ConsumerStateError
from consumer_agent.kafka import client
from consumer_agent.region import Advance, Claim, KafkaSink, kafka_sink
from consumer_agent.region.at_once import MAX_AT_ONCE, CallsAtOnce
from consumer_agent.region.postgres_sink import PostgresSink
from tests.support.deadlines import WITHIN_S
from tests.unit.consumer_agent.region.servers import Connection, Kafka, Postgres
from zkrebalancer.protocol.errors import ConfigurationError

P0 = ("t", 0)


class Client:
    """Something that is closed when nothing refers to it."""


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def until_gone(kept: list[weakref.ref[Any]]) -> None:
    """Wait for the ends of the threads."""
    give_up_s = time.monotonic() + WITHIN_S
    while any(one() is not None for one in kept):
        assert time.monotonic() < give_up_s
        time.sleep(0.001)


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("fails", [False, True])
def test_calls_that_are_over_keep_no_client(*, fails: bool) -> None:
    made: list[weakref.ref[Client]] = []

    def make() -> Client:
        client = Client()
        made.append(weakref.ref(client))
        if fails:
            raise ValueError
        return client

    calls = CallsAtOnce([make])
    with suppress(ValueError):
        calls.do()
    assert len(made) == 1
    until_gone(made)


@pytest.mark.usefixtures("no_collection")
def test_producers_of_partitions_that_moved_away_are_closed() -> None:
    kafka = Kafka()
    with kafka.patched():
        sink = KafkaSink({})
        sink.claim("g", [Claim(P0, 1, "id", 0, 0)])
        made = [weakref.ref(producer) for producer in kafka.current.values()]
        kafka.current.clear()
        assert len(made) == 1
        sink.keep([])
        until_gone(made)
        sink.close()


def test_a_closed_sink_says_so() -> None:
    with Kafka().patched():
        sink = KafkaSink({})
        sink.close()
        with pytest.raises(ConsumerStateError, match="closed"):
            sink.claim("g", [Claim(P0, 1, "id", 0, 0)])


def test_why_a_sink_gets_no_token() -> None:
    def refuse(_config: str) -> Any:
        raise PermissionError("who are you")

    def new_client(settings: dict[str, Any]) -> None:
        with suppress(PermissionError, TypeError):
            settings["oauth_cb"]("")
        raise KafkaException(KafkaError(client.NO_TOKEN, "not set within 10 seconds"))

    with mock.patch("consumer_agent.kafka.group_admin.AdminClient", new_client):
        with pytest.raises(ConfigurationError, match="who are you"):
            KafkaSink({"oauth_cb": refuse})
        with pytest.raises(ConfigurationError, match="10 seconds"):
            KafkaSink({"oauth_cb": None})


def test_a_group_whose_name_is_that_of_a_regions_progress_is_named() -> None:
    """Its offsets would be taken for those of the results, and records would be skipped."""
    kafka = Kafka()
    kafka.progress["t", 0] = (7, "zkrebalancer:id")
    with kafka.patched():
        sink = KafkaSink({})
        with pytest.raises(
            ConfigurationError, match=r"offsets of a consumer group g\.region, where the progress of g's"
        ):
            sink.claim("g", [Claim(P0, 1, "id", 0, 0)])
        sink.close()


def test_a_claim_waits_for_a_client_that_is_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_sink, "RETRY_INTERVAL_S", 0.001)
    kafka = Kafka()
    with kafka.patched():
        sink = KafkaSink({})
        refused = KafkaException(KafkaError(KafkaError._TRANSPORT, "the client is being made"))
        ask = mock.Mock(wraps=kafka.list_consumer_group_offsets, side_effect=[refused, mock.DEFAULT])
        monkeypatch.setattr(kafka, "list_consumer_group_offsets", ask)
        assert sink._read("g", [P0], awaits_end=True) == {}
        assert ask.call_count == 2
        sink.close()


def test_postgresql_that_cannot_roll_back_is_closed_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    connection = Connection(Postgres())
    sink = PostgresSink(cast("Any", connection))
    sink.claim("g", [Claim(P0, 1, "id", 0, 0)])
    sink.begin("g", {P0: Advance(0, 1, 1)})
    with mock.patch.object(connection, "rollback", side_effect=psycopg.OperationalError("no answer")):
        sink.rollback()
    assert connection.closed
    (record,) = caplog.records
    assert (record.levelno, "no answer" in record.getMessage()) == (logging.WARNING, True)


def test_no_call_begins_after_an_error() -> None:
    """Further calls would claim partitions, and their answers would be dropped."""
    begun, all_have_begun = list[int](), Barrier(MAX_AT_ONCE)

    def fail() -> None:
        begun.append(1)
        all_have_begun.wait(WITHIN_S)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        CallsAtOnce([fail] * 3 * MAX_AT_ONCE).do()
    assert len(begun) == MAX_AT_ONCE
