"""How a play waits for a group at rest, without a group."""

from __future__ import annotations

import math
from unittest import mock

import pytest

from zkrebalancer.experiments import lab as labs
from zkrebalancer.experiments import play as plays
from zkrebalancer.experiments.lab import ASK_INTERVAL_S, Lab
from zkrebalancer.experiments.picture import Picture
from zkrebalancer.experiments.play import Play, is_assigned
from zkrebalancer.experiments.protocols import BACKLOG_PHASE_S, HEARTBEATS_MS, PHASE_S, PROTOCOLS, QUIET_S
from zkrebalancer.experiments.scenarios import SCENARIOS
from zkrebalancer.experiments.scenarios.model import Cast, Step


def made(protocol: str, scenario: str, seed: int = 1) -> Play:
    about = (PROTOCOLS[protocol], "tuned", SCENARIOS[scenario], Cast(2, 6, seed))
    lab, watch = Lab(mock.Mock(), mock.Mock()), mock.MagicMock(picture=Picture())
    return Play(lab, watch, *about, {}, [], [], mock.Mock(), print)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return all waits so far, which make up the time."""
    slept: list[float] = []
    for module in (labs, plays):
        monkeypatch.setattr(module, "gevent", mock.Mock(sleep=slept.append))
        monkeypatch.setattr(module, "time", mock.Mock(monotonic=lambda: sum(slept)))
    return slept


def test_a_step_ends_as_exactly_after_a_long_wait_as_after_a_short_one(slept: list[float]) -> None:
    made("classic-range", "steady")._wait_at_rest(Step("rest", at_least_s=60.0))
    assert QUIET_S["tuned"] < 60.0
    assert 60.0 <= sum(slept) < 60.0 + 2 * ASK_INTERVAL_S
    assert max(slept) == ASK_INTERVAL_S


def test_the_first_change_comes_while_the_group_reads_the_backlog(slept: list[float]) -> None:
    """In `_wait_at_rest` or `pause_before`, wait as in other scenarios: the backlog is read meanwhile."""
    for scenario, most_s in (("backlog", QUIET_S["tuned"] + BACKLOG_PHASE_S), ("crash", math.inf)):
        slept.clear()
        play = made("kip848", scenario, 3)
        play._wait_at_rest(Step("start"))
        assert play.rest_before()
        slept.append(play.pause_before(2))
        assert QUIET_S["tuned"] <= sum(slept) <= most_s + 3 * ASK_INTERVAL_S
        assert play.pause_before(3) == made("kip848", "crash", 3).pause_before(3), "later changes as elsewhere"
    assert sum(slept) > SCENARIOS["crash"].before_s + QUIET_S["tuned"]


def test_a_step_meets_heartbeats_in_any_phase_and_the_same_for_every_protocol() -> None:
    heartbeat_s = 0.5
    phases = list[float]()
    for seed in range(1, 101):
        pauses = [made(name, "steady", seed).pause_before(3) for name in ("central-incremental", "kip848")]
        assert pauses[0] == pauses[1]
        phases.append(pauses[0] % heartbeat_s)
    quarters = [sum(n <= 4 * phase / heartbeat_s < n + 1 for phase in phases) for n in range(4)]
    assert min(quarters) >= 15, quarters
    assert all((PHASE_S[name] * 1_000) % ms == 0 for name, ms in {"tuned": 500, **HEARTBEATS_MS}.items())


@pytest.mark.parametrize(
    ("owners", "members", "expected"),
    [
        ("aab", "ab", True),
        ("abc", "abcd", True),  # one has to be idle
        ("aaa", "ab", False),  # the change is not over yet
        ("aac", "ab", False),
        ("aa", "a", False),
    ],
)
def test_when_a_group_is_assigned(owners: str, members: str, expected: bool) -> None:
    """In `is_assigned`, forget idle members: a step would end before the new one has got anything."""
    owned = {("t", number): owner for number, owner in enumerate(owners)}
    assert is_assigned(owned, {("t", number) for number in range(3)}, set(members)) is expected
