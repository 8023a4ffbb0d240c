"""Deserializers: what they get, and what becomes of a record that one of them refuses."""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

import pytest
from confluent_kafka import Message
from confluent_kafka.serialization import IntegerDeserializer, StringDeserializer

from consumer_agent.config import ConsumerConfig
from consumer_agent.records import Batch, DeserializationError
from consumer_agent.runtime.decoding import Decoder
from consumer_agent.runtime.record_buffer import Run
from consumer_agent.runtime.steps import Callback, decoded
from zkrebalancer.protocol.errors import ConfigurationError

REQUIRED: dict[str, Any] = {"zookeeper": "z:1", "bootstrap": "b:1", "group": "g"}


def new_decoder(**settings: Any) -> Decoder:
    return Decoder(ConsumerConfig(**REQUIRED, **settings))


def run_of(*values: bytes | None, key: bytes | None = None, partition: int = 0) -> Run:
    messages = [
        Message(topic="t", partition=partition, offset=10 + number, key=key, value=value)
        for number, value in enumerate(values)
    ]
    return Run("t", partition, 5, messages)


def test_without_deserializers_there_is_nothing_to_do() -> None:
    assert not new_decoder()
    assert new_decoder(key_deserializer=str)
    assert new_decoder(value_deserializer=str)


def test_keys_and_values_are_replaced_and_null_stays() -> None:
    run = run_of(b"[1]", None, key=b"k")
    decoder = new_decoder(key_deserializer=bytes.decode, value_deserializer=json.loads)
    assert [decoder.decode(run, message) for message in run.messages] == [None, None]
    assert [(record.key, record.value) for record in Batch([run])] == [("k", [1]), ("k", None)]
    assert Batch([run]).values() == [[1], None]


def test_deserializers_of_confluent_kafka_get_their_context() -> None:
    seen: list[Any] = []

    class Noting(StringDeserializer):
        def __call__(self, value: Any, ctx: Any = None) -> Any:
            seen.append((ctx.topic, str(ctx.field), ctx.headers))
            return super().__call__(value, ctx)

    with_header = Message(topic="t", partition=0, offset=1, key=b"k", value=b"v", headers=[("h", b"x")])
    run = Run("t", 0, 5, [with_header, *run_of(b"v", key=b"k").messages])
    decoder = new_decoder(key_deserializer=Noting(), value_deserializer=Noting())
    assert [decoder.decode(run, message) for message in run.messages] == [None, None]
    headers = [("h", b"x")]
    assert seen == [("t", "key", headers), ("t", "value", headers), ("t", "key", []), ("t", "value", [])]
    assert [(record.key, record.value) for record in Batch([run])] == [("k", "v")] * 2


@pytest.mark.parametrize(("what", "key", "value"), [("key", b"\xff", b"1"), ("value", b"k", b"\xff")])
def test_a_refused_record_is_as_it_was(what: str, key: bytes, value: bytes) -> None:
    run = run_of(value, key=key)
    error = new_decoder(key_deserializer=bytes.decode, value_deserializer=bytes.decode).decode(run, run.messages[0])
    assert isinstance(error, DeserializationError)
    assert (error.what, error.partition, error.offset, error.record.generation) == (what, ("t", 0), 10, 5)
    assert (error.record.key, error.record.value) == (key, value)
    assert str(error).startswith(f"t/0 offset 10: the {what} cannot be deserialized: UnicodeDecodeError: ")
    assert isinstance(error.__cause__, UnicodeDecodeError)


def test_the_reason_is_one_short_line() -> None:
    def fail(_data: bytes) -> None:
        raise ValueError("a\nb" * 1_000)

    run = run_of(b"x")
    text = str(new_decoder(value_deserializer=fail).decode(run, run.messages[0]))
    assert "\n" not in text
    assert len(text) < 300


def test_a_deserializer_of_integers_refuses_texts() -> None:
    run = run_of(b"no integer")
    error = new_decoder(value_deserializer=IntegerDeserializer()).decode(run, run.messages[0])
    assert error is not None


def test_bad_records_are_skipped_or_end_their_partition() -> None:
    aside: list[DeserializationError] = []
    for on_error in (None, aside.append):
        frontend = mock.Mock()
        frontend.decoder = new_decoder(value_deserializer=int, on_deserialization_error=on_error)
        runs = [run_of(b"1", b"x", b"3"), run_of(b"x", partition=1), run_of(b"4", b"5", partition=2)]
        decoding = decoded(frontend, runs)
        while True:
            try:
                step = next(decoding)
            except StopIteration as end:
                batch, ends = end.value
                break
            assert isinstance(step, Callback)
            step.call()
        changed = [call.args[:2] for call in frontend.change.call_args_list]
        if on_error is None:
            assert batch.values() == [1, 4, 5]
            assert ends == {("t", 0): 11, ("t", 1): 10, ("t", 2): 12}
            assert changed == [("poll", ())] * 2
        else:
            assert batch.values() == [1, 3, 4, 5]
            assert ends == {("t", 0): 13, ("t", 1): 11, ("t", 2): 12}
            assert changed == []
            assert frontend.shared.count.call_count == 2
    assert [(error.partition, error.offset) for error in aside] == [(("t", 0), 11), (("t", 1), 10)]


def test_what_is_no_deserializer_is_refused() -> None:
    async def waiting(_data: bytes) -> None: ...

    class Waiting:
        async def __call__(self, _data: bytes) -> None: ...

    for wrong, why in ((5, "must be a function"), (waiting, "coroutine"), (Waiting(), "coroutine")):
        for name in ("key_deserializer", "value_deserializer"):
            with pytest.raises(ConfigurationError, match=f"^{name}: .*{why}"):
                new_decoder(**{name: wrong})
    with pytest.raises(ConfigurationError, match=r"^on_deserialization_error: must be a function"):
        new_decoder(on_deserialization_error="skip")
    assert new_decoder(value_deserializer=bytes.decode, on_deserialization_error=waiting).on_error is waiting
