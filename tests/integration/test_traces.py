"""Rebalances as OpenTelemetry traces, at a collector that listens on a real socket."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.integration.scenario import Scenario
from tests.support.deadlines import WITHIN_S
from zkrebalancer.coordinator import traces as traces_module
from zkrebalancer.coordinator.traces import Traces, trace_id
from zkrebalancer.protocol.settings import INCREMENTAL
from zkrebalancer.rebalance.effects import Emit, EventField

CAUSE = "5b40994d-39aa-520c-8128-1933a781020c"
PLANNED: dict[str, EventField] = {
    "mode": "incremental",
    "member_count": 2,
    "partition_count": 6,
    "moved_count": 3,
    "plan_us": 400,
}
DAY_NS = 86_400 * 10**9
ENDED: dict[str, EventField] = {"outcome": "finished", "late_members": ["m"], "pause_us_max": 1_500, "moved_count": 3}


def sent(command_id: str) -> dict[str, EventField]:
    return {"command_id": command_id, "option": "stop-fetcher", "member": "m", "partition_count": 3}


class Followed:
    """Traces that are kept in memory; each event comes a millisecond after the one before."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._steady_ns = self.wall_ahead_ns = 0
        self.traces = Traces(self._exporter, 1, lambda: self._steady_ns + self.wall_ahead_ns, self._tick)

    def _tick(self) -> int:
        self._steady_ns += 1_000_000
        return self._steady_ns

    def note(self, kind: str, fields: dict[str, EventField], cause_id: str = CAUSE) -> None:
        self.traces.note(Emit(kind, "g", 7, cause_id, fields), "member-joined")

    def spans(self) -> dict[str, ReadableSpan]:
        self.traces.close()
        return {span.name: span for span in self._exporter.get_finished_spans()}


@pytest.mark.parametrize("jump_ns", [0, DAY_NS, -DAY_NS])
def test_a_rebalance_is_a_span_with_its_plan_and_its_commands(jump_ns: int) -> None:
    """In `Traces.note`, look at the wall clock: it may jump during a rebalance."""
    followed = Followed()
    followed.note("rebalance_requested", {"trigger": "member-joined"})
    followed.wall_ahead_ns = jump_ns
    followed.note("rebalance_planned", PLANNED)
    followed.note("command_sent", sent("c1"))
    followed.note("command_acked", {"command_id": "c1", "member": "m"})
    followed.note("rebalance_finished", ENDED)
    spans = followed.spans()
    root, plan, command = (spans[name] for name in ("rebalance g", "plan", "stop-fetcher"))
    assert {(span.start_time, span.end_time) for span in (root, command)} == {
        (1_000_000, 5_000_000),
        (3_000_000, 4_000_000),
    }
    assert (plan.start_time, plan.end_time) == (1_600_000, 2_000_000)
    assert all(span.parent == root.context for span in (plan, command))
    assert root.context.trace_id == trace_id(CAUSE) == int(CAUSE.replace("-", ""), 16)
    known = dict(root.attributes or {})
    assert [known[f"zkrebalancer.{name}"] for name in ("trigger", "moved_count", "outcome", "late_members")] == [
        "member-joined",
        3,
        "finished",
        ("m",),
    ]
    assert dict(command.attributes or {})["zkrebalancer.member"] == "m"
    assert {span.status.is_ok for span in spans.values()} == {True}


