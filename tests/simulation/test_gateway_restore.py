"""A gateway whose tree is lost and put back: it serves no group before the restore is complete, and then it does."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.gateway_restore import RestoredGatewayRun
from tests.support import examples
from zkrebalancer.gateway.membership import Membership

SEEDS = max(2, examples.count() // 8)
SEEDS_OF_BUG = range(130, 200)  # one in ten finds it: after another draw, it may be a later one


def test_a_gateway_waits_for_the_end_of_a_restore_wherever_that_is_killed() -> None:
    seen = Counter[str]()
    for seed in range(SEEDS):
        run = RestoredGatewayRun(seed)
        run.play()
        seen += run.seen
    assert seen["restores complete"] == seen["restores"] >= SEEDS
    assert seen["restores killed"] > 0
    assert seen["gateways waited"] > 0


def test_a_gateway_that_does_not_look_again_when_it_has_announced_itself_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look = Membership._refuse_unfinished_restore

    def look_once(membership: Membership) -> None:
        if membership._announced is None:
            look(membership)

    def play_all() -> None:
        for seed in SEEDS_OF_BUG:
            RestoredGatewayRun(seed).play()

    monkeypatch.setattr(Membership, "_refuse_unfinished_restore", look_once)
    with pytest.raises(AssertionError, match="in a part of a tree"):
        play_all()
