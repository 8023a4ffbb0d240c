"""Passes librdkafka's reports on to the application's `error_cb`, `stats_cb` and `throttle_cb`.

librdkafka calls them in the thread that fetches. That may be the fetcher's, where an application's function must not
wait and its errors have no caller. So the reports wait for the application's next call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from confluent_kafka import KafkaError

from consumer_agent.kafka_config import EVENTS, KafkaSetting
from consumer_agent.runtime.shared_state import SharedState

Report = Callable[[Any], None]


def are_wanted(kafka_config: Mapping[str, KafkaSetting]) -> bool:
    """Whether the application has any of these functions."""
    return any(name in kafka_config for name in EVENTS)


def event_settings(
    kafka_config: Mapping[str, KafkaSetting], shared: SharedState, note_error: Callable[[KafkaError], None]
) -> dict[str, Report]:
    """Return the settings of a client: its functions, which let the application's be called, and `note_error`."""

    def telling(name: str) -> Report:
        call: Any = kafka_config[name]
        return lambda report: shared.tell_event(name, partial(call, report))

    settings = {name: telling(name) for name in EVENTS if name in kafka_config}
    tell_error = settings.get("error_cb")

    def on_error(error: KafkaError) -> None:
        note_error(error)
        if tell_error is not None:
            tell_error(error)

    return {**settings, "error_cb": on_error}
