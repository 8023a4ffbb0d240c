"""The gateway's metrics, for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

PREFIX = "zkrebalancer_gateway"


@dataclass(slots=True)
class Metrics:
    """Counts; all but `connections` only grow."""

    connections: int = 0
    malformed: int = 0
    relayed_request_bytes: int = 0
    relayed_answer_bytes: int = 0
    requests: Counter[str] = field(default_factory=Counter)  # name of a request that is answered here -> number
    errors: Counter[str] = field(default_factory=Counter)  # what failed: "upstream", "zookeeper", "group" -> number


class _Numbers(Collector):
    def __init__(self, metrics: Metrics, gauges: Callable[[], dict[str, float]]) -> None:
        self._metrics = metrics
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        counts = self._metrics
        gauges = {"connections": float(counts.connections), **self._gauges()}
        for name, value in gauges.items():
            yield GaugeMetricFamily(f"{PREFIX}_{name}", f"{name.replace('_', ' ')} now", value=value)
        for name, value in (
            ("malformed_frames", counts.malformed),
            ("relayed_request_bytes", counts.relayed_request_bytes),
            ("relayed_answer_bytes", counts.relayed_answer_bytes),
        ):
            yield CounterMetricFamily(f"{PREFIX}_{name}", name.replace("_", " "), value=value)
        for name, label, counter in (
            ("group_requests", "request", counts.requests),
            ("errors", "part", counts.errors),
        ):
            family = CounterMetricFamily(f"{PREFIX}_{name}", name.replace("_", " "), labels=[label])
            for key, number in sorted(counter.items()):
                family.add_metric([key], number)
            yield family


def registry(metrics: Metrics, gauges: Callable[[], dict[str, float]]) -> CollectorRegistry:
    """Return the registry for `generate_latest`; `gauges` returns name -> present value."""
    found = CollectorRegistry()
    found.register(_Numbers(metrics, gauges))
    return found
