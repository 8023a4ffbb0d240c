"""How long the coordinator's steps are with many groups: `python -m tests.benchmarks.hub --groups 10000`.

The coordinator's machine runs against a ZooKeeper in memory, in virtual time; agents acknowledge at once. Each phase
counts the steps of the machine, and measures the longest one in processor time of its thread, without garbage
collection, together with the method that the step ran. Every run makes the same steps. The first measures by the
clock, which is cheap; the others measure the processor time of the steps that seemed to be long. The shortest time of
each step counts: on a busy machine, single ones of 200,000 take three times as long. Memory is the size of all objects
that only the coordinator refers to, divided by the number of groups.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType

from rich.table import Table

from tests.benchmarks.acknowledging import acknowledge, write
from tests.support.zk_model import ZkModel
from zkrebalancer.assignment import STRATEGIES
from zkrebalancer.protocol import calls, ownership, paths, registration, settings
from zkrebalancer.protocol.calls import Create, Delete, Multi
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.protocol.registration import STATIC, Registration
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.coordinator import Coordinator
from zkrebalancer.rebalance.effects import Compute, Computed, Event, Now, Request, Tick
from zkrebalancer.rebalance.election import Identity
from zkrebalancer.rebalance.group import RECONCILE_INTERVAL_US
from zkrebalancer.rebalance.planning import answer

PARTITIONS = 4
MEMBERS = 2  # of each group
WILDCARDS = 2  # one of so many groups reads by a pattern,
FOR_PATTERNS = "every"  # and every such group this topic
LIMIT_MS = 5.0
SETTLE_US = 10_000_000  # of virtual time, within which a group answers a change
NOT_DATA = (type, ModuleType, FunctionType, BuiltinFunctionType, CodeType)


@dataclass(frozen=True, slots=True)
class Phase:
    """What one phase cost the coordinator's loop."""

    name: str
    times: tuple[tuple[float, str], ...]  # of each step: seconds, and what it ran
    bytes_per_group: float

    @property
    def steps(self) -> int:
        """How many steps there were."""
        return len(self.times)

    @property
    def all_ms(self) -> float:
        """How long they took together."""
        return 1_000 * sum(step_s for step_s, _method in self.times)

    @property
    def longest_ms(self) -> float:
        """How long the longest took."""
        return 1_000 * max(self.times)[0]

    @property
    def longest_method(self) -> str:
        """What the longest ran."""
        return max(self.times)[1]

    @property
    def over_limit(self) -> int:
        """How many took longer than LIMIT_MS."""
        return sum(step_s > LIMIT_MS / 1_000 for step_s, _method in self.times)

    def figures(self) -> dict[str, float | str]:
        """Return the figures by name."""
        names = ("name", "steps", "all_ms", "longest_ms", "longest_method", "over_limit", "bytes_per_group")
        return {name: getattr(self, name) for name in names}

    def long_steps(self) -> set[int]:
        """Return the numbers of the steps that may be over the limit in another run."""
        return {number for number, (step_s, _method) in enumerate(self.times) if step_s > LIMIT_MS / 2_000}

    def shortened(self, again: list[tuple[float, str]]) -> Phase:
        """Return the phase with the shorter time of each step; `again`: those of another run."""
        return Phase(self.name, tuple(map(min, zip(self.times, again, strict=True))), self.bytes_per_group)


