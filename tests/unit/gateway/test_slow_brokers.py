"""Brokers that do not answer about the offsets of some groups: others go on, and the log has the reason."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any, cast

import gevent
import pytest
from gevent.event import AsyncResult, Event
from gevent.lock import Semaphore

from tests.support.deadlines import WITHIN_S
from zkrebalancer.gateway.dialing import LinkError
from zkrebalancer.gateway.links import Links
from zkrebalancer.gateway.metrics import Metrics
from zkrebalancer.gateway.offsets import UpstreamOffsets
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.protocol.calls import Check


class OneByOne:
    """A broker that answers the requests of each connection one after the other, and lets those of one group wait."""

    def __init__(self) -> None:
        self.may_answer = Event()
        self._connections = defaultdict[int | None, Semaphore](Semaphore)

    def ask_any(self, _name: str, _fields: object) -> Any:
        return SimpleNamespace(fields=lambda: {"coordinators": [], "error_code": 0, "host": "h", "port": 1})

    def to(self, _address: object, number: int | None = None) -> Any:
        def ask(_name: str, fields: dict[str, Any], *_more: object) -> Any:
            with self._connections[number]:
                if fields["group_id"] == "slow":
                    self.may_answer.wait(WITHIN_S)
            return SimpleNamespace(fields=lambda: {"topics": []})

        return SimpleNamespace(ask=ask)


class Away:
    """Brokers that are away."""

    def ask_any(self, _name: str, _fields: object) -> Any:
        raise LinkError("away")


def offsets_at(brokers: OneByOne | Away) -> UpstreamOffsets:
    return UpstreamOffsets(cast("Links", brokers), Metrics(), lambda _group: Check("/bucket", 1))


def test_a_commit_that_waits_for_replicas_delays_no_group_of_another_partition() -> None:
    """In `_ask_patiently`, use one link for all groups: they wait with it, and fail when it takes too long."""
    brokers = OneByOne()
    offsets = offsets_at(brokers)
    answered: dict[str, AsyncResult[object]] = {group: AsyncResult() for group in ("slow", "quick")}
    for group, one in answered.items():
        offsets.send(group, "OffsetCommit", {"group_id": group}, one.set)
        gevent.idle()
    assert [one.ready() for one in answered.values()] == [False, True]
    brokers.may_answer.set()
    assert answered["slow"].get(timeout=WITHIN_S) == {"topics": []}


def test_why_offsets_are_not_available_is_logged_once_for_all_groups(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `_ask_patiently`, say nothing: one broker of several is away, and its groups cannot commit."""
    monkeypatch.setattr("zkrebalancer.gateway.offsets.PATIENCE_S", 0.02)
    monkeypatch.setattr("zkrebalancer.gateway.offsets.PAUSE_S", 0.01)
    offsets = offsets_at(Away())
    answered: list[AsyncResult[object]] = [AsyncResult() for _ in range(3)]
    for number, one in enumerate(answered):
        offsets.send(f"g{number}", "OffsetCommit", {}, one.set)
        assert one.get(timeout=WITHIN_S) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert caplog.messages == ["group g0: the brokers do not answer about offsets: away"]
