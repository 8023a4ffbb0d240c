"""A whole fleet moves here, on to plain Kafka consumers, and back, as `docs/how-to/migrate.md` says, under load."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.commands import run
from tests.integration.scenario import Event
from tests.integration.test_java_members import SETTINGS
from zkrebalancer.experiments.java_programs import old_consumer_command
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.experiments.tail import EventTail
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.observe.checker import check

GROUP, TOPIC, PARTITIONS, MEMBERS = "fleet", "fleet-records", 8, 4
RECORDS_PER_S = 200
PLAIN = [sys.executable, "-m", "zkrebalancer.experiments.members.program", "--kind", "kafka"]
COOPERATIVE = ["--config", "partition.assignment.strategy=cooperative-sticky"]
LEAST = 500  # records that each stage reads before the next one begins


class Fleet:
    """A group whose processes are of one kind after another, while a producer writes."""

    def __init__(self, lab: Lab, old_command: list[str]) -> None:
        self.lab = lab
        self._old = [*old_command, *(text for setting in SETTINGS["old"] for text in ("--config", setting))]
        self._tail = EventTail(lab.events)
        self._events: list[Event] = []
        self._stage = 0

    def delivered(self) -> int:
        self._events += self._tail.read()
        return sum(event["count"] for event in self._events if event["kind"] == "delivered")

    def is_all_read(self) -> bool:
        self.delivered()
        written = sum(e["last_offset"] - e["first_offset"] + 1 for e in self._events if e["kind"] == "produced")
        return bool(self.delivered() >= written)

    def members(self, command: list[str]) -> list[str]:
        """Begin processes of other clients, each with one member; return their names."""
        names = self._names()
        programs = [self.lab.start_members(name, command, {"--group": GROUP, "--topic": TOPIC}) for name in names]
        for program in programs:
            self.lab.wait_events_of(program)
            program.tell(f"join member-{program.name}")
        return names

    def plain(self) -> list[str]:
        return self.members([*PLAIN, *COOPERATIVE])

    def old(self) -> list[str]:
        return self.members(self._old)

    def agents(self, **options: str) -> list[str]:
        names = self._names()
        arguments = {f"--{key.replace('_', '-')}": value for key, value in options.items()}
        for name in names:
            self.lab.start_agent(name, GROUP, (TOPIC,), options=arguments)
        return names

    def _names(self) -> list[str]:
        self._stage += 1
        return [f"stage-{self._stage}-{number}" for number in range(MEMBERS)]

    def owned(self) -> Counter[str]:
        """Return how many partitions each process owns."""
        self.delivered()
        owners: dict[int, str] = {}
        for event in sorted(self._events, key=lambda event: int(event["mono_us"])):
            if event["kind"] == "fetcher_started":
                owners.update(dict.fromkeys(event["partitions"], event["process"]))
            elif event["kind"] == "fetcher_stopped":
                for partition in event["partitions"]:
                    owners.pop(partition, None)
        return Counter(owners.values())

    def read_and_stop(self, names: list[str]) -> None:
        """Wait until a stage has read some records and is complete, then stop its processes cleanly.

        Complete, because librdkafka's cooperative consumers do not leave if they own nothing, as while they join: the
        brokers keep them until their sessions expire, and the next stage is refused, as it has to be.
        """
        enough = self.delivered() + LEAST
        share = dict.fromkeys(names, PARTITIONS // MEMBERS)

        def is_so() -> bool:
            self.lab.require_running(*names)
            return self.delivered() >= enough and self.owned() == share

        self.lab.wait_for(f"{LEAST} records by {names[0]} and others, with all partitions", is_so)
        self.lab.stop(*names)

    def move(self, source: str, target: str) -> Any:
        """Move the offsets; return what was moved."""
        cluster = self.lab.cluster
        servers = ("--zookeeper", cluster.zookeeper, "--bootstrap", cluster.bootstrap)
        command = ("groups", "offsets", "import", GROUP, "--from", source, "--to", target, "--yes", "--json")
        done = run("zkrebalancer", *command, *servers)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["offsets"]

    def delete(self) -> None:
        """Delete the group here, so that no agent goes on at its old offsets."""
        done = run("zkrebalancer", "groups", "delete", GROUP, "--yes", "--zookeeper", self.lab.cluster.zookeeper)
        assert done.returncode == 0, done.stderr


@pytest.fixture
def fleet(shared_cluster: LocalCluster, folder: Path) -> Iterator[Fleet]:
    old_command = old_consumer_command(lambda _line: None)
    with Lab(shared_cluster, folder / "events") as lab:
        lab.create_topic(TOPIC, PARTITIONS)
        lab.start_coordinator(901)
        lab.wait_leader()
        lab.start_producer("producer-fleet", {TOPIC: PARTITIONS}, RECORDS_PER_S)
        yield Fleet(lab, old_command)


@pytest.mark.long
def test_a_fleet_moves_here_and_back_with_every_record_once(fleet: Fleet, folder: Path) -> None:
    """From the 0.8 consumer's tree, to plain Kafka consumers, by `dual` and by commands, and back to that tree.

    Leave one of the moves out: the next stage begins at the first record, and the checker finds duplicates.
    """
    fleet.read_and_stop(fleet.old())
    assert len(fleet.move("old-consumers", "zookeeper")) == PARTITIONS
    fleet.read_and_stop(fleet.agents())
    fleet.move("zookeeper", "kafka")
    fleet.delete()
    fleet.read_and_stop(fleet.plain())
    fleet.read_and_stop(fleet.agents(offsets_storage="dual"))  # the short way back here: no command
    fleet.read_and_stop(fleet.plain())
    fleet.move("kafka", "zookeeper")
    fleet.read_and_stop(fleet.agents())
    assert len(fleet.move("zookeeper", "old-consumers")) == PARTITIONS
    last = fleet.old()
    fleet.lab.stop("producer-fleet")
    fleet.lab.wait_for("all records", fleet.is_all_read)
    fleet.lab.stop(*last)
    verdict = check(folder / "events")
    assert verdict.ok, verdict.problems
    assert (verdict.lost, verdict.duplicated) == (0, 0)
    assert verdict.produced == verdict.delivered >= 6 * LEAST
