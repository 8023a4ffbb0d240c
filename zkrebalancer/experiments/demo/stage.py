"""Performs the demo's script in a lab; after each move, waits until every group is settled."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import gevent

from zkrebalancer.experiments.demo.script import FIRST_TOPIC, PATTERN, Move
from zkrebalancer.experiments.lab import Lab, NotReachedError
from zkrebalancer.observe import inspection
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.settings import GroupSettings

COORDINATORS = (1, 2, 3)  # broker ids
DRAIN_DEADLINE_S = 120.0


@dataclass(slots=True)
class Stage:
    """The demo's coordinators, topics and producers, and the expected members of each group."""

    lab: Lab
    records_per_partition_s: float
    topics: dict[str, int] = field(default_factory=dict)
    groups: dict[str, list[str]] = field(default_factory=dict)
    producers: list[str] = field(default_factory=list)
    killed_coordinator: int | None = None

    def open(self, partitions: int) -> None:
        """Start the coordinators, create the first topic and start its producer."""
        for broker_id in COORDINATORS:
            self._start_coordinator(broker_id)
        self._change_topic(FIRST_TOPIC, partitions)
        self.lab.wait_leader()

    def add_group(self, name: str, mode: str) -> None:
        """Create a group without consumers."""
        self.lab.configure(name, GroupSettings(mode=mode))
        self.groups[name] = []

    def perform(self, move: Move) -> None:
        """Perform one move and wait for its effect; raises NotReachedError or ServerStartError."""
        members = self.groups[move.group]
        if move.kind == "join":
            self.lab.start_agent(move.target, move.group, pattern=PATTERN)
            members.append(move.target)
        elif move.kind == "thaw":
            self.lab.thaw(move.target)
            members.append(move.target)
        elif move.kind in {"leave", "kill", "freeze"}:
            members.remove(move.target)
            self._lose(move)
        elif move.kind in {"grow", "create"}:
            self._change_topic(move.target, move.partitions)
        elif move.kind == "kill-leader":
            self._kill_leader()
        elif self.killed_coordinator is not None:
            self._start_coordinator(self.killed_coordinator)
        self._wait_settled()

    def pause_until(self, elapsed_s: float) -> None:
        """Let records flow until the lab is `elapsed_s` old."""
        gevent.sleep(max(0.0, elapsed_s - self.lab.elapsed_s()))

    def drain(self, records_behind: Callable[[str], int]) -> None:
        """Stop the producers and wait until all records are read; `records_behind` returns a group's lag."""
        self.lab.stop(*self.producers)
        for group in self.groups:
            is_read = functools.partial(lambda name: records_behind(name) == 0, group)
            self.lab.wait_for(f"every record delivered to group {group}", is_read, DRAIN_DEADLINE_S)

    def close(self, ends: Mapping[TopicPartition, int]) -> None:
        """Stop consumers, then coordinators; raises NotReachedError if stored offsets differ from `ends`."""
        self.lab.stop(*(name for members in self.groups.values() for name in members))
        for group in self.groups:
            report = self.lab.group(group)
            inspection.read_offsets(self.lab.zk, report)
            for (topic, partition), end in ends.items():
                stored = report.offsets.get((topic, partition))
                if stored != end:
                    raise NotReachedError(
                        f"group {group} stored offset {stored} for {topic}/{partition}, which ends at {end}"
                    )
        self.lab.stop(*(f"coordinator-{broker_id}" for broker_id in COORDINATORS))

    def _change_topic(self, topic: str, partitions: int) -> None:
        """Create or grow the topic, with another producer for the new partitions."""
        known = self.topics.get(topic, 0)
        self.lab.resize_topic(topic, known, partitions)
        self.lab.wait_seen(topic)
        self.topics[topic] = partitions
        rate = max(1, round(self.records_per_partition_s * (partitions - known)))
        name = f"producer-{topic}-{known}"
        self.lab.start_producer(name, {topic: range(known, partitions)}, rate)
        self.producers.append(name)

    def _lose(self, move: Move) -> None:
        if move.kind == "leave":
            self.lab.stop(move.target)
        elif move.kind == "kill":
            self.lab.kill(move.target)
        else:
            self.lab.freeze(move.target)

    def _start_coordinator(self, broker_id: int) -> None:
        """Start a coordinator and wait until it has reached ZooKeeper and writes events."""
        self.lab.wait_events_of(self.lab.start_coordinator(broker_id))

    def _kill_leader(self) -> None:
        leader = self.lab.wait_leader()
        self.killed_coordinator = leader
        self.lab.kill(f"coordinator-{leader}", "kill-leader")
        self.lab.wait_leader(other_than=leader)

    def _wait_settled(self) -> None:
        self.lab.require_running(*self.producers)
        for group, members in self.groups.items():
            self.lab.wait_settled(group, self.topics if members else {}, *members)
