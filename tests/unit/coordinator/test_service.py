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


def test_a_full_disk_ends_telemetry_but_not_the_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_descriptor: int, _line: bytes) -> int:
        raise OSError(28, os.strerror(28))

    service = CoordinatorService("z:1", Identity(1, "h"), 1_000, {}, EventLog(tmp_path, "coordinator-1"))
    monkeypatch.setattr(os, "write", refuse)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            service._perform(Emit("leader_elected", None, None, None, {"epoch": 1, "brokerid": 1}))
    assert caplog.messages == ["telemetry ends: [Errno 28] No space left on device"]
