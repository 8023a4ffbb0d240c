"""How long the coordinator's steps are with many groups: `python -m tests.benchmarks.hub --groups 10000`.

The coordinator's machine runs against a ZooKeeper in memory, in virtual time; agents acknowledge at once. Each phase
counts the steps of the machine, and measures the processor time of its thread for each one, without garbage collection,
together with the method that the step ran.

On a shared machine, a few of 200,000 steps take many times as long as usual: after a preemption the caches hold other
data, and a hypervisor may have given the processor to others, which counts as the step's own time. So there are three
figures. The longest step of any run is what a coordinator meets on this machine; each one above the limit is listed
with the preemptions and page faults within it. The longest step without a preemption is what the code does. And every
run makes the same steps in the same order, so of several runs the least time of each step counts.

Memory is the size of all objects that only the coordinator refers to, divided by the number of groups.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType

from rich.table import Table

from tests.benchmarks.acknowledging import acknowledge, write
from tests.support.requests import requests
from tests.support.zk_model import ZkModel
from zkrebalancer.assignment import STRATEGIES
from zkrebalancer.protocol import calls, ownership, paths, registration, settings
from zkrebalancer.protocol.calls import Create, Delete, Multi
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.protocol.registration import STATIC, Registration
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.coordinator import Coordinator
from zkrebalancer.rebalance.effects import Compute, Computed, Event, Now, Request, RequestEach, Tick
from zkrebalancer.rebalance.election import Identity
from zkrebalancer.rebalance.planning import answer
from zkrebalancer.rebalance.reconciling import RECONCILE_INTERVAL_US

PARTITIONS = 4
MEMBERS = 2  # of each group
WILDCARDS = 2  # one of so many groups reads by a pattern,
FOR_PATTERNS = "every"  # and every such group this topic
LIMIT_MS = 5.0
SETTLE_US = 10_000_000  # of virtual time, within which a group answers a change
NOT_DATA = (type, ModuleType, FunctionType, BuiltinFunctionType, CodeType)


@dataclass(frozen=True, slots=True, order=True)
class LongStep:
    """A step of one run that was longer than LIMIT_MS, or the run's longest, and what disturbed it."""

    ms: float
    method: str
    page_faults: int
    preemptions: int

    def __str__(self) -> str:
        """Describe it for a person."""
        return f"{self.ms:.1f} ms of {self.method}: {self.page_faults} page faults, {self.preemptions} preemptions"


NO_STEP = LongStep(0, "", 0, 0)


@dataclass(frozen=True, slots=True)
class Phase:
    """What one phase cost the coordinator's loop, in one run or in several."""

    name: str
    times: tuple[tuple[float, str], ...]  # of each step: seconds, the least of all runs, and what it ran
    bytes_per_group: float
    long_steps: tuple[LongStep, ...]  # of all runs, the longest first
    longest_whole: LongStep  # the longest of all runs that was not preempted

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
        """How many took longer than LIMIT_MS in every run."""
        return sum(step_s > LIMIT_MS / 1_000 for step_s, _method in self.times)

    @property
    def longest_of_any_run_ms(self) -> float:
        """How long the longest step of any run took."""
        return self.long_steps[0].ms

    @property
    def over_limit_in_any_run(self) -> int:
        """How many took longer than LIMIT_MS, in all runs together."""
        return sum(step.ms > LIMIT_MS for step in self.long_steps)

    def figures(self) -> dict[str, object]:
        """Return the figures by name."""
        names = ("name", "steps", "all_ms", "longest_ms", "longest_method", "over_limit", "bytes_per_group")
        of_any_run = ("longest_of_any_run_ms", "over_limit_in_any_run")
        shown = {name: getattr(self, name) for name in (*names, *of_any_run)}
        steps = {"long_steps": list(map(asdict, self.long_steps)), "longest_whole": asdict(self.longest_whole)}
        return {**shown, **steps}

    def with_run(self, other: Phase) -> Phase:
        """Return the phase with another run of it: the shorter time of each step."""
        times = tuple(map(min, zip(self.times, other.times, strict=True)))
        long_steps = tuple(sorted([*self.long_steps, *other.long_steps], reverse=True))
        longest_whole = max(self.longest_whole, other.longest_whole)
        return Phase(self.name, times, self.bytes_per_group, long_steps, longest_whole)


