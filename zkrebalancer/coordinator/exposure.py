"""`--http` of a coordinator: probes, metrics, and pages for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from zkrebalancer.coordinator.metrics import Present, Recorded
from zkrebalancer.coordinator.monitor import Monitor
from zkrebalancer.coordinator.pages.asking import Asking
from zkrebalancer.coordinator.pages.foresight import Foresight
from zkrebalancer.coordinator.pages.site import Site
from zkrebalancer.coordinator.service_levels import ServiceLevels, measuring
from zkrebalancer.protocol.calls import Call
from zkrebalancer.runtime import http_server
from zkrebalancer.runtime.http_limits import Renderer
from zkrebalancer.runtime.http_server import Pages


@dataclass(frozen=True, slots=True)
class Servers:
    """What a coordinator uses. `kafka`: librdkafka's settings, None if it uses none; `request` makes a call."""

    zookeeper: str
    kafka: Mapping[str, str] | None
    request: Callable[[int, Call], None]
    queued_calls: Callable[[], int]
    queued_events: Callable[[], int]


def serve(address: tuple[str, int], monitor: Monitor, servers: Servers) -> Callable[[], None]:
    """Begin to serve, and to record what is shown; return how to stop. Raises ConfigurationError."""
    monitor.observed = recorded = Recorded()
    recorded.registry.register(Present(monitor, servers.queued_calls, servers.queued_events))
    levels = ServiceLevels(monitor)
    recorded.registry.register(levels)
    asking = Asking(servers.request)
    monitor.answered = asking.answered
    renderer = Renderer()
    site = Site(monitor, asking, Foresight(servers.zookeeper, servers.kafka), renderer, levels.lag_line)
    pages = Pages(monitor.health, recorded.registry, site=site, renderer=renderer)
    server = http_server.serve(address, pages)

    uses = monitor, servers.zookeeper
    stop_measuring = None if servers.kafka is None else measuring(levels, *uses, servers.kafka)

    def stop() -> None:
        server.stop(timeout=0)
        site.close()
        if stop_measuring is not None:
            stop_measuring()

    return stop
