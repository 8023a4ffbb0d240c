"""How a play waits for a group at rest, without a group."""

from __future__ import annotations

from unittest import mock

import pytest

from zkrebalancer.experiments import lab as labs
from zkrebalancer.experiments import play as plays
from zkrebalancer.experiments.lab import ASK_INTERVAL_S, Lab
from zkrebalancer.experiments.picture import Picture
from zkrebalancer.experiments.play import Play
from zkrebalancer.experiments.protocols import PROTOCOLS, QUIET_S
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