class ManyLab:
    """Many groups, their coordinator, and agents that answer at once."""

    def __init__(
        self,
        groups: int,
        topics: int,
        clock: Callable[[], float] = time.perf_counter,
        former: Sequence[Phase] = (),
    ) -> None:
        """Create groups without any ownership; `clock` measures the steps, in seconds; `former`: of another run."""
        self._clock = clock
        self._former = {phase.name: phase for phase in former}
        self._to_measure: set[int] = set()
        self.zk = ZkModel()
        self._members = self.zk.open()  # the session of all of them
        self.names = [f"g{number:05}" for number in range(groups)]
        self.now_us = 1_000_000
        self._computing: deque[Compute] = deque()
        self._steps: list[tuple[float, str]] = []
        for path in ("/consumers", paths.GROUPS, "/brokers", paths.BROKER_TOPICS):
            write(self.zk, Create(path))
        for number in range(topics):
            self.create_topic(f"t{number:04}")
        for number, name in enumerate(self.names):
            self.create_group(name)
            topic = f"t{number % topics:04}"
            pattern = f"^({topic}|{FOR_PATTERNS})$"
            wanted = ("white_list", {pattern: 1}) if number % WILDCARDS == 0 else (STATIC, {topic: 1})
            for member in range(MEMBERS):
                self.join(name, f"{name}-{member}", Registration(*wanted, "0", f"{member}", "h", 6_000))
        self.session = self.zk.open()
        self.machine = Coordinator(Identity(1, "host"))

    def replace_coordinator(self) -> None:
        """Kill the coordinator and start another one."""
        self.zk.kill(self.session)
        self._computing.clear()
        self.session = self.zk.open()
        self.machine = Coordinator(Identity(2, "host"))

    # Changes --------------------------------------------------------------------------------------------------------

    def create_topic(self, name: str) -> None:
        partitions = {str(number): [1] for number in range(PARTITIONS)}
        content = json.dumps({"version": 3, "topic_id": name, "partitions": partitions})
        write(self.zk, Create(paths.topic(name), content.encode()))

    def create_group(self, name: str) -> None:
        group = paths.group(name)
        write(self.zk, Create(group, settings.encode(GroupSettings(mode=settings.INCREMENTAL))))
        write(self.zk, *(Create(f"{group}/{child}") for child in paths.GROUP_CHILDREN))

    def join(self, group: str, name: str, described: Registration) -> None:
        write(
            self.zk,
            Create(paths.channel(group, name)),
            Create(paths.ids(group, name), registration.encode(described), ephemeral=True),
            Create(paths.owners(group, name), ownership.encode_owners(OwnersRecord(0, None, {})), ephemeral=True),
            session_id=self._members.session_id,
        )

    def delete_groups(self) -> None:
        """Delete every group, as an operator does who removes their root."""
        self._delete_below(paths.GROUPS)

    def delete_topics(self) -> None:
        """Delete every topic."""
        self._delete_below(paths.BROKER_TOPICS)

    def _delete_below(self, root: str) -> None:
        below = sorted((path for path in self.zk.nodes if path.startswith(f"{root}/")), key=len, reverse=True)
        for begin in range(0, len(below), 1_000):
            write(self.zk, *(Delete(path) for path in below[begin : begin + 1_000]))

    def reconnect(self) -> None:
        self.zk.disconnect(self.session)
        self.zk.reconnect(self.session)

    def resume_late(self, by_us: int) -> None:
        """Let time pass without a step, as when the process was suspended."""
        self.now_us += by_us

    # The loop -------------------------------------------------------------------------------------------------------

    def phase(self, name: str, lasts_us: int = SETTLE_US) -> Phase:
        """Run for some virtual time; return what that cost."""
        self._steps.clear()
        former = self._former.get(name)
        self._to_measure = former.long_steps() if former is not None else set()
        end_us = self.now_us + lasts_us
        while True:
            self._run()
            deadline_us = self.machine.scheduler.next_deadline_us()
            if deadline_us is None or deadline_us > end_us:
                break
            self.step_once()
        self.now_us = end_us
        if former is not None:
            return former.shortened(self._steps)
        return Phase(name, tuple(self._steps), size_of(self.machine) / len(self.names))

    def _run(self) -> None:
        """Answer every call, one after the other."""
        while self._computing or self.session.sent or self.session.inbox:
            self.step_once()

    def step_once(self) -> None:
        """Deliver one answer, or let ZooKeeper answer a call; let a timer ring if there is nothing else to do."""
        if self._computing:
            task = self._computing.popleft()
            self._step(Computed(task.group, task.ticket, answer(task, STRATEGIES), 0))
        elif self.session.inbox:
            self._step(self.session.take())
        elif self.session.sent:
            call = self.session.sent[0][1]
            self.zk.perform_next(self.session)
            if isinstance(call, Multi):
                acknowledge(self.zk, call)
        else:
            self.now_us = max(self.now_us, self.machine.scheduler.next_deadline_us() or 0)
            self._step(Tick())

    def _step(self, event: Event) -> None:
        method = self._method(event)
        clock = time.thread_time if len(self._steps) in self._to_measure else self._clock
        began = clock()
        effects = self.machine.step(event, Now(self.now_us, self.now_us // 1_000))
        self.machine.scheduler.next_deadline_us()  # the loop asks for it before it waits
        self._steps.append((clock() - began, method))
        for effect in effects:
            if isinstance(effect, Request):
                self.zk.send(self.session, effect.call_id, effect.call)
            elif isinstance(effect, Compute):
                self._computing.append(effect)

    def _method(self, event: Event) -> str:
        """Return which method is about to handle an event."""
        if isinstance(event, calls.Replied):
            awaited = self.machine.scheduler.awaited.get(event.call_id)
            return awaited.handle.__qualname__ if awaited is not None else "dropped reply"
        return type(event).__name__


def size_of(root: object) -> int:
    """Return the size in bytes of an object and of all data that it refers to."""
    seen = {id(root)}
    waiting = [root]
    size = 0
    while waiting:
        each = waiting.pop()
        size += sys.getsizeof(each)
        for referred in gc.get_referents(each):
            if id(referred) not in seen and not isinstance(referred, NOT_DATA):
                seen.add(id(referred))
                waiting.append(referred)
    return size


def measure(
    groups: int, topics: int, clock: Callable[[], float] = time.perf_counter, former: Sequence[Phase] = ()
) -> Iterator[Phase]:
    """Measure the coordinator with so many groups, phase by phase; `former`: what another run has measured."""
    lab = ManyLab(groups, topics, clock, former)
    yield lab.phase("start")
    lab.create_topic(FOR_PATTERNS)
    yield lab.phase("a topic is created")
    lab.create_group("another")
    yield lab.phase("a group is created")
    lab.reconnect()
    yield lab.phase("reconnect")
    lab.replace_coordinator()
    yield lab.phase("failover")
    yield lab.phase("reconciliation", RECONCILE_INTERVAL_US)
    lab.resume_late(2 * RECONCILE_INTERVAL_US)
    yield lab.phase("every timer is late")
    lab.delete_groups()
    yield lab.phase("all groups are deleted")
    lab.zk.expire(lab.session)
    yield lab.phase("the session ends")


def measure_topics(topics: int, clock: Callable[[], float] = time.perf_counter) -> Iterator[Phase]:
    """Measure the coordinator with so many topics and one group that reads one of them."""
    lab = ManyLab(1, topics, clock)
    yield lab.phase("start")
    lab.reconnect()
    yield lab.phase("reconnect")
    lab.delete_topics()
    yield lab.phase("all topics are deleted")


def table(phases: list[Phase]) -> Table:
    """Return the figures for a person."""
    shown = Table("phase", "steps", "all, ms", "longest, ms", "of", f"over {LIMIT_MS:g} ms", "memory of a group, kB")
    for phase in phases:
        times = (f"{phase.all_ms:,.0f}", f"{phase.longest_ms:.1f}", phase.longest_method, f"{phase.over_limit}")
        shown.add_row(phase.name, f"{phase.steps:,}", *times, f"{phase.bytes_per_group / 1_000:.1f}")
    return shown
