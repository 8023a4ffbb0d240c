"""Passes librdkafka's reports on to the application's `error_cb`, `stats_cb` and `throttle_cb`.

librdkafka calls them in the thread that fetches. That may be the fetcher's, where an application's function must not
wait and its errors have no caller. So the reports wait for the application's next call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from confluent_kafka import KafkaError

from consumer_agent.config import ConsumerConfig
from consumer_agent.kafka.client import STATISTICS
from consumer_agent.kafka_config import EVENTS, KafkaSetting
from consumer_agent.runtime.shared_state import SharedState

STATISTICS_INTERVAL_MS = 4_000  # more often than stalls are looked for

STATISTICS_CALLBACK = "stats_cb"

Report = Callable[[Any], None]


def are_wanted(kafka_config: Mapping[str, KafkaSetting]) -> bool:
    """Whether a client reports anything besides errors of brokers."""
    return any(name in kafka_config for name in (*EVENTS, STATISTICS))


def reporting(config: ConsumerConfig) -> ConsumerConfig:
    """Return a configuration whose client makes statistics for us, if it makes none for the application."""
    if STATISTICS in config.kafka_config:
        return config
    given = {key: value for key, value in config.kafka_config.items() if key != STATISTICS_CALLBACK}
    return replace(config, kafka_config={**given, STATISTICS: STATISTICS_INTERVAL_MS})


def event_settings(
    kafka_config: Mapping[str, KafkaSetting],
    shared: SharedState,
    note_error: Callable[[KafkaError], None],
    note_statistics: Callable[[str], None],
) -> dict[str, Report]:
    """Return the settings of a client: its functions, which let the application's be called after ours."""

    def telling(name: str) -> Report:
        call: Any = kafka_config[name]
        return lambda report: shared.tell_event(name, partial(call, report))

    settings = {name: telling(name) for name in EVENTS if name in kafka_config}

    def after(note: Report, name: str) -> Report:
        tell = settings.get(name)

        def on_report(report: Any) -> None:  # noqa: ANN401  # as librdkafka gives it
            note(report)
            if tell is not None:
                tell(report)

        return on_report

    ours = {"error_cb": after(note_error, "error_cb")}
    if STATISTICS in kafka_config:
        ours[STATISTICS_CALLBACK] = after(note_statistics, STATISTICS_CALLBACK)
    return {**settings, **ours}
