"""Scenarios of experiments that no other test plays, at their smallest on the shared cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.integration.scenario import remove
from tests.support.warm_command import SHORT_PHASE_S
from zkrebalancer.experiments import play
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.experiments.plan import Plan
from zkrebalancer.experiments.protocols import PROTOCOLS
from zkrebalancer.experiments.run import EVENTS, Run
from zkrebalancer.experiments.scenarios import SCENARIOS
from zkrebalancer.experiments.scenarios.model import TOPIC, Cast, Scenario, Step
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.observe.checker import check
from zkrebalancer.protocol import paths

MEMBERS, PARTITIONS = 2, 6
BACKLOG = 5_000
BEFORE_S = 1.0


def hasty_steps(cast: Cast) -> list[Step]:
    return [replace(step, at_least_s=2.0) for step in SCENARIOS["backlog"].steps(cast)]


HASTY = replace(SCENARIOS["backlog"], steps=hasty_steps, records_s=300, backlog=BACKLOG)


class Played:
    """Plays scenarios with this project on a cluster, and removes what they leave there."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._casts: list[Cast] = []
        self.events = folder

    def play(self, scenario: Scenario) -> dict[str, Any]:
        """Return the result of a run that settled after each step, and was measured for a moment before."""
        scenario = replace(scenario, before_s=BEFORE_S)
        cast = scenario.cast(MEMBERS, PARTITIONS, 1)
        self._casts.append(cast)
        plan = Plan(PROTOCOLS["central-incremental"], scenario, "tuned", cast, "kafka-3.9", 5)
        run = Run(plan, self._folder, lambda _line: None)
        self.events = run.directory / EVENTS
        self.events.mkdir(parents=True)
        run._result = run._describe()
        run._play(self._cluster, self.events)
        run._judge(self.events)
        result = run._result
        assert result["settled"], run.doubts
        assert result["problems"] == []
        measures = result["measures"]
        assert (measures["lost"], measures["out_of_order"], measures["overlaps"]) == (0, 0, 0)
        assert all(step["settled_ms"] > 0 for step in result["steps"][1:])
        return result

    def clear(self) -> None:
        with Lab(self._cluster, self._folder / "end") as lab:
            lab.delete_topic(TOPIC)
            for cast in self._casts:
                for group in cast.group_names:
                    remove(lab.zk, paths.group(group))


@pytest.fixture
def played(shared_cluster: LocalCluster, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    monkeypatch.setattr(play, "PHASE_S", SHORT_PHASE_S)
    played = Played(shared_cluster, folder)
    yield played
    played.clear()


def test_backlog(played: Played) -> None:
    result = played.play(HASTY)
    assert [step["name"] for step in result["steps"]] == ["before", "add-member", "kill-member", "restart-member"]
    assert check(played.events).delivered > BACKLOG
    for step in result["steps"]:
        assert len(step["delivered_per_s"]) == len(step["lag_max_per_s"]) > 0
        assert step["lag_max"] >= max(step["lag_max_per_s"])
    assert result["steps"][2]["lag_max"] > 0, "nobody read what the killed member had"
    assert sum(step["produced_per_s"] for step in result["steps"]) > 0


def test_many_groups(played: Played) -> None:
    result = played.play(SCENARIOS["many-groups"])
    assert [step["name"] for step in result["steps"]] == ["before", "add-members", "add-member"]
    assert result["steps"][1]["group_settled_p50_ms"] <= result["steps"][1]["settled_ms"]


def test_upgrade(played: Played) -> None:
    result = played.play(SCENARIOS["upgrade"])
    assert [step["name"] for step in result["steps"]] == ["before", *["replace-member"] * MEMBERS]
    assert result["details"]["mode_before"] == "eager"
    assert result["measures"]["stopped_needlessly"] is not None