def test_what_does_not_end_well_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Traces._end`, leave open commands as they are; in `Traces._begun`, abandon nothing."""
    monkeypatch.setattr(traces_module, "MAX_OPEN", 1)
    followed = Followed()
    for cause_id in ("first", CAUSE):
        followed.note("rebalance_requested", {"trigger": "retry"}, cause_id)
        followed.note("rebalance_planned", PLANNED, cause_id)
    followed.note("command_sent", sent("c1"))
    followed.note("rebalance_finished", {**ENDED, "outcome": "failed"})
    followed.note("rebalance_finished", ENDED, "first")  # it was abandoned
    followed.note("command_acked", {"command_id": "c1", "member": "m"})
    followed.traces.close()
    spans = followed._exporter.get_finished_spans()
    described = sorted(f"{span.name}: {span.status.description}" for span in spans if span.name != "plan")
    assert described == [
        "rebalance g: failed",
        "rebalance g: this coordinator does not follow it any more",
        "stop-fetcher: not acknowledged",
    ]


def test_requests_that_need_no_plan_leave_no_trace_and_end_no_rebalance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reconciliation is one. In `Traces._requested`, start the root span."""
    monkeypatch.setattr(traces_module, "MAX_OPEN", 2)
    monkeypatch.setattr(traces_module, "MAX_REQUESTED", 2)
    followed = Followed()
    followed.note("rebalance_requested", {"trigger": "member-joined"})
    followed.note("rebalance_planned", PLANNED)
    for number in range(5):
        followed.note("rebalance_requested", {"trigger": "reconciliation"}, f"idle-{number}")
    followed.note("rebalance_finished", ENDED)
    assert set(followed.spans()) == {"rebalance g", "plan"}


def test_of_many_commands_the_first_have_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces_module, "MAX_COMMANDS", 2)
    followed = Followed()
    followed.note("rebalance_requested", {"trigger": "retry"})
    for number in range(5):
        followed.note("command_sent", sent(f"c{number}"))
    followed.note("rebalance_finished", ENDED)
    followed.traces.close()
    spans = followed._exporter.get_finished_spans()
    assert [span.name for span in spans].count("stop-fetcher") == 2
    assert dict(spans[-1].attributes or {})["zkrebalancer.command_count"] == 5


def test_a_collector_that_never_answers_delays_the_end_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Traces.close`, wait for the SDK."""
    monkeypatch.setattr(traces_module, "CLOSE_LIMIT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        exporter = OTLPSpanExporter(f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces", timeout=60)
        traces = Traces(exporter, 1)
        for number in range(traces_module.MAX_QUEUED + 10):  # more than fit
            for kind, fields in (("rebalance_requested", {"trigger": "retry"}), ("rebalance_finished", ENDED)):
                traces.note(Emit(kind, "g", 7, f"id-{number}", fields), "retry")
        began_s = time.monotonic()
        traces.close()
        assert time.monotonic() - began_s < 20  # the SDK waits for 30 s
        exporter.shutdown()  # type: ignore[no-untyped-call]


class Collector(ThreadingHTTPServer):
    """An OTLP collector."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # the library's name
                content = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    raise AssertionError("no compression was asked for")
                request = ExportTraceServiceRequest.FromString(content)
                found = [span for of in request.resource_spans for scope in of.scope_spans for span in scope.spans]
                collector.spans += found
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_arguments: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield found
        found.shutdown()
        thread.join(WITHIN_S)


def test_a_coordinator_sends_its_rebalances_to_a_collector(scenario: Scenario, collector: Collector) -> None:
    url = f"http://127.0.0.1:{collector.server_port}/v1/traces"
    scenario.add_coordinator(environment={"ZKREBALANCER_COORDINATOR_TRACES": url})
    scenario.add_topic("t")
    group = scenario.add_group(INCREMENTAL, members=2)
    scenario.settle(group)

    def whole() -> list[list[Span]]:
        """Each rebalance of the group with its parts; one that was superseded at once sent no command."""
        spans = list(collector.spans)
        roots = [span for span in spans if span.name == f"rebalance {group}"]
        found = [[root, *(span for span in spans if span.parent_span_id == root.span_id)] for root in roots]
        return [spans for spans in found if {"plan", "start-fetcher"} <= {span.name for span in spans}]

    scenario.lab.wait_for("a trace with a plan and a command", lambda: bool(whole()))
    for root, *parts in whole():
        assert all(root.start_time_unix_nano <= span.start_time_unix_nano for span in parts)
