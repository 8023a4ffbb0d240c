"""The application's `oauth_cb`: what it may return, and that its failures are logged and reported."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from consumer_agent.config import ConsumerConfig
from consumer_agent.errors import KafkaUnavailableError
from consumer_agent.kafka import client
from consumer_agent.kafka.client import AdminMaker, kafka_settings, made, refusal, store_settings
from consumer_agent.kafka.tokens import Tokens
from zkrebalancer.protocol.errors import ConfigurationError

WAIT_S = 60.0
NO_TOKEN = KafkaException(KafkaError(client.NO_TOKEN, "not set within 10 seconds"))


def test_a_token_is_passed_on() -> None:
    end_s = time.time() + 60
    for token in (("t", end_s), ("t", int(end_s), "me"), ("t", end_s, "me", {"a": "b"})):
        tokens = Tokens({"scope=a": token}.get)
        assert (tokens("scope=a"), tokens.trouble) == (token, "")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "must return"),
        ("secret", "must return"),
        (("secret",), "must return"),
        (("secret", "soon"), "must return"),
        (("secret", True), "must return"),
        ((b"secret", 1e12), "must return"),
        (("secret", 1e12, "me", {}, 5), "must return"),
        (("secret", time.time() - 60), r"ValueError: the token ended \d+ s ago"),
    ],
)
def test_what_is_no_token_is_refused_without_showing_it(
    answer: object, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = Tokens(lambda _: answer)
    with pytest.raises((TypeError, ValueError), match=reason.removeprefix("ValueError: ")):
        tokens("")
    (record,) = caplog.records
    assert (record.levelno, "secret" in caplog.text) == (logging.WARNING, False)
    assert tokens.trouble in record.getMessage()


def test_a_failure_is_over_with_the_next_token(caplog: pytest.LogCaptureFixture) -> None:
    answers = iter([PermissionError("who are you"), ("t", time.time() + 60)])

    def ask(_config: str) -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    tokens = Tokens(ask)
    with pytest.raises(PermissionError):
        tokens("")
    assert tokens.trouble == "oauth_cb: PermissionError: who are you"
    tokens("")
    assert tokens.trouble == ""
    assert len(caplog.records) == 1


def test_why_there_is_no_client() -> None:
    tokens = Tokens(lambda _: None)
    with pytest.raises(TypeError):
        tokens("")

    def fails(_settings: dict[str, Any]) -> None:
        raise NO_TOKEN

    with pytest.raises(KafkaException) as raised:
        made(fails, {"oauth_cb": tokens})
    error = refusal(raised.value)
    assert isinstance(error, KafkaUnavailableError)
    assert str(error).startswith("there is no token for Kafka: oauth_cb: TypeError: it must return (token,")
    with pytest.raises(KafkaException) as raised:
        made(fails, {})
    assert raised.value is NO_TOKEN
    refused = refusal(KafkaException(KafkaError(KafkaError._INVALID_ARG, "no such file")))
    assert isinstance(refused, ConfigurationError)
    assert str(refused) == "kafka_config: no such file"


def test_a_client_that_waits_for_a_token_is_made_in_another_thread_and_one_at_a_time() -> None:
    may_end, done, made_in = threading.Event(), threading.Event(), list[threading.Thread]()

    def new_client() -> Any:
        made_in.append(threading.current_thread())
        assert may_end.wait(WAIT_S)
        if len(made_in) == 1:
            raise NO_TOKEN
        return "client"

    put = list[Any]()
    maker = AdminMaker(new_client, {"oauth_cb": print})
    for _ in range(2):
        maker.make(put.append)
    may_end.set()
    while maker._is_making:
        done.wait(0.001)
    assert (len(made_in), put) == (1, [])  # it failed, and the next call tries again
    maker.make(put.append)
    while not put:
        done.wait(0.001)
    assert threading.current_thread() not in made_in
    AdminMaker(threading.current_thread, {}).make(put.append)  # type: ignore[arg-type]
    assert put == ["client", threading.current_thread()]


def test_each_client_gets_the_callback_and_only_the_one_that_fetches_makes_statistics() -> None:
    log = logging.getLogger("mine")
    given: dict[str, Any] = {"oauth_cb": lambda _: None, "stats_cb": print, "logger": log, "statistics.interval.ms": 5}
    config = ConsumerConfig(zookeeper="z:1", bootstrap="b:1", group="g", kafka_config=given)
    for settings in (kafka_settings(config), store_settings(config)):
        assert isinstance(settings["oauth_cb"], Tokens)
        assert settings["logger"].name == log.name
        assert "stats_cb" not in settings
    assert "statistics.interval.ms" in kafka_settings(config)
    assert "statistics.interval.ms" not in store_settings(config)
