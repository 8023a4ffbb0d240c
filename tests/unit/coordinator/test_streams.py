"""The places of those who follow a page."""

from __future__ import annotations

from collections.abc import Generator
from typing import cast

import gevent
import pytest
from gevent.event import Event

from tests.support.deadlines import WITHIN_S
from zkrebalancer.coordinator.pages import live
from zkrebalancer.coordinator.pages.live import Streams


def test_a_plan_that_was_sent_frees_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Streams.once`, do not count down: after ten plans, nobody can follow anything."""
    monkeypatch.setattr(live, "MAX_STREAMS", 1)
    streams = Streams()
    for _ in range(2):
        assert not streams.is_full
        assert list(streams.once(lambda: b"1"))[-1] == b"data: 1\n\n"


def test_a_reader_who_goes_before_the_plan_is_made_frees_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Streams.once`, send nothing before the plan: ten reloads of a slow group's page keep all others out."""
    monkeypatch.setattr(live, "MAX_STREAMS", 1)
    monkeypatch.setattr(live, "PING_INTERVAL_S", 0.001)
    has_ended = Event()

    def make() -> bytes:
        try:
            gevent.sleep(2 * WITHIN_S)
        finally:
            has_ended.set()
        return b"1"

    streams = Streams()
    pieces = streams.once(make)
    with gevent.Timeout(WITHIN_S):
        next(pieces)
        assert next(pieces) == live.PING  # upon which the server notices that the reader has gone
        cast("Generator[bytes]", pieces).close()
        assert not streams.is_full
        assert has_ended.wait(WITHIN_S), "it is still made, for nobody"
