"""A process with a group member of one protocol, told by its standard input what to do; writes a recorder's events.

`python -m tests.benchmarks.member PROTOCOL GROUP TOPIC NAME --zookeeper … --bootstrap … --events DIR`, then lines on
standard input: `join` creates the member, `leave` or the end of the input closes it in good order. Every protocol has
the same thread and the same recorder, so that none is measured by its own words.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import click
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import TopicPartition

from consumer_agent import Consumer
from zkrebalancer.cli.main import run
from zkrebalancer.observe.events import EventLog

POLL_S = 0.2
CLOSE_TIMEOUT_S = 20.0
CLASSIC = {"classic-range": "range", "classic-cooperative": "cooperative-sticky"}


class Recorder:
    """Writes when a member has a partition, and the first record that it gets."""

    def __init__(self, events: Path, group: str, name: str) -> None:
        self.group = group
        self.name = name
        self.log = EventLog(events, f"bench-{name}")
        self._delivered = False

    def created(self) -> None:
        self.log.write("member_created", group=self.group, member=self.name)

    def started(self, partitions: list[tuple[str, int]]) -> None:
        self.log.write("bench_started", group=self.group, member=self.name, partitions=[p for _, p in partitions])

    def stopped(self, partitions: list[tuple[str, int]]) -> None:
        self.log.write("bench_stopped", group=self.group, member=self.name, partitions=[p for _, p in partitions])

    def delivered(self) -> None:
        if not self._delivered:
            self._delivered = True
            self.log.write("bench_first_record", group=self.group, member=self.name)


class Central(threading.Thread):
    """A member of a group that the coordinator rebalances."""

    def __init__(self, recorder: Recorder, topic: str, zookeeper: str, bootstrap: str, events: Path) -> None:
        super().__init__(daemon=True)
        self._recorder = recorder
        self._leaving = threading.Event()
        self._topic = topic
        self._settings = {
            "zookeeper": zookeeper,
            "bootstrap": bootstrap,
            "group": recorder.group,
            "client_id": recorder.name,
            "events_directory": events,
        }

    def run(self) -> None:
        recorder = self._recorder
        recorder.created()
        with Consumer(**self._settings) as consumer:
            consumer.subscribe(
                [self._topic], on_assign=recorder.started, on_revoke=recorder.stopped, on_lost=recorder.stopped
            )
            while not self._leaving.is_set():
                if consumer.poll(POLL_S):
                    recorder.delivered()

    def leave(self) -> None:
        self._leaving.set()
        self.join(CLOSE_TIMEOUT_S)


class Classic(threading.Thread):
    """A member of a group that its members assign: JoinGroup and SyncGroup."""

    def __init__(self, recorder: Recorder, topic: str, bootstrap: str, strategy: str) -> None:
        super().__init__(daemon=True)
        self._recorder = recorder
        self._leaving = threading.Event()
        self._topic = topic
        self._settings = {
            "bootstrap.servers": bootstrap,
            "group.id": recorder.group,
            "client.id": recorder.name,
            "partition.assignment.strategy": strategy,
        }

    def run(self) -> None:
        recorder = self._recorder

        def pairs(partitions: list[TopicPartition]) -> list[tuple[str, int]]:
            return [(partition.topic, partition.partition) for partition in partitions]

        recorder.created()
        consumer = KafkaConsumer(self._settings)
        consumer.subscribe(
            [self._topic],
            on_assign=lambda _consumer, partitions: recorder.started(pairs(partitions)),
            on_revoke=lambda _consumer, partitions: recorder.stopped(pairs(partitions)),
            on_lost=lambda _consumer, partitions: recorder.stopped(pairs(partitions)),
        )
        while not self._leaving.is_set():
            if consumer.consume(500, POLL_S):
                recorder.delivered()
        consumer.close()

    def leave(self) -> None:
        self._leaving.set()
        self.join(CLOSE_TIMEOUT_S)


@click.command()
@click.argument("protocol")
@click.argument("group")
@click.argument("topic")
@click.argument("name")
@click.option("--zookeeper", required=True)
@click.option("--bootstrap", required=True)
@click.option("--events", required=True, type=click.Path(path_type=Path))
def main(protocol: str, group: str, topic: str, name: str, zookeeper: str, bootstrap: str, events: Path) -> None:
    """Run a member until it is told to leave."""
    if not sys.stdin.readline():
        return
    recorder = Recorder(events, group, name)
    member = (
        Classic(recorder, topic, bootstrap, CLASSIC[protocol])
        if protocol in CLASSIC
        else Central(recorder, topic, zookeeper, bootstrap, events)
    )
    member.start()
    sys.stdin.readline()
    member.leave()


if __name__ == "__main__":
    run(main)
