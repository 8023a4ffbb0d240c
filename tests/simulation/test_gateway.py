"""A gateway's central groups in random order: no partition has two owners, and everything is shared in the end."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.gateway import FAULTS, GatewayRun
from tests.support import examples
from zkrebalancer.gateway.member_agent import MemberAgent
from zkrebalancer.group_protocol.error_codes import ErrorCode

SEEDS = max(2, examples.count() // 8)
SEEDS_OF_BUG = range(2, 14)  # half of them find that a stop does not wait


def test_members_on_one_session_share_everything_whatever_ends() -> None:
    seen = Counter[str]()
    for seed in range(SEEDS):
        run = GatewayRun(seed)
        run.play()
        seen += run.seen
    assert seen.keys() == set(FAULTS)


def play_all() -> None:
    """Play until a seed finds the bug: which one it is changes with whatever is drawn."""
    for seed in SEEDS_OF_BUG:
        GatewayRun(seed).play()


def test_a_stop_that_does_not_wait_for_the_client_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemberAgent, "_has_let_go", lambda _agent, _partitions: True)
    with pytest.raises(AssertionError, match="two owners"):
        play_all()


def test_a_gateway_that_lets_nobody_in_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `GatewayRun.play`, look at members only: if there are none, nothing is asserted."""
    refusal = ErrorCode.COORDINATOR_NOT_AVAILABLE
    monkeypatch.setattr("zkrebalancer.group_protocol.central.join_error", lambda *_request, **_more: refusal)
    with pytest.raises(AssertionError, match="clients have stayed out"):
        play_all()