class ManyLab:
    """Many groups, their coordinator, and agents that answer at once."""

    def __init__(
        self,
        groups: int,
        topics: int,
        clock: Callable[[], float] = time.thread_time,
        *,
        measures_size: bool = True,
    ) -> None:
        """Create groups without any ownership; `clock` measures the steps, in seconds."""
        self._clock = clock
        self._measures_size = measures_size
        self.zk = ZkModel()
        self._members = self.zk.open()  # the session of all of them
        self.names = [f"g{number:05}" for number in range(groups)]
        self.now_us = 1_000_000
        self._computing: deque[Compute] = deque()
        self._steps: list[tuple[float, str]] = []
        self._long_steps: list[LongStep] = []
        self._longest_ms = 0.0
        self._longest_whole = NO_STEP
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
        self._long_steps.clear()
        self._longest_ms = 0.0
        self._longest_whole = NO_STEP
        end_us = self.now_us + lasts_us
        while True:
            self._run()
            deadline_us = self.machine.scheduler.next_deadline_us()
            if deadline_us is None or deadline_us > end_us:
                break
            self.step_once()
        self.now_us = end_us
        long_steps = sorted(self._long_steps, reverse=True)
        over = [step for step in long_steps if step.ms > LIMIT_MS]
        size = size_of(self.machine) / len(self.names) if self._measures_size else 0.0
        return Phase(name, tuple(self._steps), size, tuple(over or long_steps[:1]), self._longest_whole)

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
        before = resource.getrusage(resource.RUSAGE_THREAD)
        began = self._clock()
        effects = self.machine.step(event, Now(self.now_us, self.now_us // 1_000))
        self.machine.scheduler.next_deadline_us()  # the loop asks for it before it waits
        seconds = self._clock() - began
        self._steps.append((seconds, method))
        if 1_000 * seconds > min(LIMIT_MS, self._longest_whole.ms):
            self._note_long(1_000 * seconds, method, before)
        for effect in effects:
            if isinstance(effect, Request | RequestEach):
                for one in requests(effect):
                    self.zk.send(self.session, *one)
            elif isinstance(effect, Compute):
                self._computing.append(effect)

    def _note_long(self, ms: float, method: str, before: resource.struct_rusage) -> None:
        after = resource.getrusage(resource.RUSAGE_THREAD)
        disturbed = after.ru_minflt - before.ru_minflt, after.ru_nivcsw - before.ru_nivcsw
        step = LongStep(ms, method, *disturbed)
        if ms > min(LIMIT_MS, self._longest_ms):
            self._long_steps.append(step)
            self._longest_ms = max(self._longest_ms, ms)
        if not step.preemptions:
            self._longest_whole = max(self._longest_whole, step)

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
    groups: int, topics: int, clock: Callable[[], float] = time.thread_time, *, measures_size: bool = True
) -> Iterator[Phase]:
    """Measure the coordinator with so many groups, phase by phase; its size takes as long as all the rest."""
    lab = ManyLab(groups, topics, clock, measures_size=measures_size)
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


def measure_topics(topics: int, clock: Callable[[], float] = time.thread_time) -> Iterator[Phase]:
    """Measure the coordinator with so many topics and one group that reads one of them."""
    lab = ManyLab(1, topics, clock)
    yield lab.phase("start")
    lab.reconnect()
    yield lab.phase("reconnect")
    lab.delete_topics()
    yield lab.phase("all topics are deleted")


def table(phases: list[Phase]) -> Table:
    """Return the figures for a person."""
    limit = f"over {LIMIT_MS:g} ms"
    of_any_run = ("not preempted", "of any run", f"{limit} of any run")
    shown = Table("phase", "steps", "all, ms", "longest, ms", "of", limit, *of_any_run, "memory of a group, kB")
    for phase in phases:
        times = (f"{phase.all_ms:,.0f}", f"{phase.longest_ms:.1f}", phase.longest_method, f"{phase.over_limit}")
        whole_ms, longest_ms = phase.longest_whole.ms, phase.longest_of_any_run_ms
        any_run = (f"{whole_ms:.1f}", f"{longest_ms:.1f}", f"{phase.over_limit_in_any_run}")
        shown.add_row(phase.name, f"{phase.steps:,}", *times, *any_run, f"{phase.bytes_per_group / 1_000:.1f}")
    return shown
