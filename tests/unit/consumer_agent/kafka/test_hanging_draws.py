"""A thread of the application that hangs in Kafka's client, while it takes what the client has ready."""

from __future__ import annotations

import threading
from contextlib import closing
from unittest import mock

import pytest
from confluent_kafka import Message

from consumer_agent.kafka import watchdog
from tests.unit.consumer_agent.admin import Admin
from tests.unit.consumer_agent.kafka.test_watchdog import DEADLINE_S, PARTITION, Client, Setting, answers


class HangsWhenDrawnFrom(Client):
    """Stands for librdkafka whose locks are never free when the application's thread wants them."""

    def consume(self, *_: int, **__: float) -> list[Message]:
        self._hang()
        return []

    def list_topics(self, *_: str, **__: float) -> mock.Mock:
        self.released.wait()  # the fetcher's own thread stays out of the way
        return super().list_topics()


def test_an_application_that_hangs_in_a_client_counts_as_away_until_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `WatchedFetcher._put_in_place`, note nothing: `max_poll_interval_ms` would never be over."""
    hangs, works = HangsWhenDrawnFrom(0, hangs=False), Client(3, hangs=False)
    monkeypatch.setattr(watchdog, "STUCK_LIMIT_S", 0.2)
    with closing(Setting([hangs, works], [Admin(answers(3))] * 2)) as setting:
        setting.assign()
        setting.fetcher.current._assigned.add(PARTITION)
        application = threading.Thread(target=setting.fetcher.current.draw, args=(10,), daemon=True)
        setting.shared.come()
        application.start()
        assert hangs.hung.wait(DEADLINE_S)
        setting.look_until(lambda: setting.offsets == [0, 1, 2])
        assert setting.shared.presence.away_since_ms == 0
        hangs.released.set()
        application.join(DEADLINE_S)
        assert setting.shared.presence.away_since_ms is None
