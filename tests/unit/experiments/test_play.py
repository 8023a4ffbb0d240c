"""How a play waits for a group at rest, without a group."""

from __future__ import annotations

from unittest import mock

import pytest

from zkrebalancer.experiments import lab as labs
from zkrebalancer.experiments import play as plays
from zkrebalancer.experiments.lab import ASK_INTERVAL_S, Lab
from zkrebalancer.experiments.picture import Picture
from zkrebalancer.experiments.play import Play
from zkrebalancer.experiments.protocols import HEARTBEATS_MS, PHASE_S, PROTOCOLS, QUIET_S
from zkrebalancer.experiments.scenarios import SCENARIOS
from zkrebalancer.experiments.scenarios.model import Cast, Step


def test_a_step_ends_as_exactly_after_a_long_wait_as_after_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(labs, "gevent", mock.Mock(sleep=slept.append))
    for module in (labs, plays):
        monkeypatch.setattr(module, "time", mock.Mock(monotonic=lambda: sum(slept)))
    about = (PROTOCOLS["classic-range"], "tuned", SCENARIOS["steady"], Cast(2, 6, 1))
    lab, watch = Lab(mock.Mock(), mock.Mock()), mock.MagicMock(picture=Picture())
    play = Play(lab, watch, *about, {}, [], [], mock.Mock(), print)
    play._wait_at_rest(Step("rest", at_least_s=60.0))
    assert QUIET_S["tuned"] < 60.0
    assert 60.0 <= sum(slept) < 60.0 + 2 * ASK_INTERVAL_S
    assert max(slept) == ASK_INTERVAL_S


def test_a_step_meets_heartbeats_in_any_phase_and_the_same_for_every_protocol() -> None:
    heartbeat_s = 0.5
    phases = list[float]()
    for seed in range(1, 101):
        pauses = [
            Play(
                mock.Mock(),
                mock.Mock(),
                PROTOCOLS[name],
                "tuned",
                SCENARIOS["steady"],
                Cast(2, 6, seed),
                {},
                [],
                [],
                mock.Mock(),
                print,
            ).pause_before(3)
            for name in ("central-incremental", "kip848")
        ]
        assert pauses[0] == pauses[1]
        phases.append(pauses[0] % heartbeat_s)
    quarters = [sum(n <= 4 * phase / heartbeat_s < n + 1 for phase in phases) for n in range(4)]
    assert min(quarters) >= 15, quarters
    assert all((PHASE_S[name] * 1_000) % ms == 0 for name, ms in {"tuned": 500, **HEARTBEATS_MS}.items())
