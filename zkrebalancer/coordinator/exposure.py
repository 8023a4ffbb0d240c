"""`--http` of a coordinator."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from zkrebalancer.coordinator.metrics import Present, Recorded
from zkrebalancer.coordinator.monitor import Monitor
from zkrebalancer.runtime import http_server
from zkrebalancer.runtime.http_server import Pages


def serve(
    address: tuple[str, int], monitor: Monitor, queued_calls: Callable[[], int], queued_events: Callable[[], int]
) -> Callable[[], None]:
    """Begin to serve, and to record what metrics show; return how to stop. Raises ConfigurationError."""
    monitor.observed = recorded = Recorded()
    recorded.registry.register(Present(monitor, queued_calls, queued_events))
    server = http_server.serve(address, Pages(monitor.health, recorded.registry))
    return partial(server.stop, timeout=0)
