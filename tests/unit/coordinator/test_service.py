"""The coordinator's shell, as far as it can be tested without a ZooKeeper."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from zkrebalancer.coordinator.service import CoordinatorService
from zkrebalancer.observe.events import EventLog
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
    assert caplog.messages == [text]
