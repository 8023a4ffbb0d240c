"""Times on command lines are UTC unless they say otherwise, wherever a command runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from unittest import mock

import pytest
from click.testing import CliRunner, Result

from zkrebalancer.cli.groups import groups
from zkrebalancer.operations import kafka_offsets
from zkrebalancer.protocol.fields import TopicPartition

AT_MS = 1_763_953_200_000  # 2025-11-24 03:00:00 UTC
PARTITION: TopicPartition = ("t", 0)


@pytest.fixture(params=["UTC", "America/New_York", "Asia/Kolkata"])
def zone(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def reset_to(monkeypatch: pytest.MonkeyPatch, moment: str) -> tuple[list[int], Result]:
    """Run `groups reset-offsets --to-datetime`; return the times that Kafka is asked for, in milliseconds."""
    asked: list[int] = []
    module = sys.modules["zkrebalancer.cli.groups.reset"]  # `groups.reset` itself is the command

    def reset_offsets(_zk: object, _group: str, new_offsets: mock.Mock, *_others: object) -> Mapping[object, object]:
        new_offsets([PARTITION])
        return {}

    def offsets_at(_kafka: object, _partitions: object, at: datetime) -> Mapping[TopicPartition, int]:
        asked.append(int(at.timestamp() * 1_000))
        return {PARTITION: 1}

    monkeypatch.setattr(module, "BlockingZk", mock.MagicMock())
    monkeypatch.setattr(module, "reset_offsets", reset_offsets)
    monkeypatch.setattr(kafka_offsets, "offsets_at", offsets_at)
    servers = ["--bootstrap", "b:1", "--zookeeper", "z:1"]
    return asked, CliRunner().invoke(groups, ["reset-offsets", "g", "--to-datetime", moment, "--dry-run", *servers])


@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize("moment", ["2025-11-24T03:00:00", "2025-11-24T03:00:00Z", "2025-11-24T05:30:00+0230"])
def test_offsets_are_reset_to_a_time_in_utc_unless_it_has_an_offset(
    monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """In `_kafka_time`, leave the zone to the host: 5 hours of records are skipped in New York."""
    asked, result = reset_to(monkeypatch, moment)
    assert result.exit_code == 0, result.output
    assert asked == [AT_MS]


@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00", "1969-12-31T23:59:59", "1970-01-01T00:00:00+0001"])
def test_kafka_has_no_times_before_1970(monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """In `_kafka_time`, look at the year only: a negative time has other meanings for Kafka."""
    asked, result = reset_to(monkeypatch, moment)
    assert (asked, result.exit_code) == ([], 2)
    assert "Kafka has no times before 1970" in result.output
