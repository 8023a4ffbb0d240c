"""The leader is killed after each step of a rebalance, frozen, or stopped cleanly; a standby continues."""

from __future__ import annotations

import pytest

from tests.integration.scenario import Scenario
from zkrebalancer.protocol.settings import EAGER, INCREMENTAL

# A leader asks itself for a first look at the group (the first `rebalance_requested`), and its election is `multi:1`.
# Of two consumers of an eager group both are stopped, so the third command is the first start.
CASES = [
    *((INCREMENTAL, step) for step in ("multi:1", "rebalance_planned:1", "command_sent:1", "command_acked:3")),
    *((EAGER, step) for step in ("multi:3", "command_acked:1", "command_acked:3")),
]
LONG_CASES = [
    *((INCREMENTAL, step) for step in ("multi:2", "multi:3", "rebalance_requested:2")),
    *((INCREMENTAL, step) for step in ("command_sent:3", "command_acked:1", "rebalance_finished:1")),
    *((EAGER, step) for step in ("multi:1", "multi:2", "rebalance_requested:2", "rebalance_planned:1")),
    *((EAGER, step) for step in ("command_sent:1", "command_sent:3", "rebalance_finished:1")),
]


@pytest.mark.parametrize(
    ("mode", "step"), [*CASES, *(pytest.param(*case, marks=pytest.mark.long) for case in LONG_CASES)]
)
def test_the_leader_is_killed_after_a_step(scenario: Scenario, mode: str, step: str) -> None:
    scenario.begin(modes=[mode], members=2)
    before = scenario.leader()
    doomed = scenario.add_coordinator(failpoint=step)
    scenario.coordinators.remove(before)
    scenario.stop(before)
    coordinator = scenario.lab.programs[doomed]
    scenario.lab.wait_for(
        f"{doomed} leads, or dies of it", lambda: scenario.leads(doomed) or not coordinator.is_running
    )
    heir = scenario.add_coordinator()
    scenario.join_all()
    scenario.wait_end(doomed)
    scenario.coordinators.remove(doomed)
    scenario.lab.wait_for(f"{heir} leads", lambda: scenario.leads(heir))
    scenario.verify()


def test_the_leader_is_frozen_past_its_session_and_thawed(scenario: Scenario) -> None:
    """It is deposed: its writes are refused, and it becomes a standby that can lead again."""
    scenario.begin(coordinators=2)
    frozen = scenario.leader()
    scenario.join_all()
    scenario.lab.freeze(frozen)
    scenario.lab.wait_for("another leader", lambda: scenario.leader() != frozen)
    heir = scenario.leader()
    scenario.settle()
    scenario.join_all()
    scenario.lab.thaw(frozen)
    scenario.wait_event("leader_resigned", process=frozen)
    scenario.settle()
    assert scenario.leader() == heir
    scenario.coordinators.remove(heir)
    scenario.lab.kill(heir)
    scenario.lab.wait_for(f"{frozen} leads again", lambda: scenario.leads(frozen))
    scenario.join_all()
    scenario.verify()


def test_the_leader_ends_in_good_order(scenario: Scenario) -> None:
    """It resigns, so a standby leads without waiting for a session to end; nothing moves."""
    scenario.begin(coordinators=2)
    leaving = scenario.leader()
    scenario.coordinators.remove(leaving)
    began_us = scenario.now_us()
    scenario.stop(leaving)
    scenario.lab.wait_for("the standby leads", lambda: scenario.leads(*scenario.coordinators))
    scenario.settle()
    resigned = scenario.wait_event("leader_resigned")
    elected = scenario.wait_event("leader_elected", since_us=began_us)
    assert scenario.events("rebalance_planned", since_us=began_us) == []
    assert (resigned["process"], elected["process"]) == (leaving, scenario.coordinators[0])
    scenario.join_all()
    scenario.verify()
