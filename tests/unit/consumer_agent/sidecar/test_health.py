"""An agent's health, the reason if it is unhealthy, and its metrics in Prometheus's format."""

from __future__ import annotations

from unittest import mock

import pytest

from consumer_agent import Consumer
from consumer_agent.config import ConsumerConfig
from consumer_agent.sidecar.health import MAX_IDLE_MS, MAX_SINCE_POLL_MS, Watch, faults_of, vitals_of
from consumer_agent.sidecar.http_endpoints import families, lags, numbers
from consumer_agent.sidecar.run_counts import RunCounts
from zkrebalancer.runtime import clock
from zkrebalancer.runtime.notify import Notifier

WELL = {"lease_ms": 5_000, "since_poll_ms": 10, "assigned_partitions": 3}


def test_a_well_agent() -> None:
    assert faults_of(WELL) == []
    assert faults_of({**WELL, "child_running": True}) == []


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"lease_ms": 0}, "it has no lease"),
        ({"since_poll_ms": MAX_SINCE_POLL_MS + 1}, "it has not polled for 60 s"),
        ({"child_running": False}, "its child is not running"),
    ],
)
def test_an_agent_that_is_not_well_says_why(changed: dict[str, float], fault: str) -> None:
    assert [text.startswith(fault) for text in faults_of({**WELL, **changed})] == [True]


def test_an_agent_outlives_silence_of_zookeeper_and_not_a_loop_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `vitals_of`, leave out `stalled`: a child is killed in the middle of a record, though nothing hangs."""
    config = ConsumerConfig(zookeeper="z:1", bootstrap="b:1", group="g")
    consumer = Consumer(config)
    vitals = vitals_of(consumer, config, Notifier({}))
    late_us = clock.steady_us() + 3_600_000_000
    monkeypatch.setattr(vitals, "_now_us", lambda: late_us)
    assert vitals.death() == "the loop has not moved for 3600 s"
    vitals.looped()
    assert vitals.death() is None
    found = {**consumer.metrics(), "loop_idle_ms": MAX_IDLE_MS + 1}
    monkeypatch.setattr(consumer, "metrics", lambda: found)
    assert vitals.death() == "the loop of the session has not moved for 30 s"


def test_times_are_in_seconds_and_every_number_is_explained() -> None:
    consumer = Consumer(zookeeper="z:1", bootstrap="b:1", group="g")
    found = {**numbers(consumer, RunCounts(has_child=True)), "lease_ms": 1_500}
    shown = {metric.name: metric for metric in families(found, {"group": "g"})}
    assert len(shown) == len(found)
    assert not [name for name in shown if name.endswith("_ms")]
    (lease,) = shown["consumer_agent_lease_seconds"].samples
    assert (lease.labels, lease.value) == ({"group": "g"}, 1.5)
    assert all(metric.documentation.endswith(".") for metric in shown.values())


def test_each_partition_has_its_lag() -> None:
    """In `lags`, leave out the number of the partition: Prometheus refuses series with the same labels."""
    shown = lags({("t", 1): 7, ("t", 0): 0}, {"group": "g"})
    assert (shown.name, shown.documentation[-1]) == ("consumer_agent_partition_lag_records", ".")
    assert [(each.labels, each.value) for each in shown.samples] == [
        ({"group": "g", "topic": "t", "partition": "0"}, 0),
        ({"group": "g", "topic": "t", "partition": "1"}, 7),
    ]


def test_an_agent_is_ready_once_it_has_joined_and_looks_at_itself_once_a_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Watch`, be ready at once: systemd would not wait. Or look after each poll: up to a thousand a second."""
    now_s, consumer, vitals, joined = 0.0, mock.Mock(), mock.Mock(beat_s=10.0), mock.Mock()
    monkeypatch.setattr("consumer_agent.sidecar.health.time.monotonic", lambda: now_s)
    watch = Watch(consumer, vitals, joined)
    consumer.metrics.return_value = {**WELL, "lease_ms": 0}
    watch()
    watch()
    joined.assert_not_called()
    consumer.metrics.return_value = WELL
    for now_s in (0.0, 1.0, 9.9, 10.0, 10.5, 20.0):  # noqa: B007  # the clock looks at it
        watch()
    joined.assert_called_once_with()
    assert [call.kwargs["is_ready"] for call in vitals.report.call_args_list] == [False, False, True, True, True]
    assert vitals.looped.call_count == 5
