"""The gateway's metrics, for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from zkrebalancer.group_protocol.figures import GroupFigures
from zkrebalancer.runtime.http_server import LAG_SECONDS

PREFIX = "zkrebalancer_gateway"
PARTS = ("upstream", "zookeeper", "group")  # shown from 0 on: a counter that begins at 1 has not grown, for Prometheus


@dataclass(slots=True)
class Metrics:
    """Counts; all but `connections` only grow."""

    connections: int = 0
    malformed: int = 0
    relayed_request_bytes: int = 0
    relayed_answer_bytes: int = 0
    sessions: int = 0
    session_losses: int = 0
    requests: Counter[str] = field(default_factory=Counter)  # name of a request that is answered here -> number
    errors: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(PARTS, 0)))  # what failed -> number
    observe_lag: Callable[[float], object] = lambda _seconds: None


GAUGES = {
    "connections": "Connected clients.",
    "members": "Members of central groups with an agent here.",
    "buckets": "Buckets of groups, of 50, that this gateway serves.",
    "brokers": "Brokers with an open port.",
    "ready": "1 if /readiness answers 200.",
    "layout_readable": "1 if /consumers/gateways/layout can be read; 0: this gateway goes on with what it read last.",
    "undescribed_topics": "Topics that Kafka does not describe to this gateway any more; they stay as they are.",
    "session_connected": "1 if there is a session with ZooKeeper.",
    "lease_seconds": "Time left to serve groups without an answer of ZooKeeper.",
    "calls_under_way": "Calls to ZooKeeper that are not answered yet.",
    "pieces_bytes": "Memory for relayed data on its way, or to come; above 128 MiB, it is relayed in small pieces.",
    "large_bytes": "Memory for large or decoded requests, and large answers; beyond 256 MiB, connections are closed.",
}


@dataclass(frozen=True, slots=True)
class Present:
    """What a gateway is and does now: each of GAUGES, its groups, and whether each of them is shown."""

    gauges: Mapping[str, float]
    groups: Sequence[GroupFigures]
    is_per_group: bool


class _Numbers(Collector):
    def __init__(self, metrics: Metrics, present: Callable[[], Present]) -> None:
        self._metrics = metrics
        self._present = present

    def describe(self) -> Iterable[Metric]:
        """Name nothing in advance: that would read the state."""
        return ()

    def collect(self) -> Iterator[Metric]:
        counts, present = self._metrics, self._present()
        for name, text in GAUGES.items():
            yield GaugeMetricFamily(f"{PREFIX}_{name}", text, value=float(present.gauges[name]))
        groups = GaugeMetricFamily(
            f"{PREFIX}_groups", "Groups that this gateway knows, by state and type.", labels=["state", "type"]
        )
        for labels, number in sorted(Counter((one.state, one.group_type) for one in present.groups).items()):
            groups.add_metric(labels, number)
        yield groups
        if present.is_per_group:
            yield from _of_each(present.groups)
        for name, text, value in (
            ("malformed_frames", "Connections that were closed because of an invalid frame.", counts.malformed),
            ("relayed_request_bytes", "Bytes of requests that were relayed unread.", counts.relayed_request_bytes),
            ("relayed_answer_bytes", "Bytes of answers that were relayed unread.", counts.relayed_answer_bytes),
            ("sessions", "ZooKeeper sessions that were opened.", counts.sessions),
            ("session_losses", "ZooKeeper sessions that were lost.", counts.session_losses),
        ):
            yield CounterMetricFamily(f"{PREFIX}_{name}", text, value=value)
        for name, text, label, counter in (
            ("group_requests", "Requests that the gateway has answered itself.", "request", counts.requests),
            ("errors", "Failures, by the part that failed.", "part", counts.errors),
        ):
            family = CounterMetricFamily(f"{PREFIX}_{name}", text, labels=[label])
            for key, number in sorted(counter.items()):
                family.add_metric([key], number)
            yield family


def _of_each(groups: Sequence[GroupFigures]) -> Iterator[Metric]:
    states = GaugeMetricFamily(
        f"{PREFIX}_group_state", "1: the group is in this state.", labels=["group", "state", "type"]
    )
    members = GaugeMetricFamily(f"{PREFIX}_group_members", "Members of the group.", labels=["group"])
    generations = GaugeMetricFamily(
        f"{PREFIX}_group_generation", "Generation of a classic group, epoch of one of KIP-848.", labels=["group"]
    )
    for one in groups:
        states.add_metric([one.group, one.state, one.group_type], 1)
        members.add_metric([one.group], one.members)
        generations.add_metric([one.group], one.generation)
    yield from (states, members, generations)


def registry(metrics: Metrics, present: Callable[[], Present]) -> CollectorRegistry:
    """Return the registry of a gateway; from now on it also records the loop's lag."""
    found = CollectorRegistry()
    found.register(_Numbers(metrics, present))
    ProcessCollector(registry=found)
    lag = Histogram(
        f"{PREFIX}_loop_lag_seconds",
        "How late the loop woke up, measured once a second.",
        buckets=LAG_SECONDS,
        registry=found,
    )
    metrics.observe_lag = lag.observe
    return found
