"""Members in Java: Kafka's old consumers, its present client, and participants of Apache Helix."""

from __future__ import annotations

from pathlib import Path

import pytest

from zkrebalancer.experiments import helix
from zkrebalancer.experiments.java_programs import (
    helix_consumer_command,
    helix_controller_command,
    java_consumer_command,
    old_consumer_command,
)
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.experiments.protocols import PROTOCOLS
from zkrebalancer.experiments.tail import EventTail
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.errors import LocalClusterError
from zkrebalancer.observe.checker import check
from zkrebalancer.observe.reading import Event

PARTITIONS = 6
COMMANDS = {"old": old_consumer_command, "java": java_consumer_command, "helix": helix_consumer_command}
SETTINGS = {
    "old": (
        "zookeeper.session.timeout.ms=6000",
        "rebalance.backoff.ms=200",
        "rebalance.max.retries=100",  # the default is 4, 0.8 s here: on busy cores, others need longer to let go
        "auto.commit.interval.ms=500",
    ),
    "java": ("session.timeout.ms=6000", "heartbeat.interval.ms=500", "auto.commit.interval.ms=500"),
    "helix": ("zk.session.timeout=6000", "auto.commit.interval.ms=500"),
}
MAX_DELAY_US = 120_000_000  # a clock that is read or written in another unit is further away


class Story:
    """The state that follows from the events so far."""

    def __init__(self, directory: Path) -> None:
        self._tail = EventTail(directory)
        self.events: list[Event] = []

    def look(self) -> list[Event]:
        self.events += self._tail.read()
        return self.events

    def owners(self) -> dict[int, str]:
        """Return partition -> the member that holds it by its own events."""
        owners: dict[int, str] = {}
        for event in sorted(self.look(), key=lambda event: int(event["mono_us"])):
            if event["kind"] == "fetcher_started":
                owners.update(dict.fromkeys(event["partitions"], event["member"]))
            elif event["kind"] == "fetcher_stopped":
                for partition in event["partitions"]:
                    owners.pop(partition, None)
        return owners

    def members_of(self, kind: str) -> list[str]:
        """Return the member of each event of a kind."""
        return [event["member"] for event in self.look() if event["kind"] == kind]

    def ends(self, kind: str) -> dict[int, int]:
        """Return partition -> the last offset that was produced or delivered."""
        ends: dict[int, int] = {}
        for event in self.look():
            if event["kind"] == kind:
                ends[event["partition"]] = max(event["last_offset"], ends.get(event["partition"], -1))
        return ends


def wait_owners(lab: Lab, story: Story, *members: str) -> None:
    def is_so() -> bool:
        owners = story.owners()
        return len(owners) == PARTITIONS and set(owners.values()) == set(members)

    lab.wait_for(f"partitions owned by {', '.join(members)}", is_so)


@pytest.fixture(params=["old", "java", pytest.param("helix", marks=pytest.mark.long)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def command(shared_cluster: LocalCluster, kind: str) -> list[str]:
    """Fetch and compile before the test's clock begins."""
    del shared_cluster  # its start takes the Java that is needed here
    return COMMANDS[kind](lambda _line: None)


def test_an_order_that_makes_no_sense_ends_the_process(shared_cluster: LocalCluster, folder: Path) -> None:
    """All kinds read their orders by the same class."""
    command = java_consumer_command(lambda _line: None)
    with Lab(shared_cluster, folder / "events") as lab:
        program = lab.start_members("java-c", command, {"--group": "java-c", "--topic": "java-c"})
        lab.wait_events_of(program)
        program.tell("dance m1")
        lab.wait_for("its end", lambda: not program.is_running)
        with pytest.raises(LocalClusterError, match=r"ended with exit code 1 .*no such order: dance m1"):
            program.wait_end(0)
    program.has_failed = False  # it was meant to; the cluster need not keep its logs


@pytest.mark.long
def test_helix_assigns_by_weights(shared_cluster: LocalCluster, folder: Path) -> None:
    """In `HelixCluster.setTopic`, leave the weights: each member gets three partitions."""
    controller, members = (of(lambda _line: None) for of in (helix_controller_command, helix_consumer_command))
    group = topic = "helix-weights"
    settings = PROTOCOLS["helix"].controller("tuned", is_static=False, is_growing=False, has_weights=True) or {}
    with Lab(shared_cluster, folder / "events") as lab:
        story = Story(lab.events)

        def is_hot_one_alone() -> bool:
            owners = story.owners()
            return len(owners) == PARTITIONS and list(owners.values()).count(owners[0]) == 1

        lab.create_topic(topic, PARTITIONS)
        weights = helix.weights_option({topic: [[0.6], *([0.08] for _other in range(PARTITIONS - 1))]})
        helix.start_controller(lab, f"{group}-c", controller, [group], settings, {"--topic": topic, **weights})
        program = lab.start_members(f"{group}-m", members, {"--group": group, "--topic": topic})
        lab.wait_events_of(program)
        program.tell("join m1")
        wait_owners(lab, story, "m1")
        program.tell("join m2")
        lab.wait_for("a member for the hot partition alone", is_hot_one_alone)


def test_members_join_die_and_leave(shared_cluster: LocalCluster, folder: Path, kind: str, command: list[str]) -> None:
    group, topic, names = f"{kind}-group", f"{kind}-topic", (f"{kind}-a", f"{kind}-b")
    with Lab(shared_cluster, folder / "events") as lab:
        story = Story(lab.events)
        lab.create_topic(topic, PARTITIONS)
        lab.start_producer("producer-java", {topic: PARTITIONS}, 60)
        config = [text for setting in SETTINGS[kind] for text in ("--config", setting)]
        options = {"--group": group, "--topic": topic}
        if kind == "helix":
            controller = helix_controller_command(lambda _line: None)
            settings = PROTOCOLS["helix"].controller("tuned", is_static=False, is_growing=False) or {}
            helix.start_controller(lab, "helix-controller", controller, [group], settings, {"--topic": topic})
            assert helix.wait_leader(lab, group) == "helix-controller"
        several, single = [lab.start_members(name, [*command, *config], options) for name in names]
        for program in (several, single):
            lab.wait_events_of(program)
        several.tell("join m1")
        several.tell("join m2")
        wait_owners(lab, story, "m1", "m2")
        single.tell("join m3")
        wait_owners(lab, story, "m1", "m2", "m3")
        lab.wait_for("a commit by m3", lambda: "m3" in story.members_of("committed"))
        lab.kill(names[1])
        lab.note("ownership_ended", group=group, member="m3", reason="killed")
        wait_owners(lab, story, "m1", "m2")
        several.tell("leave m2")
        wait_owners(lab, story, "m1")
        lab.stop("producer-java")
        lab.wait_for("every record delivered", lambda: story.ends("delivered") == story.ends("produced"))
        lab.stop(names[0])
    verdict = check(folder / "events")
    assert verdict.ok, verdict.problems
    assert verdict.produced == verdict.delivered > 0
    delivered = [event for event in story.look() if event["kind"] == "delivered"]
    assert all(event["count"] == len(event["delays_us"]) for event in delivered)
    assert all(0 <= delay_us < MAX_DELAY_US for event in delivered for delay_us in event["delays_us"])
    assert sorted(story.members_of("member_joined")) == ["m1", "m2", "m3"]
    assert sorted(story.members_of("member_left")) == ["m1", "m2"]
