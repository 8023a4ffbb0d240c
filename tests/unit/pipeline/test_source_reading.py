"""Reading ranges in an executor."""

from __future__ import annotations

import gc
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


def test_the_time_that_the_caller_takes_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `RangeReader.read`, count from the last poll: whoever works on a batch for minutes fails at the next pause."""
    now_s = 0.0
    come = iter([messages(("t", 0), [0]), [], messages(("t", 0), [1])])
    client = mock.Mock(spec=Consumer)
    client.poll, client.consume.return_value = lambda _timeout_s: next(iter(next(come)), None), []
    monkeypatch.setattr(reading, "new_client", lambda _settings: client)
    monkeypatch.setattr(reading, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(reading, "_idle", {})
    read = []
    for _whole, run in RangeReader({}, [Range("t", 0, 0, 2, 1)], fail_on_data_loss=True).read():
        read += [message.offset() for message in run]
        now_s += 10 * SILENCE_LIMIT_S
    assert read == [0, 1]
    assert not client.get_watermark_offsets.called


def test_what_a_client_still_hands_over_of_a_former_task_belongs_to_no_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `RangeReader.read`, forget which topics a client has read that is used again."""
    client = mock.Mock(spec=Consumer)
    monkeypatch.setattr(reading, "new_client", lambda _settings: client)
    monkeypatch.setattr(reading, "_idle", {})
    read = []
    for topic in ("t", "u"):
        client.poll.side_effect = messages(("t", 0), [0])
        client.consume.return_value = messages(("u", 0), [0]) if topic == "u" else []
        reader = RangeReader({}, [Range(topic, 0, 0, 1, 1)], fail_on_data_loss=True)
        read += [message.topic() for _whole, run in reader.read() for message in run]
    assert read == ["t", "u"]


@pytest.mark.parametrize(("fetched", "expected"), [([0, 1], [0, 1]), ([0, 1, 2, 3], [0, 1]), ([0, 2, 3], [0])])
def test_a_range_has_no_record_of_the_next_one(
    monkeypatch: pytest.MonkeyPatch, fetched: list[int], expected: list[int]
) -> None:
    """In `RangeReader._handle`, take what was fetched beyond the end: the next batch has these records again."""
    found, client = messages(("t", 0), fetched), mock.Mock(spec=Consumer)
    client.poll.side_effect, client.consume.return_value = found[:1], found[1:]
    monkeypatch.setattr(reading, "new_client", lambda _settings: client)
    monkeypatch.setattr(reading, "_idle", {})
    reader = RangeReader({}, [Range("t", 0, 0, 2, 1)], fail_on_data_loss=True)
    assert [message.offset() for _whole, run in reader.read() for message in run] == expected


def test_a_worker_keeps_one_client_and_none_of_a_task_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `RangeReader.read`, close none, or collect no garbage any more: a worker's memory grows with each task."""
    clients = [mock.Mock(spec=Consumer) for _ in range(3)]
    monkeypatch.setattr(reading, "new_client", lambda settings: clients[settings["client"]])
    monkeypatch.setattr(reading, "_idle", {})
    for number, client in enumerate(clients):
        client.poll.side_effect = messages(("t", 0), [0]) if number else ZeroDivisionError
        client.consume.return_value = []
        reader = RangeReader({"client": number}, [Range("t", 0, 0, 1, 1)], fail_on_data_loss=True)
        if number:
            list(reader.read())
        else:
            with pytest.raises(ZeroDivisionError):
                list(reader.read())
        assert gc.isenabled()
    assert [client.close.called for client in clients] == [True, False, True]
