"""`--http`: the agent's health, metrics and partitions.

A separate thread serves one request at a time and cuts off slow clients.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from consumer_agent.consumer import Consumer
from consumer_agent.sidecar.run_counts import RunCounts
from zkrebalancer.protocol.errors import ConfigurationError

MAX_SINCE_POLL_MS = 60_000  # an agent that has not polled for longer is unhealthy
CLIENT_TIMEOUT_S = 2.0
END_TIMEOUT_S = 3.0
JSON = "application/json"
Answer = tuple[HTTPStatus, str, bytes]


def health(metrics: Mapping[str, float]) -> tuple[bool, dict[str, Any]]:
    """Check that an agent has its lease and polls, and that its child, if any, runs."""
    faults = []
    if metrics["lease_ms"] <= 0:
        faults.append("it has no lease: it is not registered, or cannot reach ZooKeeper")
    if metrics["since_poll_ms"] > MAX_SINCE_POLL_MS:
        faults.append(f"it has not polled for {metrics['since_poll_ms'] / 1_000:.0f} s")
    if not metrics.get("child_running", 1):
        faults.append("its child is not running")
    shown = {key: metrics[key] for key in ("lease_ms", "since_poll_ms", "assigned_partitions")}
    return not faults, {"healthy": not faults, **shown, "faults": faults}


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


class _Numbers(Collector):
    def __init__(self, read: Callable[[], dict[str, float]], labels: Mapping[str, str]) -> None:
        self._read = read
        self._labels = dict(labels)

    def collect(self) -> Iterator[Metric]:
        for name, value in self._read().items():
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            text = name.removesuffix("_total").replace("_", " ")
            metric = family(f"consumer_agent_{name}", f"{text} of this agent", labels=list(self._labels))
            metric.add_metric(list(self._labels.values()), value)
            yield metric


class Endpoints:
    """The answers of the paths."""

    def __init__(self, consumer: Consumer, run_counts: RunCounts, labels: Mapping[str, str]) -> None:
        """Prepare the answers for one agent."""
        self._consumer = consumer
        self._run_counts = run_counts
        self._registry = CollectorRegistry()
        self._registry.register(_Numbers(self._numbers, labels))

    def answer(self, path: str) -> Answer:
        """Return status, content type and content."""
        match path.partition("?")[0]:
            case "/healthz":
                is_well, document = health(self._numbers())
                status = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
                return status, JSON, _document(document)
            case "/metrics":
                return HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(self._registry)
            case "/assignment":
                return HTTPStatus.OK, JSON, _document(self._assignment())
            case _:
                known = "unknown path; try /healthz, /metrics or /assignment"
                return HTTPStatus.NOT_FOUND, JSON, _document({"error": known})

    def _numbers(self) -> dict[str, float]:
        return numbers(self._consumer, self._run_counts)

    def _assignment(self) -> dict[str, Any]:
        positions = self._consumer.position()
        partitions = [
            {"topic": topic, "partition": number, "position": positions.get((topic, number))}
            for topic, number in self._consumer.assignment()
        ]
        return {"partitions": partitions}


@contextlib.contextmanager
def serving(address: str, endpoints: Endpoints) -> Iterator[int]:
    """Serve at HOST:PORT inside the `with` block; yield the port, which the system chooses if it is 0.

    Raises:
        ConfigurationError: the address cannot be served.

    """
    server = _bound(address, endpoints)
    thread = threading.Thread(target=server.serve_forever, name="consumer-agent-http", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join(END_TIMEOUT_S)


def _bound(address: str, endpoints: Endpoints) -> HTTPServer:
    host, _, port = address.rpartition(":")

    class Handler(BaseHTTPRequestHandler):
        timeout = CLIENT_TIMEOUT_S

        def do_GET(self) -> None:  # http.server's name for it
            status, content_type, content = endpoints.answer(self.path)
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with contextlib.suppress(OSError):  # the client has gone
                self.wfile.write(content)

        def log_message(self, *_arguments: object) -> None:
            """Log nothing: probes come all the time."""

    class Server(HTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        def handle_error(self, *_arguments: object) -> None:
            """Log nothing: a client disconnected during its request."""

    try:
        return Server((host.strip("[]"), int(port)), Handler)
    except OSError as error:
        raise ConfigurationError(f"http: {address} cannot be served: {error.strerror}") from None


def _document(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document).encode() + b"\n"
