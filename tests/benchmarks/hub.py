"""How long the coordinator's loop blocks during an assignment: `python -m tests.benchmarks.hub [--json]`.

The coordinator's machine runs against a ZooKeeper in memory, with strategies in gevent's thread pool, as in the real
process. Measured are the longest single step of the machine, by purpose (CPU time of its thread); the longest wait of
another greenlet while a strategy computes (wall time, so longer on a loaded machine), and for comparison the same wait
while nothing computes; and how long the loop handles an answer of the process that reads lag.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import gevent
import msgpack
import numpy as np
from rich.console import Console
from rich.table import Table

from tests.benchmarks import many_groups
from tests.benchmarks.acknowledging import acknowledge, write
from tests.support.requests import requests
from tests.support.zk_model import ZkModel
from zkrebalancer.assignment import STRATEGIES, WEIGHING
from zkrebalancer.assignment.loads import pack
from zkrebalancer.coordinator.load_reader import loads_read
from zkrebalancer.coordinator.service import GIL_SWITCH_S
from zkrebalancer.protocol import ownership, paths, registration, settings
from zkrebalancer.protocol.calls import Create, Delete, Multi, SetContent
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.protocol.registration import Registration
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.coordinator import Coordinator
from zkrebalancer.rebalance.effects import Compute, Computed, Emit, Event, Now, Request, RequestEach, Tick
from zkrebalancer.rebalance.election import Identity
from zkrebalancer.rebalance.planning import answer
from zkrebalancer.rebalance.states import GroupState

GROUP = "g"
SIZES = ((1_000, 10), (1_000, 50), (10_000, 50))  # members, partitions per member
TOPICS = 100
READINGS = ((100, 5_000), (1_000, 500))  # topics, partitions per topic
QUICK_SIZES, QUICK_READINGS = ((20, 10),), ((10, 50),)
READ_TIMES = 5
HEARTBEAT_S = 0.000_5
REST_S = 0.5
PAUSE_US = 10_000_000  # of virtual time between two changes, so that they are not merged

PHASES = {GroupState.LOADING: "loading", GroupState.MOVING: "commands"}


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one change, in milliseconds."""

    members: int
    partitions: int
    change: str
    moved: int
    strategy_ms: float  # including columns and commands
    loading_step_ms: float  # the longest step that loads the group under a new leader
    planning_step_ms: float  # the longest step between the change and the strategy
    plan_step_ms: float  # the step that handles the strategy's result
    command_step_ms: float  # the longest step that sends commands or handles acknowledgements
    wait_ms: float  # the longest wait of another greenlet while the strategy computed
    idle_wait_ms: float  # the same while nothing computed


