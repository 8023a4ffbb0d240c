"""Regions with a state of the application's own, on real servers: members are killed, restarted, frozen and stopped."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from consumer_agent import Consumer
from consumer_agent.region import Checkpoint, ConsistentRegion
from tests.integration.commands import run
from tests.integration.region_counts import Counts, RegionCounts, counts_of
from tests.integration.scenario import Scenario
from tests.integration.test_examples import PARTITIONS, RECORDS, Examples, examples, output
from zkrebalancer.localcluster import faults
from zkrebalancer.localcluster.server import Program

__all__ = ["examples"]  # the fixture
RECORDS_OF_A_ROUND = 1_500
ENVIRONMENT = {"SESSION_TIMEOUT_MS": "4000", "KAFKA_SESSION_TIMEOUT_MS": "6000", "EVERY_S": "0.3"}


class Region(RegionCounts):
    """A region of one topic, whose members are examples, and what its checkpoints have counted."""

    def __init__(self, stage: Examples, folder: Path) -> None:
        super().__init__(stage.lab.zk, stage.group, folder)
        self.stage = stage
        self.written = RECORDS

    def start(self, name: str, example: str = "region_group.py") -> Program:
        return self.stage.start(example, MEMBER=name, FOLDER=str(self.folder), **ENVIRONMENT)

    def produce(self) -> None:
        self.stage.produce(RECORDS_OF_A_ROUND)
        self.written += RECORDS_OF_A_ROUND

    def wanted(self) -> Counts:
        return counts_of(PARTITIONS, self.written)

    def wait(self, what: str, is_so: Callable[[], bool]) -> None:
        self.stage.lab.wait_for(what, is_so)

    def wait_all(self) -> None:
        self.wait("all records in a checkpoint", lambda: self.counts() == self.wanted())


@pytest.fixture
def region(examples: Examples, tmp_path: Path) -> Region:
    return Region(examples, tmp_path)


@pytest.mark.long
def test_a_group_recovers_from_kills_a_freeze_and_the_loss_of_its_leader(region: Region, scenario: Scenario) -> None:
    """Each record is counted once in all members together, also in the copies of a member that is gone."""
    one, other = region.start("one"), region.start("other")
    region.wait_all()
    region.produce()
    faults.kill(one.pid)
    region.wait("a reset", lambda: region.order().reset > 0)
    one = region.start("one")
    region.wait_all()

    region.produce()
    faults.freeze(other.pid)
    try:
        region.wait("the loss of the suspended member", lambda: "other" not in region.order().members)
        leader = scenario.leader()
        scenario.add_coordinator()
        scenario.lab.kill(leader)
        scenario.coordinators.remove(leader)
    finally:
        faults.thaw(other.pid)
    region.wait_all()
    region.wait("its return", lambda: "other" in region.order().members and not region.order().is_resetting)

    described = describe(region, scenario)
    assert "region counts: " in described
    assert ", 2 members, recovery group, checkpoint " in described
    resets = region.order().reset
    region.produce()
    region.stage.interrupt(other, signal.SIGTERM)
    region.wait_all()
    assert region.order().reset == resets  # who leaves is no loss
    region.stage.interrupt(one, signal.SIGTERM)
    assert region.counts() == region.wanted()


@pytest.mark.parametrize("recovery", ["partition", "group"])
def test_who_leaves_within_a_batch_stores_no_checkpoint_and_who_is_stopped_does(
    examples: Examples, recovery: str
) -> None:
    """How much of the batch the state reflects is not known; `stop` ends the iteration between two batches.

    Was so: a Ctrl-C while a member counted a batch made it store half of the batch's counts with all of its offsets.
    """
    for is_stopped in (False, True):
        stored: list[Checkpoint] = []
        consumer = Consumer(
            zookeeper=examples.lab.cluster.zookeeper, bootstrap=examples.lab.cluster.bootstrap, group=examples.group
        )
        consumer.subscribe([examples.topic])
        region = ConsistentRegion(
            consumer,
            name="counts",
            recovery=recovery,
            member="one",
            every_s=3_600,
            on_checkpoint=stored.append,
            on_reset=lambda _checkpoint: None,
        )
        for _batch in region:
            if not is_stopped:
                break
            region.stop()
        region.close()
        begun = [one for one in stored if one.offsets is not None and not any(one.offsets.values())]  # an empty state
        assert (len(stored) > len(begun)) == is_stopped


def test_an_application_goes_back_to_its_checkpoint_and_to_the_beginning(region: Region) -> None:
    """What it had counted by then (`region_counts.py`) is restored; later records are read and counted again."""
    records = PARTITIONS * RECORDS
    example = region.stage.start("region_reset.py", MEMBER="one", FOLDER=str(region.folder), RECORDS=str(records))
    region.stage.wait_for("its end", example, lambda: not example.is_running)
    first = int(output(example).splitlines()[0].removeprefix("checkpoint at "))
    assert 0 < first < records
    back = [f"back at {count} of {records}" for count in (first, 0)]
    assert output(example).splitlines() == [f"checkpoint at {first}", *back, f"counted {records} again"]
    assert region.counts() == region.wanted()


def test_a_classic_group_goes_back_whenever_kafka_moves_a_partition(region: Region) -> None:
    """Members join one by one, one is killed, comes back, and leaves: each record is counted once."""
    one = region.start("one", "region_forced.py")
    region.wait_all()
    other = region.start("other", "region_forced.py")
    region.produce()
    region.wait("a reset because of the second member", lambda: region.order().reset > 0)
    region.wait_all()
    faults.kill(one.pid)
    region.produce()
    region.wait_all()
    one = region.start("one", "region_forced.py")
    region.produce()
    region.wait_all()
    region.wait("its return", lambda: "one" in region.order().members)
    for member in (one, other):
        region.stage.interrupt(member, signal.SIGTERM)
    assert region.counts() == region.wanted()


def describe(region: Region, scenario: Scenario) -> str:
    """Return what the command shows of the group."""
    options = ("describe", region.stage.group, "--state", "--zookeeper", scenario.lab.cluster.zookeeper)
    done = run("zkrebalancer", "groups", *options)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
