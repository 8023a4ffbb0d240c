"""The coordinator's shell, as far as it can be tested without a ZooKeeper."""

from __future__ import annotations

import gc
import logging
import os
from pathlib import Path
from typing import Literal

import gevent
import pytest
from gevent import GreenletExit
from gevent.event import Event

from zkrebalancer.coordinator.service import COLLECT_INTERVAL_S, MAX_COLLECT_DELAY_S, MAX_WAIT_S, CoordinatorService
from zkrebalancer.observe.events import EventLog
from zkrebalancer.rebalance.coordinator import Coordinator
from zkrebalancer.rebalance.effects import Emit
from zkrebalancer.rebalance.election import Identity


def test_a_full_disk_pauses_telemetry_but_not_the_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_descriptor: int, _line: bytes) -> int:
        raise OSError(28, os.strerror(28))

    event_log = EventLog(tmp_path, "coordinator-1")
    service = CoordinatorService("z:1", Identity(1, "h"), 1_000, {}, event_log)
    with caplog.at_level(logging.WARNING), monkeypatch.context() as patched:
        patched.setattr(os, "write", refuse)
        for _ in range(2):
            service._perform(Emit("leader_elected", None, None, None, {"epoch": 1, "brokerid": 1}))
            assert event_log.flush(10)
    event_log.close()
    text = "telemetry: [Errno 28] No space left on device; events are dropped until files can be written again"
    first, last = caplog.messages
    assert (first, last.endswith("; 2 events before it were dropped")) == (text, True)


def a_service() -> CoordinatorService:
    service = CoordinatorService("z:1", Identity(1, "h"), 1_000, {}, EventLog(None, "coordinator-1"))
    service.coordinator.machines = (Coordinator(Identity(1, "h")),)
    return service


def collections(monkeypatch: pytest.MonkeyPatch, service: CoordinatorService, count: int) -> list[float]:
    """Return when the next full collections begin, in seconds; time passes in the patched sleep, and in the wait."""
    now_s = 0.0
    collected_s: list[float] = []

    def pass_time(pause_s: float) -> None:
        nonlocal now_s
        if len(collected_s) == count or now_s > 10 * COLLECT_INTERVAL_S:
            raise GreenletExit
        now_s += pause_s

    class Due(Event):
        def wait(self, timeout: float | None = None) -> Literal[True]:
            if not self.is_set():
                pass_time(timeout or 0.0)
            return True

    was_due, service._garbage.due = service._garbage.due.is_set(), Due()
    if was_due:
        service._garbage.due.set()
    monkeypatch.setattr(gevent, "sleep", pass_time)
    monkeypatch.setattr(gc, "unfreeze", lambda: None)
    monkeypatch.setattr(gc, "collect", lambda: collected_s.append(now_s))
    with pytest.raises(GreenletExit):
        service._collect_garbage()
    return collected_s


def test_a_group_that_backs_off_for_ever_postpones_full_collections_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = a_service()
    monkeypatch.setattr(Coordinator, "groups_being_rebalanced", {"backs-off": True, "idle": False})
    longest_s = COLLECT_INTERVAL_S + MAX_COLLECT_DELAY_S
    assert collections(monkeypatch, service, 3) == [longest_s, 2 * longest_s, 3 * longest_s]


def test_what_a_machine_still_has_is_waited_for_before_it_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `_collect_garbage`, do not: its groups would stay for an hour more."""
    service = a_service()
    service._garbage.resigned()
    left = [True, True, False]
    monkeypatch.setattr(Coordinator, "has_rubbish", property(lambda _machine: left.pop(0)))
    assert collections(monkeypatch, service, 1) == [2 * MAX_WAIT_S]


def test_garbage_is_collected_soon_after_a_leadership(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `_perform`, do not tell `Garbage`; in `_collect_garbage`, always wait for the whole interval."""
    service = a_service()
    service._perform(Emit("leader_resigned", None, None, None, {"epoch": 1, "brokerid": 1, "reason": "asked to stop"}))
    assert collections(monkeypatch, service, 2) == [0.0, COLLECT_INTERVAL_S]
