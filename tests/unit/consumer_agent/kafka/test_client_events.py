"""What librdkafka reports waits for the application's thread, within limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from consumer_agent.config import ConsumerConfig
from consumer_agent.kafka.client_events import STATISTICS_INTERVAL_MS, are_wanted, event_settings, reporting
from consumer_agent.runtime import shared_state
from consumer_agent.runtime.notices import Tell
from consumer_agent.runtime.record_buffer import RecordBuffer
from consumer_agent.runtime.shared_state import SharedState
from tests.unit.consumer_agent.messages import ROOMY

DOWN = KafkaError(KafkaError._ALL_BROKERS_DOWN)


def new_shared() -> SharedState:
    return SharedState(RecordBuffer(ROOMY), lambda: 0)


def run_all(shared: SharedState) -> None:
    with shared.lock:
        while (notice := shared.next_notice()) is not None:
            assert notice.tell is Tell.EVENT
            assert notice.call is not None
            notice.call()


def test_reports_are_given_to_the_application_in_order() -> None:
    shared, told, noted = new_shared(), list[Any](), list[Any]()
    functions: dict[str, Any] = dict.fromkeys(("error_cb", "throttle_cb"), told.append)
    settings = event_settings(functions, shared, noted.append, noted.append)
    assert settings.keys() == {"error_cb", "throttle_cb"}
    settings["error_cb"](DOWN)
    settings["throttle_cb"]("slower")
    assert (noted, told) == ([DOWN], [])
    run_all(shared)
    assert told == [DOWN, "slower"]
    assert not any(name.startswith("event") for name in shared.metrics())


def test_errors_are_noted_without_a_function_of_the_application() -> None:
    shared, noted = new_shared(), list[Any]()
    settings = event_settings({"security.protocol": "ssl"}, shared, noted.append, noted.append)
    settings["error_cb"](DOWN)
    assert settings.keys() == {"error_cb"}
    assert noted == [DOWN]
    assert not shared.has_notice
    names = ("stats_cb", "error_cb", "throttle_cb", "statistics.interval.ms", "oauth_cb")
    assert [are_wanted({name: 1}) for name in names] == [True, True, True, True, False]


def test_statistics_are_noted_and_only_those_that_the_application_has_asked_for_are_given_to_it() -> None:
    own: dict[str, Any] = {"stats_cb": print, "check.crcs": True}
    config = ConsumerConfig(zookeeper="z:1", bootstrap="b:1", group="g", kafka_config=own)
    assert reporting(config).kafka_config == {"check.crcs": True, "statistics.interval.ms": STATISTICS_INTERVAL_MS}
    shared, told, noted = new_shared(), list[Any](), list[Any]()
    asked = replace(config, kafka_config={"stats_cb": told.append, "statistics.interval.ms": 50})
    assert reporting(asked) is asked
    for one in (reporting(config), asked):
        settings = event_settings(one.kafka_config, shared, noted.append, noted.append)
        settings["stats_cb"]("{}")
    run_all(shared)
    assert (noted, told) == (["{}", "{}"], ["{}"])


def test_only_the_newest_statistics_wait_and_only_so_many_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_state, "MAX_EVENTS", 3)
    shared, told = new_shared(), list[Any]()
    functions: dict[str, Any] = dict.fromkeys(("error_cb", "stats_cb"), told.append)
    settings = event_settings(functions, shared, lambda _: None, lambda _: None)
    for number in range(3):
        settings["stats_cb"](number)
    shared.tell(Tell.LOST)
    for number in range(9):
        settings["error_cb"](f"error {number}")
    settings["stats_cb"](9)
    run_all_but_lost(shared)
    assert told == [9, "error 0", "error 1"]


def run_all_but_lost(shared: SharedState) -> None:
    shared._notices = type(shared._notices)(one for one in shared._notices if one.tell is not Tell.LOST)
    run_all(shared)
