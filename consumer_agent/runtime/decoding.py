"""Turns the bytes of keys and values into objects, by the application's deserializers.

It happens when records are returned, in the thread that polls. A record that cannot be deserialized is never among
them: `on_deserialization_error` gets it, and it is skipped; without that function, its partition stays at its offset.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from confluent_kafka import Message

from consumer_agent.config import ConsumerConfig
from consumer_agent.records import DeserializationError, only_record, readable_headers
from consumer_agent.runtime.record_buffer import Run

CONFLUENT = "confluent_kafka.serialization"
Deserialize = Callable[[Message, bytes], Any]


class Decoder:
    """The deserializers of a consumer; false if it has none."""

    def __init__(self, config: ConsumerConfig) -> None:
        """Prepare."""
        self._key = _prepared(config.key_deserializer, "KEY")
        self._value = _prepared(config.value_deserializer, "VALUE")
        self.on_error = config.on_deserialization_error

    def __bool__(self) -> bool:
        """Whether there is anything to deserialize."""
        return self._key is not None or self._value is not None

    def decode(self, run: Run, message: Message) -> DeserializationError | None:
        """Deserialize one of the run's records in place; return the error of a deserializer, with the record as it was.

        Null stays None: it is not passed to a deserializer.
        """
        key, value = message.key(), message.value()
        what = "key"
        try:
            if self._key is not None and key is not None:
                message.set_key(self._key(message, key))
            what = "value"
            if self._value is not None and value is not None:
                message.set_value(self._value(message, value))
        except Exception as cause:  # noqa: BLE001  # whatever the application raises
            message.set_key(key)
            return DeserializationError(what, only_record(run, message), cause)
        return None


def _prepared(deserializer: Callable[..., Any] | None, field: str) -> Deserialize | None:
    """Return a function of a message and of the bytes of its key or value."""
    if deserializer is None:
        return None
    serialization = sys.modules.get(CONFLUENT)
    if serialization is None or not isinstance(deserializer, serialization.Deserializer):
        return lambda _message, data: deserializer(data)
    new_context, of_field = serialization.SerializationContext, serialization.MessageField[field]

    def deserialize(message: Message, data: bytes) -> Any:  # noqa: ANN401  # what the application wants
        headers = list(next(iter(readable_headers([message]))))
        return deserializer(data, new_context(message.topic(), of_field, headers))

    return deserialize
