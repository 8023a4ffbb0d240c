"""A flood of requests: one answer at a time is made, all who ask meanwhile share it, and the rate is bounded."""

from __future__ import annotations

import threading
from collections.abc import Callable

import gevent
import pytest
from gevent.event import Event
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tests.support.deadlines import WITHIN_S
from zkrebalancer.runtime import http_limits
from zkrebalancer.runtime.http_limits import Pace, Renderer, Shared
from zkrebalancer.runtime.http_server import Pages
from zkrebalancer.runtime.vitals import Health

CLIENTS = 20


class Slow(Collector):
    """Metrics that are read until the test says so."""

    def __init__(self) -> None:
        self.reads = 0
        self.may_end = Event()

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> list[Metric]:
        self.reads += 1
        assert self.may_end.wait(WITHIN_S)
        return [GaugeMetricFamily("reads", "Reads.", value=float(self.reads))]


def test_all_who_ask_for_metrics_meanwhile_get_the_same_answer() -> None:
    """In `Pages.answer`, make one for each: twenty clients delayed every event of a coordinator by 10 to 100 ms."""
    slow, registry = Slow(), CollectorRegistry()
    registry.register(slow)
    pages = Pages(lambda: Health(None, [], leads=True), registry)
    asking = [gevent.spawn(pages.answer, "/metrics") for _ in range(CLIENTS)]
    given_up = gevent.spawn(gevent.with_timeout, 0, pages.answer, "/metrics", timeout_value=None)
    assert given_up.get() is None
    slow.may_end.set()
    answers = [one.get(timeout=WITHIN_S) for one in asking]
    assert len(answers) == CLIENTS
    assert all(b"reads 1.0" in one.content for one in answers)
    assert slow.reads == 1


def test_an_answer_is_made_again_after_a_while_and_an_error_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bytes] = []

    def make() -> bytes:
        made.append(b"%d" % len(made))
        if len(made) == 1:
            raise OSError("once")
        return made[-1]

    shared = Shared(make)
    with pytest.raises(OSError, match="once"):
        shared.get()
    monkeypatch.setattr(http_limits, "MIN_KEPT_S", 3_600.0)
    monkeypatch.setattr(http_limits, "MAX_KEPT_S", 3_600.0)
    assert [shared.get() for _ in range(3)] == [b"1"] * 3
    monkeypatch.setattr(http_limits, "MAX_KEPT_S", 0.0)
    other = Shared(make)
    assert [other.get() for _ in range(3)] == [b"2", b"3", b"4"]


def test_one_answer_at_a_time_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Renderer.make`, wait for nobody."""
    monkeypatch.setattr(http_limits, "MAX_REST_S", 0.0)
    renderer, under_way, most = Renderer(), 0, 0

    def prepare() -> Callable[[], bytes]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        return end

    def end() -> bytes:
        nonlocal under_way
        under_way -= 1
        return b"made"

    asking = [gevent.spawn(renderer.make, prepare) for _ in range(CLIENTS)]
    assert [one.get(timeout=WITHIN_S) for one in asking] == [b"made"] * CLIENTS
    assert most == 1


def test_an_answer_that_nobody_waits_for_any_more_keeps_the_next_one_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Renderer.make`, end the turn with the greenlet that gives up: two threads work beside each other."""
    monkeypatch.setattr(http_limits, "MAX_REST_S", 0.0)
    renderer, may_end, prepared = Renderer(), threading.Event(), list[int]()

    def work() -> bytes:
        assert may_end.wait(WITHIN_S)
        return b"first"

    def prepare() -> Callable[[], bytes]:
        prepared.append(1)
        return lambda: b"next"

    given_up = gevent.spawn(renderer.make, lambda: work)
    gevent.sleep(0)
    given_up.kill()
    asking = gevent.spawn(renderer.make, prepare)
    for _ in range(10):  # turns of the loop and its timers, in which it would begin
        gevent.sleep(0.001)
    assert prepared == []
    may_end.set()
    assert asking.get(timeout=WITHIN_S) == b"next"


def test_an_error_while_an_answer_is_made_keeps_nobody_else_waiting() -> None:
    renderer = Renderer()

    def fail() -> Callable[[], bytes]:
        raise OSError("of this one")

    with pytest.raises(OSError, match="of this one"):
        renderer.make(fail)
    assert renderer.make(lambda: lambda: b"next") == b"next"


def test_requests_begin_at_a_bounded_rate_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Pace.wait`, wait for nothing."""
    now_s, pauses = 1_000.0, list[float]()
    monkeypatch.setattr("zkrebalancer.runtime.http_limits.time.monotonic", lambda: now_s)
    monkeypatch.setattr("zkrebalancer.runtime.http_limits.gevent.sleep", pauses.append)
    pace, interval_s = Pace(), 1 / http_limits.MAX_REQUESTS_PER_S
    for _ in range(3 * http_limits.BURST):
        pace.wait()
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(2 * http_limits.BURST * interval_s, abs=1.5 * interval_s)
    now_s += 3_600.0
    pauses.clear()
    for _ in range(http_limits.BURST):
        pace.wait()
    assert pauses == []
