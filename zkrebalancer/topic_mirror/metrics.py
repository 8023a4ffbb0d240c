"""The topic mirror's metrics, for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from zkrebalancer.runtime import clock

PREFIX = "zkrebalancer_mirror"
OUTCOMES = ("done", "kafka", "zookeeper", "refused")


@dataclass(slots=True)
class Seen:
    """What a mirror has found and done."""

    topics: int = 0
    brokers: int = 0
    undescribed: int = 0
    refused: int = 0
    changes: int = 0
    round_s: float = 0.0
    due_us: int = 0  # when the next round should be complete
    rounds: Counter[str] = field(default_factory=Counter)  # one of OUTCOMES -> number


class _Numbers(Collector):
    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def describe(self) -> Iterable[Metric]:
        """Name nothing in advance."""
        return ()

    def collect(self) -> Iterator[Metric]:
        seen = self._seen
        overdue_s = max(0, clock.steady_us() - seen.due_us) / 1e6
        for name, text, value in (
            ("topics", "Topics in Kafka, as of the last complete round.", seen.topics),
            ("brokers", "Brokers in Kafka, as of the last complete round.", seen.brokers),
            ("undescribed_topics", "Topics that Kafka does not describe; they stay as they are.", seen.undescribed),
            ("refusals", "Brokers and topics that ZooKeeper refuses; they stay as they are.", seen.refused),
            ("round_seconds", "Time that the last round took.", seen.round_s),
            ("overdue_seconds", "Time since the next round should have been complete.", overdue_s),
        ):
            yield GaugeMetricFamily(f"{PREFIX}_{name}", text, value=float(value))
        yield CounterMetricFamily(f"{PREFIX}_changes", "Topics and brokers that were written.", value=seen.changes)
        rounds = CounterMetricFamily(
            f"{PREFIX}_rounds",
            "Rounds: done, or without an answer of kafka or zookeeper, or with changes that ZooKeeper refused.",
            labels=["outcome"],
        )
        for outcome in OUTCOMES:
            rounds.add_metric([outcome], seen.rounds[outcome])
        yield rounds


def registry(seen: Seen) -> CollectorRegistry:
    """Return the registry of a mirror."""
    found = CollectorRegistry()
    found.register(_Numbers(seen))
    ProcessCollector(registry=found)
    return found