class Lab:
    """One group, its coordinator, and agents that answer at once."""

    def __init__(self, members: int, per_member: int, group: GroupSettings, topics: int = TOPICS) -> None:
        """Create a group without any ownership."""
        self.zk = ZkModel()
        self._members = self.zk.open()  # the session of all of them
        self.session = self.zk.open()
        self.machine = Coordinator(Identity(1, "host"), WEIGHING)
        self.now_us = 1_000_000
        self.steps: dict[str, list[float]] = defaultdict(list)
        self.strategy_s = self.wait_s = 0.0
        self.moved = 0
        self._create_group(group)
        for number in range(topics):
            self.set_topic(f"t{number:04}", members * per_member // topics)
        for number in range(members):
            self.join(f"c{number:05}")

    def _create_group(self, described: GroupSettings) -> None:
        group = paths.group(GROUP)
        above = ("/consumers", paths.GROUPS, "/brokers", paths.BROKER_TOPICS)
        write(self.zk, *(Create(path) for path in above))
        write(self.zk, Create(group, settings.encode(described)))
        write(self.zk, *(Create(f"{group}/{name}") for name in paths.GROUP_CHILDREN))

    def set_topic(self, name: str, partitions: int) -> None:
        content = json.dumps({"version": 3, "topic_id": name, "partitions": {str(n): [1] for n in range(partitions)}})
        known = paths.topic(name) in self.zk.nodes
        write(self.zk, (SetContent if known else Create)(paths.topic(name), content.encode()))

    def join(self, name: str) -> None:
        described = Registration("white_list", {"^t": 1}, "0", name, "h", 6_000)
        write(
            self.zk,
            Create(paths.channel(GROUP, name)),
            Create(paths.ids(GROUP, name), registration.encode(described), ephemeral=True),
            Create(paths.owners(GROUP, name), ownership.encode_owners(OwnersRecord(0, None, {})), ephemeral=True),
            session_id=self._members.session_id,
        )

    def leave(self, name: str) -> None:
        named = (paths.channel, paths.ids, paths.owners)
        write(self.zk, *(Delete(path(GROUP, name)) for path in named))

    # The loop -------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until nothing is left to do."""
        while self.session.sent or self.session.inbox or self._wakes_at_once():
            while self.session.inbox:
                self._step(self.session.take())
            while self.session.sent:
                call = self.session.sent[0][1]
                self.zk.perform_next(self.session)
                if isinstance(call, Multi):
                    acknowledge(self.zk, call)
            self._step(Tick())

    def _wakes_at_once(self) -> bool:
        """Whether the machine has more steps to do now; advances the clock to them."""
        deadline_us = self.machine.scheduler.next_deadline_us()
        if deadline_us is None or deadline_us > self.now_us + 1:
            return False
        self.now_us = deadline_us
        return True

    def settle(self, change: str, members: int, per_member: int) -> Measured:
        """Let the group handle one change and return its figures."""
        self.steps.clear()
        self.strategy_s = self.wait_s = 0.0
        self.moved = 0
        self.run()
        for _ in range(3):
            self.now_us += PAUSE_US
            self._step(Tick())
            self.run()
        longest = {phase: 1_000 * max(steps, default=0.0) for phase, steps in self.steps.items()}
        return Measured(
            members,
            members * per_member,
            change,
            self.moved,
            1_000 * self.strategy_s,
            longest.get("loading", 0.0),
            longest.get("planning", 0.0),
            longest.get("plan", 0.0),
            longest.get("commands", 0.0),
            1_000 * self.wait_s,
            1_000 * idle_wait_s(),
        )

    def handle_reading(self, content: bytes) -> float:
        """Handle an answer of the process that reads lag; return how long that takes the loop, in milliseconds."""
        began = time.thread_time()
        event = loads_read(GROUP, msgpack.unpackb(content))
        self.machine.step(event, Now(self.now_us, self.now_us // 1_000))
        return 1_000 * (time.thread_time() - began)

    def _step(self, event: Event) -> None:
        group = self.machine.groups.get(GROUP)
        phase = "plan" if isinstance(event, Computed) else PHASES.get(group.state, "planning") if group else "loading"
        began = time.thread_time()
        effects = self.machine.step(event, Now(self.now_us, self.now_us // 1_000))
        self.steps[phase].append(time.thread_time() - began)
        for effect in effects:
            if isinstance(effect, Request | RequestEach):
                for one in requests(effect):
                    self.zk.send(self.session, *one)
            elif isinstance(effect, Compute):
                self._compute(effect)
            elif isinstance(effect, Emit) and effect.kind == "rebalance_planned":
                self.moved = max(self.moved, int(str(effect.fields["moved_count"])))

    def _compute(self, task: Compute) -> None:
        began = time.perf_counter()
        with heartbeat() as longest:
            transition = gevent.get_hub().threadpool.apply(answer, (task, STRATEGIES))
        self.strategy_s = max(self.strategy_s, time.perf_counter() - began)
        self.wait_s = max(self.wait_s, *longest)
        self._step(Computed(task.group, task.ticket, transition, 0))


@contextmanager
def heartbeat() -> Iterator[list[float]]:
    """Collect by how many seconds a greenlet wakes up late."""
    late = [0.0]

    def beat() -> None:
        while True:
            began = time.perf_counter()
            gevent.sleep(HEARTBEAT_S)
            late.append(time.perf_counter() - began - HEARTBEAT_S)

    greenlet = gevent.spawn(beat)
    try:
        yield late
    finally:
        greenlet.kill()


def idle_wait_s() -> float:
    """Return the longest wait while nothing computes: the effect of other load on the machine."""
    with heartbeat() as late:
        gevent.sleep(REST_S)
    return max(late)


def measure(members: int, per_member: int) -> Iterator[Measured]:
    """Measure the changes of one size."""
    lab = Lab(members, per_member, GroupSettings(mode=settings.INCREMENTAL))
    yield lab.settle("first assignment", members, per_member)
    lab.join("joiner")
    yield lab.settle("one member joins", members, per_member)
    lab.leave("joiner")
    yield lab.settle("one member leaves", members, per_member)
    lab.set_topic("t0000", members * per_member // TOPICS + 1)
    yield lab.settle("one partition is added", members, per_member)


def reading_ms(topics: int, partitions: int) -> float:
    """Return the milliseconds that the loop takes for a reading of lag, the longest of READ_TIMES."""
    lab = Lab(10, topics * partitions // 10, GroupSettings(strategy="balanced"), topics)
    lab.run()
    times_ms = []
    for number in range(READ_TIMES):
        offsets = {f"t{topic:04}": np.arange(partitions) * number for topic in range(topics)}
        packed = pack(offsets)
        racks = {"sets": [[]], "of_topic": packed}
        weighed = {"expected": {}, "refused": None, "racks": racks}
        answered = {"taken_us": 1_000_000 * number, "ends": packed, "committed": packed, **weighed}
        times_ms.append(lab.handle_reading(msgpack.packb(answered)))
    return max(times_ms)


def measure_groups(groups: int, topics: int, runs: int, *, as_json: bool) -> None:
    """Measure many small groups in so many runs, and print the figures."""
    gc.disable()
    phases: list[many_groups.Phase] = []
    for run in range(1, runs + 1):
        measured = []
        for phase in many_groups.measure(groups, topics, measures_size=not phases):
            measured.append(phase)
            for step in phase.long_steps:
                print(f"{groups:,} groups, run {run}, {phase.name}: {step}", file=sys.stderr)
            whole = f"longest without a preemption: {phase.longest_whole}"
            print(f"{groups:,} groups, run {run}, {phase.name}: {whole}", file=sys.stderr)
        phases = [known.with_run(phase) for known, phase in zip(phases, measured, strict=True)] if phases else measured
        gc.collect()
    if as_json:
        print(json.dumps([phase.figures() for phase in phases]))
    else:
        Console(width=160).print(many_groups.table(phases))


def main() -> None:
    """Run all sizes and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--groups", type=int, help="measure so many small groups instead of a large one")
    parser.add_argument("--runs", type=int, default=3, help="of many groups; the least time of each step counts")
    parser.add_argument("--topics", type=int, default=1_000, help="of all these groups together")
    parser.add_argument("--largest", type=int, default=len(SIZES), help="number of sizes, smallest first")
    parser.add_argument("--size", type=int, nargs=2, metavar=("MEMBERS", "PARTITIONS"), help="only this one, of each")
    parser.add_argument("--quick", action="store_true", help="only a small group, as a test")
    arguments = parser.parse_args()
    if arguments.groups is not None:
        measure_groups(arguments.groups, arguments.topics, arguments.runs, as_json=arguments.json)
        return
    sizes = QUICK_SIZES if arguments.quick else SIZES[: arguments.largest]
    if arguments.size is not None:
        sizes = (tuple(arguments.size),)
    sys.setswitchinterval(GIL_SWITCH_S)
    gc.disable()  # as in the coordinator's process
    rows = []
    for members, per_member in sizes:
        for measured in measure(members, per_member):
            rows.append(measured)
            print(f"{measured.members:,} members: {measured.change}", file=sys.stderr)
    readings = [
        (topics, partitions, reading_ms(topics, partitions))
        for topics, partitions in (QUICK_READINGS if arguments.quick else READINGS)
    ]
    if arguments.json:
        print(json.dumps({"changes": [asdict(row) for row in rows], "readings": readings}))
        return
    columns = (
        "members",
        "partitions",
        "change",
        "moved",
        "strategy",
        "loading",
        "planning",
        "plan",
        "commands",
        "wait",
        "idle",
    )
    table = Table(*columns, title="milliseconds")
    for row in rows:
        values = asdict(row).values()
        table.add_row(*(f"{value:,.1f}" if isinstance(value, float) else f"{value}" for value in values))
    Console(width=140).print(table)
    for topics, partitions, longest_ms in readings:
        print(f"reading lag and rates of {topics:,} topics of {partitions:,} partitions: {longest_ms:.1f} ms")


if __name__ == "__main__":
    main()
