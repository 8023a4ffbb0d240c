"""Pages and metrics of a coordinator take turns, and what waited for its turn is new."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import gevent
import pytest
from gevent.event import Event
from prometheus_client.core import Metric

from tests.support.deadlines import WITHIN_S
from tests.support.groups import world_with
from tests.support.page_site import monitor_of, site_of
from tests.support.world import GROUP
from zkrebalancer.coordinator import exposure
from zkrebalancer.coordinator.exposure import Servers
from zkrebalancer.coordinator.metrics import Present
from zkrebalancer.coordinator.pages import overview
from zkrebalancer.protocol import history, paths
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.effects import Emit
from zkrebalancer.runtime import clock, http_server
from zkrebalancer.runtime.http_limits import Renderer
from zkrebalancer.runtime.http_server import Answer, Pages

TURNS = 10  # of the loop and its timers, after which whoever can go on has done so


def let_others_go_on() -> None:
    for _ in range(TURNS):
        gevent.sleep(0.001)


def test_a_page_that_waited_for_its_turn_is_new_and_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Site._listing`, look before the turn, or make the page for each reader."""
    now_us, counts = 2_000_000, list[int]()
    monkeypatch.setattr(clock, "steady_us", lambda: now_us)
    document = overview.document

    def counted(*arguments: Any) -> dict[str, Any]:
        counts.append(1)
        return document(*arguments)

    monkeypatch.setattr(overview, "document", counted)
    world, renderer, may_end = world_with(GroupSettings(), "a"), Renderer(), Event()

    def last_long() -> Callable[[], bytes]:
        assert may_end.wait(WITHIN_S)
        return lambda: b""

    site = site_of(world, world.leader(), renderer=renderer)
    gevent.spawn(renderer.make, last_long)
    let_others_go_on()
    readers = [gevent.spawn(site, "/page/groups", "") for _ in range(3)]
    let_others_go_on()
    assert counts == []
    world.add_agent("b")
    world.pass_time(2_000)
    now_us += 60_000_000
    may_end.set()
    for reader in readers:
        answer = reader.get(timeout=WITHIN_S)
        assert isinstance(answer, Answer)
        assert b'"members":2' in answer.content
    assert counts == [1]


def test_a_groups_page_that_waited_for_its_turn_has_what_happened_meanwhile() -> None:
    """In `Site._prepared_group`, make the page of a history that was read before a rebalance, or of former levels."""
    world, renderer, may_end = world_with(GroupSettings(slo={"lag_s": 30.0}), "a"), Renderer(), Event()
    nodes = {path: node.content for path, node in world.zk.nodes.items()}
    lines = ["slo.lag_s=30: 1 s"]

    def last_long() -> Callable[[], bytes]:
        assert may_end.wait(WITHIN_S)
        return lambda: b""

    site = site_of(world, world.leader(), nodes, renderer)
    site._lag_line = lambda _group: lines[-1]
    gevent.spawn(renderer.make, last_long)
    let_others_go_on()
    reader = gevent.spawn(site, "/page/group", f"name={GROUP}")
    let_others_go_on()
    world.add_agent("b")
    world.pass_time(2_000)
    nodes[paths.history(GROUP)] = world.zk.nodes[paths.history(GROUP)].content
    lines.append("slo.lag_s=30: 2 s")
    site._recent.note(Emit("member_joined", GROUP, 1, None, {"member": "b"}), "member-joined", 1)
    may_end.set()
    answer = reader.get(timeout=WITHIN_S)
    assert isinstance(answer, Answer)
    found = json.loads(answer.content)
    past = history.decode(nodes[paths.history(GROUP)]).rebalances
    assert (found["members"], len(found["history"]), found["levels"][-1]) == (2, len(past), lines[-1])


def test_other_pages_and_other_counts_are_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Rendered`, find what was made of another count, or keep all."""
    monkeypatch.setattr(overview, "MAX_KEPT", 2)
    rendered, count, role = overview.Rendered(), overview.Listed(), {"leads": True}
    wanted = [overview.Wanted(page=number) for number in range(3)]
    for page in wanted:
        assert rendered.find(count, role, page) is None
        rendered.keep(count, role, page, b"%d" % page.page)
    assert [rendered.find(count, role, page) for page in wanted] == [None, b"1", b"2"]
    assert rendered.find(overview.Listed(), role, wanted[2]) is None
    assert rendered.find(count, {"leads": False}, wanted[2]) is None
    rendered.keep(overview.Listed(), role, wanted[0], b"new")
    assert rendered.find(count, role, wanted[2]) is None


def test_metrics_are_not_made_beside_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `exposure.serve`, give each a renderer of its own."""
    served = list[Pages]()
    monkeypatch.setattr(http_server, "serve", lambda _address, pages: served.append(pages))
    begun, may_end, collects = threading.Event(), threading.Event(), list[int]()

    def slow(*_arguments: object) -> dict[str, Any]:
        begun.set()
        assert may_end.wait(WITHIN_S)
        return {}

    def collect(_present: Present) -> Iterator[Metric]:
        collects.append(1)
        return iter(())

    monkeypatch.setattr(overview, "document", slow)
    monitor = monitor_of(world_with(GroupSettings(), "a").leader())
    exposure.serve(("h", 1), monitor, Servers("z:1", None, mock.Mock(), lambda: 0, lambda: 0))
    monkeypatch.setattr(Present, "collect", collect)
    page = gevent.spawn(served[0].respond, "/page/groups", "", "")
    with gevent.Timeout(WITHIN_S):
        while not begun.is_set():
            gevent.sleep(0.001)
    metrics = gevent.spawn(served[0].respond, "/metrics", "", "")
    let_others_go_on()
    assert collects == []
    may_end.set()
    for asked in (page, metrics):
        answer = asked.get(timeout=WITHIN_S)
        assert isinstance(answer, Answer)
        assert answer.status == "200 OK"
    assert collects == [1]
