"""Reading ranges in an executor."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import pytest
from confluent_kafka import Consumer

from tests.unit.consumer_agent.messages import messages
from zkrebalancer.pipeline.source import reading
from zkrebalancer.pipeline.source.kafka import KafkaReadError
from zkrebalancer.pipeline.source.offsets import Range
from zkrebalancer.pipeline.source.reading import SILENCE_LIMIT_S, RangeReader


def read_after(waits_s: list[float], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Read a record that comes after polls which took so long; return its offset."""
    now_s, waits = 0.0, iter(waits_s)
    client = mock.Mock(spec=Consumer)

    def poll(_timeout_s: float) -> object:
        nonlocal now_s
        wait_s = next(waits, None)
        now_s += wait_s or 0.0
        return messages(("t", 0), [0])[0] if wait_s is None else None

    client.poll, client.consume.return_value = poll, []
    client.get_watermark_offsets.return_value = (0, 1)
    monkeypatch.setattr(reading, "new_client", lambda _settings: client)
    monkeypatch.setattr(reading, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(reading, "_idle", {})
    reader = RangeReader({}, [Range("t", 0, 0, 1, 1)], fail_on_data_loss=True)
    return [message.offset() or 0 for _whole, run in reader.read() for message in run]


def test_the_time_in_which_a_process_was_suspended_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `RangeReader.read`, count it: the task failed once it was resumed, and a query on one machine with it."""
    assert read_after([0.5, 10 * SILENCE_LIMIT_S, 0.5], monkeypatch) == [0]


def test_a_long_silence_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KafkaReadError, match="t/0: no message at offset 0 for 120 s"):
        read_after([0.5] * 300, monkeypatch)
