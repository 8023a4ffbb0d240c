"""Coordinators share shards of groups: a change of the number, a death, a join, a clean stop, on real servers."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.integration.commands import run
from tests.integration.scenario import Scenario
from zkrebalancer.observe import inspection
from zkrebalancer.protocol.settings import INCREMENTAL
from zkrebalancer.protocol.shards import shard_of

SHARDS = 4


@pytest.fixture
def sharded(scenario: Scenario) -> Iterator[Scenario]:
    """Return a scenario in which the number of shards may change; other tests have one again."""
    yield scenario
    scenario.set_shards(1)


def leaders(scenario: Scenario) -> list[str | None]:
    """Return the name of each shard's leader."""
    found = inspection.read_leaders(scenario.lab.zk, inspection.read_shards(scenario.lab.zk))
    return [None if leader is None else f"coordinator-{leader.brokerid}" for leader in found]


def wait_shared(scenario: Scenario) -> None:
    """Wait until each shard has a leader, and each coordinator as many as the others."""

    def are_shared() -> bool:
        found = leaders(scenario)
        wanted = SHARDS // len(scenario.coordinators)
        return all(found.count(name) == wanted for name in scenario.coordinators) and None not in found

    scenario.lab.wait_for("all shards led", are_shared)


def test_coordinators_share_the_groups(sharded: Scenario) -> None:
    """Only the joins of this test cause a plan, whatever happens to the coordinators."""
    scenario = sharded
    scenario.begin(modes=[], coordinators=2)
    names = (f"g{scenario.number}-{number}" for number in range(100))
    groups = {shard_of(name, SHARDS): name for name in names}
    for group in groups.values():
        scenario.add_group(INCREMENTAL, 1, group)
    scenario.settle()
    began_us = scenario.now_us()

    scenario.set_shards(SHARDS)
    wait_shared(scenario)
    shown = run("zkrebalancer", "shards", "show", groups[3], "--json", "--zookeeper", scenario.lab.cluster.zookeeper)
    (found,) = json.loads(shown.stdout)["shards"]
    assert (found["shard"], f"coordinator-{found['coordinator']['brokerid']}") == (3, leaders(scenario)[3])

    died = scenario.coordinators.pop(0)
    of_the_other = next(shard for shard, leader in enumerate(leaders(scenario)) if leader != died)
    scenario.lab.kill(died)
    scenario.join(groups[of_the_other])
    scenario.settle(groups[of_the_other])
    wait_shared(scenario)

    scenario.add_coordinator()
    wait_shared(scenario)

    leaving = scenario.coordinators.pop(0)
    scenario.stop(leaving)
    wait_shared(scenario)
    planned = {event["group"] for event in scenario.events("rebalance_planned", since_us=began_us)}
    assert planned == {groups[of_the_other]}

    for group in groups.values():
        scenario.join(group)
    scenario.verify()
