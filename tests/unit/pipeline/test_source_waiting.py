"""How long a query with `Trigger.AvailableNow` waits for partitions."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest

from consumer_agent.spark import PlanningConsumer
from zkrebalancer.pipeline.source import membership, stream
from zkrebalancer.pipeline.source.kafka import Logs
from zkrebalancer.pipeline.source.options import parse
from zkrebalancer.pipeline.source.stream import ConsumerGroupStreamReader

PARTITION = ("orders", 0)
OPTIONS = {"zookeeper": "z:1", "bootstrap": "b:1", "group": "g", "topics": "orders"}


class Setting:
    """A query whose member never owns a partition; `waits` counts its waits for one, which end at once."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.consumer = mock.Mock(spec=PlanningConsumer)
        self.consumer.assignment.return_value, self.consumer.position.return_value = [], {}
        self.consumer.advance.return_value, self.consumer.origins.return_value = {}, {}
        self.reader = ConsumerGroupStreamReader(parse(OPTIONS))
        self._caplog = caplog

    @property
    def waits(self) -> int:
        return sum("assigned no partition" in record.getMessage() for record in self._caplog.records)

    def lose(self) -> None:
        """Let the next poll report an eviction."""
        on_lost: Callable[[object], object] = self.consumer.subscribe.call_args.kwargs["on_lost"]
        reports = iter([[PARTITION]])
        self.consumer.poll.side_effect = lambda *_, **__: [on_lost(lost) for lost in reports]

    def plan(self) -> None:
        assert self.reader.latestOffset({}, self.reader.getDefaultReadLimit()) == {}


@pytest.fixture
def setting(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Setting:
    setting = Setting(caplog)
    logs = mock.Mock(spec=Logs)
    logs.offsets.return_value = logs.ends.return_value = {}
    monkeypatch.setattr(membership, "ASSIGNMENT_TIMEOUT_S", 0.0)
    monkeypatch.setattr(membership, "PlanningConsumer", mock.Mock(return_value=setting.consumer))
    monkeypatch.setattr(membership, "Logs", mock.Mock(return_value=logs))
    monkeypatch.setattr(stream, "_leave_on_sigterm", lambda: None)
    return setting


def test_a_query_without_partitions_waits_once(setting: Setting) -> None:
    """It waited twice, and again at every plan after its partitions had moved to others."""
    setting.reader.prepareForTriggerAvailableNow()
    assert setting.waits == 1
    setting.plan()
    assert setting.waits == 1


def test_a_query_that_was_evicted_waits_again(setting: Setting) -> None:
    setting.reader.prepareForTriggerAvailableNow()
    setting.lose()
    setting.plan()
    assert setting.waits == 2
    setting.plan()
    assert setting.waits == 2
