"""Rebalances as OpenTelemetry traces: cause, plan, and each member's command until its acknowledgement.

Spans are made of the events of telemetry on the coordinator's loop, a fraction of a millisecond for each rebalance; a
thread of the SDK sends them in batches. What does not fit into its queue is dropped, so a collector that is away or
slow delays nothing.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Status, StatusCode

from zkrebalancer.coordinator.monitor import Monitor
from zkrebalancer.protocol.shards import concerns
from zkrebalancer.rebalance.effects import Emit

MAX_REQUESTED = 5_000  # requests without a plan: most never get one; with more, the oldest are forgotten
MAX_OPEN = 5_000  # rebalances under way; with more, the oldest end as abandoned
MAX_COMMANDS = 500  # spans of one rebalance; further commands are counted
MAX_QUEUED = 4_096  # spans that wait to be sent
SEND_INTERVAL_MS = 2_000
SEND_TIMEOUT_MS = 5_000
CLOSE_LIMIT_S = 5.0  # then spans that wait are lost
MAX_LATE = 20  # names in an attribute
SERVICE = "zkrebalancer-coordinator"
NOT_FOLLOWED = "this coordinator does not follow it any more"


class _Ids(RandomIdGenerator):
    """Trace ids that follow from the cause of a rebalance, so that a trace is found by the `cause_id` of its events."""

    cause_id = ""

    def generate_trace_id(self) -> int:
        """Return the id of the trace that begins."""
        return trace_id(self.cause_id) if self.cause_id else super().generate_trace_id()


def trace_id(cause_id: str) -> int:
    """Return the trace id of a rebalance: its cause id without hyphens, if that is a UUID."""
    text = cause_id.replace("-", "")
    is_uuid = len(text) == 32 and all(letter in "0123456789abcdef" for letter in text)
    digest = text if is_uuid else hashlib.sha256(cause_id.encode()).hexdigest()[:32]
    return int(digest, 16) or 1


@dataclass(frozen=True, slots=True)
class _Request:
    """A rebalance that was requested, and may need no plan."""

    group: str
    trigger: str
    now_ns: int
    ahead_ns: int  # of the wall clock before the steady one


@dataclass(slots=True)
class _Open:
    """A rebalance under way. `commands`: spans of those that are not acknowledged, by their ids."""

    root: trace.Span
    context: Context
    requested_ns: int
    ahead_ns: int  # of the wall clock, when it was requested, before the steady one
    group: str
    commands: dict[str, trace.Span] = field(default_factory=dict)
    command_count: int = 0


class Traces:
    """Makes the spans."""

    def __init__(
        self,
        exporter: SpanExporter,
        broker_id: int,
        now_ns: Callable[[], int] = time.time_ns,
        steady_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Send to `exporter`. A span begins by the wall clock, and lasts by the other one, which never jumps."""
        self._ids = _Ids()
        resource = Resource.create({"service.name": SERVICE, "service.instance.id": str(broker_id)})
        self._provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(
                exporter,
                max_queue_size=MAX_QUEUED,
                schedule_delay_millis=SEND_INTERVAL_MS,
                export_timeout_millis=SEND_TIMEOUT_MS,
            )
        )
        self._tracer = self._provider.get_tracer("zkrebalancer")
        self._now_ns = now_ns
        self._steady_ns = steady_ns
        self._requests: OrderedDict[str, _Request] = OrderedDict()  # by cause id
        self._open: OrderedDict[str, _Open] = OrderedDict()  # by cause id

    def note(self, effect: Emit, _cause: str) -> None:
        """Follow an event."""
        if effect.kind == "leader_resigned":
            self._resigned(effect)
        handle = self._handlers.get(effect.kind)
        if handle is not None and effect.cause_id is not None:
            handle(self, effect, effect.cause_id, self._steady_ns())

    def close(self) -> None:
        """End what is under way, and send what waits, for a limited time."""
        self._abandon(0)
        # The SDK tries each waiting batch again and again before it gives up: without a limit, that took 45 s.
        closing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(CLOSE_LIMIT_S)

    def _requested(self, effect: Emit, cause_id: str, steady_ns: int) -> None:
        now_ns = self._now_ns()
        self._requests[cause_id] = _Request(effect.group or "", _text(effect, "trigger"), now_ns, now_ns - steady_ns)
        while len(self._requests) > MAX_REQUESTED:
            self._requests.popitem(last=False)

    def _begun(self, cause_id: str) -> _Open | None:
        """Return a rebalance under way; it begins, as of its request, with the first event that follows that."""
        request = self._requests.pop(cause_id, None)
        if request is not None:
            attributes = {"zkrebalancer.group": request.group, "zkrebalancer.trigger": request.trigger}
            self._ids.cause_id = cause_id
            root = self._tracer.start_span(
                f"rebalance {request.group}", attributes=attributes, start_time=request.now_ns
            )
            self._ids.cause_id = ""
            context = trace.set_span_in_context(root)
            self._open[cause_id] = _Open(root, context, request.now_ns, request.ahead_ns, request.group)
            self._abandon(MAX_OPEN)
        return self._open.get(cause_id)

    def _planned(self, effect: Emit, cause_id: str, steady_ns: int) -> None:
        known = self._begun(cause_id)
        if known is None:
            return
        now_ns = known.ahead_ns + steady_ns
        numbers = {f"zkrebalancer.{name}": _number(effect, name) for name in _PLANNED}
        known.root.set_attributes(numbers)
        known.root.set_attribute("zkrebalancer.mode", _text(effect, "mode"))
        known.root.set_attribute("zkrebalancer.generation", effect.generation or 0)
        began_ns = max(known.requested_ns, now_ns - _number(effect, "plan_us") * 1_000)
        plan = self._tracer.start_span("plan", known.context, start_time=began_ns)
        plan.end(now_ns)

    def _sent(self, effect: Emit, cause_id: str, steady_ns: int) -> None:
        known = self._begun(cause_id)
        if known is None:
            return
        known.command_count += 1
        if known.command_count > MAX_COMMANDS:
            return
        attributes: dict[str, str | int] = {
            "zkrebalancer.member": _text(effect, "member"),
            "zkrebalancer.partition_count": _number(effect, "partition_count"),
        }
        known.commands[_text(effect, "command_id")] = self._tracer.start_span(
            _text(effect, "option"),
            known.context,
            attributes=attributes,
            start_time=known.ahead_ns + steady_ns,
        )

    def _acked(self, effect: Emit, cause_id: str, steady_ns: int) -> None:
        known = self._open.get(cause_id)
        span = None if known is None else known.commands.pop(_text(effect, "command_id"), None)
        if known is not None and span is not None:
            span.end(known.ahead_ns + steady_ns)

    def _finished(self, effect: Emit, cause_id: str, steady_ns: int) -> None:
        known = self._begun(cause_id)
        if known is None:
            return
        del self._open[cause_id]
        late = effect.fields["late_members"]
        known.root.set_attributes(
            {
                "zkrebalancer.outcome": _text(effect, "outcome"),
                "zkrebalancer.late_members": late[:MAX_LATE] if isinstance(late, list) else [],
                "zkrebalancer.pause_ms_max": _number(effect, "pause_us_max") / 1_000,
                "zkrebalancer.command_count": known.command_count,
            }
        )
        self._end(known, None if effect.fields["outcome"] != "failed" else "failed", steady_ns)

    def _resigned(self, effect: Emit) -> None:
        for cause_id in [cause_id for cause_id, known in self._open.items() if concerns(effect.fields, known.group)]:
            self._end(self._open.pop(cause_id), NOT_FOLLOWED, self._steady_ns())

    def _abandon(self, kept: int) -> None:
        """End the oldest rebalances until only so many are under way."""
        while len(self._open) > kept:
            _cause_id, known = self._open.popitem(last=False)
            self._end(known, NOT_FOLLOWED, self._steady_ns())

    @staticmethod
    def _end(known: _Open, error: str | None, steady_ns: int) -> None:
        now_ns = known.ahead_ns + steady_ns
        for span in known.commands.values():
            span.set_status(Status(StatusCode.ERROR, "not acknowledged"))
            span.end(now_ns)
        if error is not None:
            known.root.set_status(Status(StatusCode.ERROR, error))
        known.root.end(now_ns)

    _handlers: ClassVar[dict[str, Callable[[Traces, Emit, str, int], None]]] = {
        "rebalance_requested": _requested,
        "rebalance_planned": _planned,
        "command_sent": _sent,
        "command_acked": _acked,
        "rebalance_finished": _finished,
    }


_PLANNED = ("member_count", "partition_count", "moved_count")


def follow(monitor: Monitor, url: str) -> Callable[[], None]:
    """Send a coordinator's traces to a collector (`http://HOST:4318/v1/traces`) from now on; return how to stop."""
    traces = Traces(OTLPSpanExporter(url, timeout=SEND_TIMEOUT_MS // 1_000), monitor.shards.identity.brokerid)
    monitor.listeners.append(traces.note)
    return traces.close


def _text(effect: Emit, name: str) -> str:
    return str(effect.fields[name])


def _number(effect: Emit, name: str) -> int:
    return int(str(effect.fields[name]))
