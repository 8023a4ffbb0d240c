"""`--http`: the agent's health, metrics and partitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from consumer_agent.consumer import Consumer
from consumer_agent.sidecar.health import faults_of
from consumer_agent.sidecar.run_counts import RunCounts
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime.http_server import Pages, serving_in_a_thread
from zkrebalancer.runtime.vitals import Health, Vitals

PREFIX = "consumer_agent"
PARTITION_LAG = "partition_lag_records"
HELP = {
    "polled_records_total": "Records that polls have returned.",
    "polled_batches_total": "Batches that polls have returned.",
    "assign_partitions_total": "Partitions that were assigned.",
    "revoke_partitions_total": "Partitions that were revoked.",
    "lost_partitions_total": "Partitions that were lost with the session, or by an eviction.",
    "assigned_partitions": "Partitions that are assigned now.",
    "paused_partitions": "Those of them that are paused.",
    "unpositioned_partitions": "Those of them without a position, or at an undecodable record.",
    "unreadable_partitions": "Those of them whose fetches fail, until their next records; the log says why.",
    "retained_records": "Records that were fetched and not returned yet.",
    "lag_records": "Records from the positions to the ends of the partitions, as far as these are known.",
    "lag_records_max": "Records from the position to the end of the partition that is farthest behind.",
    PARTITION_LAG: "Records from the position to the end of a partition whose end is known.",
    "unmeasured_partitions": "Partitions whose end is not known.",
    "undecodable_records_total": "Records that were skipped because they cannot be deserialized.",
    "offsets_out_of_range_total": "Positions that Kafka did not have, or whose records it has lost since.",
    "zookeeper_refusals_total": "Calls that ZooKeeper has refused, see the log.",
    "lease_ms": "Time left to return records without an answer of ZooKeeper; 0 without a lease.",
    "since_poll_ms": "Time since the last poll.",
    "longest_since_poll_ms": "Longest time between two polls so far.",
    "loop_idle_ms": "Time since the agent's own loop, which keeps its session, has moved.",
    "child_running": "1 if the child runs.",
    "child_restarts_total": "Children that have ended by themselves and were started again.",
    "in_flight_records": "Records that the child has and has not acknowledged.",
    "failures_total": "Failures that the child has reported.",
    "dead_letters_total": "Records that were given up as dead letters.",
}


def numbers(consumer: Consumer, run_counts: RunCounts) -> dict[str, float]:
    """Return all numbers by name; those that end in `_total` only grow."""
    found = consumer.metrics()
    if run_counts.has_child:
        found |= {
            "child_running": run_counts.is_child_running,
            "child_restarts_total": run_counts.restarts,
            "in_flight_records": run_counts.in_flight,
            "failures_total": run_counts.failures,
            "dead_letters_total": run_counts.dead_letters,
        }
    return found


def families(found: Mapping[str, float], labels: Mapping[str, str]) -> Iterator[Metric]:
    """Return the numbers as Prometheus wants them: times in seconds."""
    for name, value in found.items():
        family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        is_time = name.endswith("_ms")
        shown = f"{name.removesuffix('_ms')}_seconds" if is_time else name
        metric = family(f"{PREFIX}_{shown}", HELP[name], labels=list(labels))
        metric.add_metric(list(labels.values()), value / 1_000 if is_time else float(value))
        yield metric


def lags(known: Mapping[TopicPartition, int], labels: Mapping[str, str]) -> Metric:
    """Return the lag of each partition as Prometheus wants it."""
    metric = GaugeMetricFamily(f"{PREFIX}_{PARTITION_LAG}", HELP[PARTITION_LAG], labels=[*labels, "topic", "partition"])
    for (topic, number), records in sorted(known.items()):
        metric.add_metric([*labels.values(), topic, str(number)], float(records))
    return metric


class _Numbers(Collector):
    def __init__(self, consumer: Consumer, run_counts: RunCounts, labels: Mapping[str, str]) -> None:
        self._consumer = consumer
        self._run_counts = run_counts
        self._labels = dict(labels)

    def collect(self) -> Iterator[Metric]:
        yield from families(numbers(self._consumer, self._run_counts), self._labels)
        yield lags(self._consumer.known_lag(), self._labels)


class Endpoints:
    """The answers of an agent's paths."""

    def __init__(self, consumer: Consumer, run_counts: RunCounts, labels: Mapping[str, str], vitals: Vitals) -> None:
        """Prepare the answers for one agent."""
        self._consumer = consumer
        self._run_counts = run_counts
        self._vitals = vitals
        self._registry = CollectorRegistry()
        self._registry.register(_Numbers(consumer, run_counts, labels))
        ProcessCollector(registry=self._registry)

    def _health(self) -> Health:
        found = numbers(self._consumer, self._run_counts)
        facts = {key: found[key] for key in ("lease_ms", "since_poll_ms", "assigned_partitions")}
        return Health(self._vitals.death(), faults_of(found), leads=False, facts=facts)

    def _healthz(self) -> tuple[bool, Mapping[str, Any]]:
        health = self._health()
        return not health.faults, {"healthy": not health.faults, **health.facts, "faults": health.faults}

    def _assignment(self) -> tuple[bool, Mapping[str, Any]]:
        positions = self._consumer.position()
        partitions = [
            {"topic": topic, "partition": number, "position": positions.get((topic, number))}
            for topic, number in self._consumer.assignment()
        ]
        return True, {"partitions": partitions}

    def serving(self, address: str) -> AbstractContextManager[int]:
        """Serve at HOST:PORT inside the `with` block, from a thread; raises ConfigurationError."""
        host, _, port = address.rpartition(":")
        pages = Pages(self._health, self._registry, {"/healthz": self._healthz, "/assignment": self._assignment})
        return serving_in_a_thread((host.strip("[]"), int(port)), pages)
