"""A scenario: the expected members and topics. It waits until they are reached, and calls the checker.

Two groups, one in each mode, read the same topics. Every step changes the expectation and starts the
change; `settle` waits for it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from tests.integration.application import Application
from tests.integration.commands import catches, run
from tests.support.deadlines import WITHIN_S
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.experiments.picture import Picture
from zkrebalancer.experiments.tail import EventTail
from zkrebalancer.observe.checker import Verdict, check
from zkrebalancer.observe.inspection import GroupReport
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import ABSENT, Children, Delete, ListChildren, Multi
from zkrebalancer.protocol.errors import ZooKeeperUnavailableError
from zkrebalancer.protocol.settings import EAGER, INCREMENTAL, GroupSettings
from zkrebalancer.runtime.zk import BlockingZk

MODES = (INCREMENTAL, EAGER)
NO_ENVIRONMENT: Mapping[str, str] = {}
PARTITIONS = 6
RECORDS_PER_S = 20  # of one producer: enough for records to be always in flight; each costs the broker a request or two
DRAIN_DEADLINE_S = 60.0 + WITHIN_S  # a Kafka client that hangs after a broker outage is found within 49 s
Event = dict[str, Any]


@dataclass(slots=True)
class Scenario:
    """The expected state; `number` makes the names of a scenario unique."""

    lab: Lab
    number: int
    topics: dict[str, int] = field(default_factory=dict)
    groups: dict[str, list[str]] = field(default_factory=dict)
    producers: dict[str, list[str]] = field(default_factory=dict)
    coordinators: list[str] = field(default_factory=list)
    applications: list[Application] = field(default_factory=list)
    pattern: str | None = None  # pattern for new consumers, instead of names
    threads: int = 1  # of new consumers, for each topic
    _count: int = 0
    _written_by: dict[str, int] = field(default_factory=dict)  # producer -> number of partitions that it writes to
    _tail: EventTail | None = None
    _events: list[Event] = field(default_factory=list, repr=False)

    # Who is there ---------------------------------------------------------------------------------------------------

    def begin(self, *, modes: Iterable[str] = MODES, members: int = 2, coordinators: int = 1, **settings: Any) -> None:
        """Start one topic, a producer, and a group with consumers in each mode; wait until all is settled."""
        for _ in range(coordinators):
            self.add_coordinator()
        self.add_topic("t")
        for mode in modes:
            self.add_group(mode, members, **settings)
        self.settle()

    def add_coordinator(self, failpoint: str | None = None, environment: Mapping[str, str] = NO_ENVIRONMENT) -> str:
        """Start a coordinator; return its name. The failpoint kills it at a step."""
        self._count += 1
        broker_id = self.number * 100 + self._count
        own = {"ZKREBALANCER_FAILPOINT": failpoint} if failpoint else {}
        self.lab.start_coordinator(broker_id, {**environment, **own})
        self.coordinators.append(f"coordinator-{broker_id}")
        return self.coordinators[-1]

    def leader(self) -> str:
        """Wait for a leader; return its name."""
        return f"coordinator-{self.lab.wait_leader()}"

    def leads(self, *names: str) -> bool:
        """Whether one of these coordinators leads now."""
        return f"coordinator-{self.lab.leader()}" in names

    def set_shards(self, count: int) -> None:
        """Change the number of shards of groups; a test that does has to set it to 1 at its end."""
        found = run("zkrebalancer", "shards", "set", count, "--yes", "--zookeeper", self.lab.cluster.zookeeper)
        assert found.stdout.startswith(f"there are {count} shards"), found

    def add_group(self, mode: str, members: int, name: str | None = None, **settings: Any) -> str:
        """Configure a group and start its consumers; return its name."""
        group = name or f"g{self.number}-{mode}"
        self.lab.configure(group, GroupSettings(mode=mode, **settings))
        self.groups[group] = []
        for _ in range(members):
            self.join(group)
        return group

    def join(
        self,
        group: str,
        *,
        failpoint: str | None = None,
        environment: Mapping[str, str] = NO_ENVIRONMENT,
        **options: object,
    ) -> str:
        """Start a consumer; return its name. `options` are those of `consumer-agent run` (`max_poll_records=1`)."""
        self._count += 1
        name = f"{group}-{self._count}"
        topics = () if self.pattern else tuple(f"{topic}:{self.threads}" for topic in self.topics)
        own = {"CONSUMER_AGENT_FAILPOINT": failpoint} if failpoint else {}
        arguments = {f"--{key.replace('_', '-')}": value for key, value in options.items()}
        self.lab.start_agent(
            name, group, topics, pattern=self.pattern, options=arguments, environment={**environment, **own}
        )
        self.groups[group].append(name)
        return name

    def join_here(self, group: str, **settings: object) -> Application:
        """Start a consumer in this process; `settings` are its own."""
        self._count += 1
        name = f"{group}-{self._count}"
        self.applications.append(Application(self.lab, group, name, list(self.topics), **settings))
        self.groups[group].append(name)
        return self.applications[-1]

    def stop(self, *names: str) -> None:
        """Stop processes cleanly, after their start has completed."""
        for name in names:
            program = self.lab.programs[name]
            self.lab.wait_for(f"start of {name}", partial(catches, program.pid, signal.SIGTERM))
        self.lab.stop(*names)

    def join_all(self) -> None:
        """Start one more consumer in every group."""
        for group in self.groups:
            self.join(group)

    def take_out(self, group: str) -> str:
        """Remove the oldest consumer of a group from the expectation, and return it."""
        return self.groups[group].pop(0)

    # Topics ---------------------------------------------------------------------------------------------------------

    def topic(self, suffix: str) -> str:
        """Return the full name of a topic."""
        return f"t{self.number}-{suffix}"

    def add_topic(self, suffix: str, partitions: int = PARTITIONS) -> str:
        """Create a topic, and a producer that writes to it; return its name."""
        topic = self.topic(suffix)
        self.lab.create_topic(topic, partitions)
        self.topics[topic] = partitions
        self._produce(topic, range(partitions))
        return topic

    def grow_topic(self, topic: str, partitions: int) -> None:
        """Add partitions, and a producer that writes to them."""
        known = self.topics[topic]
        self.lab.grow_topic(topic, partitions)
        self.topics[topic] = partitions
        self._produce(topic, range(known, partitions))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic after all groups have read it."""
        self.drain(topic)
        del self.topics[topic]
        self.lab.note("topic_deleted", topic=topic)
        self.lab.delete_topic(topic)

    def _produce(self, topic: str, partitions: range) -> None:
        self._count += 1
        name = f"producer-{topic}-{self._count}"
        self.lab.start_producer(name, {topic: partitions}, RECORDS_PER_S)
        self._written_by[name] = len(partitions)
        self.producers.setdefault(topic, []).append(name)

    # Waiting --------------------------------------------------------------------------------------------------------

    def settle(self, *groups: str) -> None:
        """Wait until the expected consumers of these groups (default: all) own every partition."""
        for group in groups or tuple(self.groups):
            self.lab.wait_for(f"group {group} settled on {self.groups[group]}", partial(self._is_settled, group))

    def _is_settled(self, group: str) -> bool:
        members = self.groups[group]
        self.lab.require_running(*members, *self.coordinators)
        try:
            return self.lab.is_settled(group, self.topics if members else {}, frozenset(members))
        except ZooKeeperUnavailableError:
            return False  # its server is down: retry

    def drain(self, *topics: str) -> None:
        """End the producers of these topics and wait until every group with consumers has read all records.

        First wait until each producer has written to all its partitions, because an empty partition proves nothing.
        """
        ended = [name for topic in topics for name in self.producers.pop(topic, [])]
        for name in ended:
            self.lab.wait_for(f"records of {name}", partial(self._has_written, name))
        self.lab.stop(*ended)  # one that has written waits for SIGTERM already
        readers = [group for group, members in self.groups.items() if members]
        self.lab.wait_for(f"end of {', '.join(topics)}", lambda: not self._behind(readers, topics), DRAIN_DEADLINE_S)

    def _has_written(self, producer: str) -> bool:
        written = {event["partition"] for event in self.events("produced", process=producer)}
        return len(written) == self._written_by[producer]

    def _behind(self, groups: Iterable[str], topics: Iterable[str]) -> bool:
        picture = Picture()
        for event in self.events():
            picture.apply(event)
        return any(
            picture.group(group).delivered.get(partition, 0) < end
            for partition, end in picture.produced.items()
            if partition[0] in topics
            for group in groups
        )

    def wait_event(self, kind: str, count: int = 1, *, since_us: float = 0, **fields: Any) -> Event:
        """Wait until an event was written `count` times; return the last one."""

        def found() -> list[Event]:
            return self.events(kind, since_us=since_us, **fields)

        self.lab.wait_for(f"{count} events {kind} {fields}", lambda: len(found()) >= count)
        return found()[-1]

    # Looking --------------------------------------------------------------------------------------------------------

    def events(
        self, kind: str | None = None, *, since_us: float = 0, until_us: float = inf, **fields: Any
    ) -> list[Event]:
        """Return the events written so far, of a kind, of a time and with these values.

        A process writes them in a thread, so they may come after their effects, and after events that are younger:
        to leave out what was before, take `now_us` instead of counting.
        """
        self._tail = self._tail or EventTail(self.lab.events)
        self._events += self._tail.read()
        return [
            e
            for e in self._events
            if kind in {None, e["kind"]} and since_us <= e["mono_us"] < until_us and fields.items() <= e.items()
        ]

    @staticmethod
    def now_us() -> int:
        """Return the time, on the clock of events."""
        return time.monotonic_ns() // 1_000

    def log_lines(self, *names: str) -> list[str]:
        """Return the stdout and stderr of these processes."""
        return [line for name in names for line in self.lab.programs[name].log.read_text().splitlines()]

    def report(self, group: str) -> GroupReport:
        """Read a group from ZooKeeper."""
        return self.lab.group(group)

    def wait_end(self, name: str) -> None:
        """Wait until a process has ended."""
        self.lab.wait_for(f"end of {name}", lambda: not self.lab.programs[name].is_running)

    def wait_group(self, what: str, group: str, is_so: Callable[[GroupReport], bool]) -> None:
        """Wait until a condition holds for a group in ZooKeeper."""
        self.lab.wait_for(f"group {group}: {what}", lambda: is_so(self.report(group)))

    # The end --------------------------------------------------------------------------------------------------------

    def verify(self) -> Verdict:
        """Settle, drain, stop all processes cleanly, and let the checker judge the events."""
        self.settle()
        self.drain(*self.producers)
        judge(self.lab.events)
        self.end_applications()
        processes = self.lab.programs.keys()
        self.stop(*(name for members in self.groups.values() for name in members if name in processes))
        self.stop(*self.coordinators)
        verdict = judge(self.lab.events)
        self.require_quiet_logs()
        return verdict

    def end_application(self, application: Application) -> None:
        """Close a consumer of this process and remove it from the expectation."""
        self.applications.remove(application)
        for names in self.groups.values():
            if application.name in names:
                names.remove(application.name)
        application.end()

    def end_applications(self) -> None:
        """Close the consumers in this process."""
        while self.applications:
            self.applications.pop().end()

    def clear(self) -> None:
        """Remove the groups, so that the next scenario's coordinators do not load them."""
        for group in self.groups:
            remove(self.lab.zk, paths.group(group))

    def require_quiet_logs(self) -> None:
        """Require that no process wrote a traceback."""
        for name, program in self.lab.programs.items():
            assert "Traceback" not in program.log.read_text(), f"{name} wrote a traceback: {program.log}"


def judge(events: Path) -> Verdict:
    """Let the checker judge the events so far."""
    verdict = check(events)
    assert verdict.ok, "\n".join(verdict.problems) or "some partition has not just one consumer"
    assert verdict.delivered, "nothing was delivered, so nothing was proved"
    assert verdict.rebalances, "nothing was rebalanced, so nothing was proved"
    return verdict


def remove(zk: BlockingZk, path: str) -> None:
    """Remove a node with everything below it."""
    listed = zk.perform(ListChildren(path), ABSENT)
    for name in listed.names if isinstance(listed, Children) else ():
        remove(zk, f"{path}/{name}")
    zk.perform(Multi((Delete(path),)), ABSENT)


def owners_of(report: GroupReport) -> Mapping[tuple[str, int], str]:
    """Return partition -> consumer."""
    return {
        partition: member.consumer
        for member in report.members
        if member.owners is not None
        for partition in member.owners.partitions
    }
