"""Replays the members that came and went in one group under other settings, with real strategies and modelled costs.

The history is a list of `Step`s: members that joined or left. A replay places the partitions after each step with one
of the project's strategies and charges the moves by the rules of `sweep.model`, so all settings see the same members.
In addition:

- *A crash* costs the time from the member's last sign of life to the end of its session, for each of its partitions.
- *A static member* that returns within its grace, or before its former session is over, keeps its partitions: they wait
  for it, and for the end of that session; nothing moves. If it stays away, they wait for the whole grace.
- *The debounce*, by default 50 ms: after a quiet time of that length, a step is handled at once. Those that follow are
  handled together once none has followed for that long, or after ten times as long; the partitions of members that left
  wait until then. The joins of one deployment are thus two rebalances.
- *Central eager*: all members stop within the time of an answer; then everything starts.
- *Kafka's classic protocols*: what comes within a heartbeat of the first change is one rebalance. With *KIP-848*, each
  change is one of its own, as if the broker assigned at once (`group.consumer.assignment.interval.ms=0`).

A member answers a stop after a uniform time of up to twice the median that was measured in its group. Times without any
member cost nothing: nothing can own a partition then. What work takes besides is not known: so the replay is too
favourable to this project beside KIP-848 with short heartbeats, and to Kafka's eager protocol.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter

from zkrebalancer.assignment import STRATEGIES
from zkrebalancer.pipeline.sweep.model import (
    DEBOUNCE_MS,
    ROUND_TRIP_MS,
    Change,
    cooperative,
    eager,
    incremental,
    kip848,
    placed,
    wait_ms,
)
from zkrebalancer.protocol.settings import EAGER, INCREMENTAL

DEBOUNCE_CAP = 10  # times the debounce, as by default in a group's settings
DEFAULT_STRATEGY = "sticky"  # of plans whose events do not name one; as for the mode, also if it is not known here
ONE_ROUND = "cooperative_sticky"  # places as the default one does, but leaves what moves for a second plan
FREE = ""  # the owner of a partition without one
AS_RECORDED = "as recorded"
CENTRAL, KIP_848 = "central", "kip848"


@dataclass(frozen=True, slots=True)
class Step:
    """One member joined or left.

    `name`: the member; a `client` on a host keeps its name over restarts (None: unknown). `partitions`: of the group,
    from here on. `mode`, `strategy`: of the group's last plan. `silent_us`: for a member that left, the time since its
    last sign of life; 0 if it said that it leaves.
    """

    at_us: int
    name: str
    client: str | None
    joins: bool
    partitions: int
    mode: str
    silent_us: int = 0
    strategy: str = DEFAULT_STRATEGY


@dataclass(frozen=True, slots=True)
class Setting:
    """Assumptions of a replay that replace recorded values. `strategy`, `mode` None: the recorded ones."""

    name: str
    strategy: str | None = None
    mode: str | None = None
    protocol: str = CENTRAL
    heartbeat_ms: float = 0.0
    grace_us: int = 0
    debounce_us: int = round(DEBOUNCE_MS * 1_000)
    session_share: float = 1.0


SETTINGS = (
    Setting(AS_RECORDED),
    Setting("mode=incremental", mode=INCREMENTAL),
    Setting("mode=eager", mode=EAGER),
    Setting("strategy=range", strategy="range"),
    Setting("strategy=round_robin", strategy="round_robin"),
    Setting("strategy=balanced", strategy="balanced"),
    Setting("rebalance_debounce_ms=5000", debounce_us=5_000_000),
    Setting("static members, static_grace_ms=30000", grace_us=30_000_000),
    Setting("static members, static_grace_ms=120000", grace_us=120_000_000),
    Setting("session timeout halved", session_share=0.5),
    Setting("Kafka, eager, heartbeat 3 s", "sticky", protocol="eager", heartbeat_ms=3_000),
    Setting("Kafka, cooperative, heartbeat 3 s", "sticky", protocol="cooperative", heartbeat_ms=3_000),
    Setting("Kafka, cooperative, heartbeat 0.5 s", "sticky", protocol="cooperative", heartbeat_ms=500),
    Setting("Kafka, KIP-848, heartbeat 5 s", "sticky", protocol=KIP_848, heartbeat_ms=5_000),
    Setting("Kafka, KIP-848, heartbeat 0.5 s", "sticky", protocol=KIP_848, heartbeat_ms=500),
    Setting("Kafka, KIP-848, heartbeat 50 ms", "sticky", protocol=KIP_848, heartbeat_ms=50),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Sums over a history. `unowned_partition_s`: time without an owner, summed over partitions."""

    rebalances: int = 0
    moved: int = 0
    unowned_partition_s: float = 0.0


def replay(steps: Sequence[Step], setting: Setting, answer_ms: float, seed: str) -> Outcome:
    """Return what `steps`, in order of time, cost under `setting`.

    `answer_ms`: the median time in which members of this group answered a stop. The same `seed` draws the same delays.
    """
    chance = random.Random(seed)  # noqa: S311  # delays, not secrets
    state = _State()
    for batch, begins_us in _batches(_held(steps, setting), setting):
        state.apply(batch, begins_us, setting, answer_ms, chance)
    return Outcome(state.rebalances, state.moved, state.unowned_us / 1e6)


@dataclass(frozen=True, slots=True)
class _Event:
    """A step as the coordinator sees it; `back_us`: a static member is back after so long, and nothing moves."""

    step: Step
    wait_us: int = 0
    back_us: int | None = None


def _held(steps: Sequence[Step], setting: Setting) -> list[_Event]:
    """Turn restarts within the grace into waits, put off other ends by the grace, and shorten sessions."""
    returns = _returns(steps, setting.grace_us) if setting.grace_us else {}
    absorbed = set(returns.values())
    events: list[_Event] = []
    names: dict[str, str] = {}  # of a member that returned: the name under which it owns its partitions
    for index, step in enumerate(steps):
        if index in absorbed:
            continue
        silent_us = round(step.silent_us * setting.session_share)
        known = replace(step, name=names.pop(step.name, step.name) if not step.joins else step.name)
        if step.joins or not setting.grace_us:
            earlier_us = step.silent_us - silent_us
            events.append(_Event(replace(known, at_us=step.at_us - earlier_us), silent_us))
        elif index in returns:
            back = steps[returns[index]]
            names[back.name] = known.name
            events.append(_Event(known, silent_us, max(0, back.at_us - step.at_us)))
        else:
            late = replace(known, at_us=step.at_us + setting.grace_us)
            events.append(_Event(late, silent_us + setting.grace_us))
    return sorted(events, key=lambda event: event.step.at_us)


def _returns(steps: Sequence[Step], grace_us: int) -> dict[int, int]:
    """Return the positions of ends after which the same client came back in time, each with that of its next join.

    After a crash, it often comes back before its former session is over.
    """
    found: dict[int, int] = {}
    absorbed: set[int] = set()
    at_us = attrgetter("at_us")
    for left, end in enumerate(steps):
        if end.joins or end.client is None:
            continue
        begin = bisect_left(steps, end.at_us - end.silent_us, key=at_us)
        gone = {end.name, *(step.name for step in steps[begin:left] if not step.joins)}
        for index in range(begin, bisect_right(steps, end.at_us + grace_us, key=at_us)):
            step = steps[index]
            if step.joins and step.client == end.client and step.name not in gone and index not in absorbed:
                found[left] = index
                absorbed.add(index)
                break
    return found


def _batches(events: Sequence[_Event], setting: Setting) -> Iterator[tuple[list[_Event], int]]:
    """Iterate over the events of each rebalance, and when it begins.

    Centrally, as in `rebalance.causes`: an event after a quiet time waits for nothing, others until it is quiet, or for
    at most DEBOUNCE_CAP times as long; with KIP-848, none waits. With Kafka's classic protocols, a round lasts for a
    heartbeat, which the model charges.
    """
    wait_us, has_rounds = setting.debounce_us, setting.protocol not in {CENTRAL, KIP_848}
    if setting.protocol == KIP_848:
        wait_us = 0
    batch: list[_Event] = []
    begins_us, last_us = 0, -wait_us
    for event in events:
        at_us = event.step.at_us
        if batch and at_us > begins_us:
            yield batch, begins_us
            batch = []
        if has_rounds:
            begins_us = begins_us if batch else at_us + round(setting.heartbeat_ms * 1_000)
        elif batch:
            begins_us = max(begins_us, min(at_us + wait_us, batch[0].step.at_us + DEBOUNCE_CAP * wait_us))
        else:
            begins_us = at_us if at_us - last_us >= wait_us else at_us + wait_us
        batch.append(event)
        last_us = at_us
    if batch:
        yield batch, begins_us


class _State:
    """The members and owners of a group during a replay, and the sums so far."""

    def __init__(self) -> None:
        self.members: list[str] = []
        self.owners: list[str] = []
        self.rebalances = 0
        self.moved = 0
        self.unowned_us = 0.0

    def apply(
        self, batch: Sequence[_Event], begins_us: int, setting: Setting, answer_ms: float, chance: random.Random
    ) -> None:
        """Change the members, place the partitions, charge what it costs."""
        before = self.members
        last = batch[-1].step
        for at_us, together in groupby(batch, key=lambda event: event.step.at_us):
            self._note(list(together), begins_us - at_us if setting.protocol == CENTRAL else 0)
        members, strategy = self.members, _strategy(setting, last.strategy)
        if not before or not members:
            self.owners = placed(strategy, members, [], [1.0] * last.partitions) if members else []
            return
        if members == before and len(self.owners) == last.partitions:
            return
        gone = {*before, FREE} - set(members)
        owners = [*self.owners, *[FREE] * last.partitions][: last.partitions]
        after = placed(strategy, members, owners, [1.0] * last.partitions)
        staying = [name for name in members if name in before]
        beats = {name: wait_ms(chance, setting.heartbeat_ms) for name in staying}
        answers_ms = {name: wait_ms(chance, 2 * answer_ms) for name in staying}
        # `_note` charges the debounce.
        change = Change(owners, after, gone, beats, answers_ms, debounce_ms=0.0, interval_ms=setting.heartbeat_ms)
        _settled_ms, pauses_ms = _protocol(setting, last.mode)(change)
        self.rebalances += 1
        self.moved += sum(map(change.moves, range(last.partitions)))
        self.unowned_us += sum(pauses_ms) * 1_000
        self.owners = after

    def _note(self, events: Sequence[_Event], away_us: int) -> None:
        """Change the members as at one moment; charge what partitions wait to be placed, or for a member's return.

        Without another member, nothing could own them.
        """
        ended = [event for event in events if not event.step.joins]
        gone = {event.step.name for event in ended if event.back_us is None}
        joining = [event.step.name for event in events if event.step.joins]
        self.members = [*dict.fromkeys([*(name for name in self.members if name not in gone), *joining])]
        if self.members:
            for event in ended:
                wait_us = event.wait_us + (away_us if event.back_us is None else event.back_us)
                self.unowned_us += self.owners.count(event.step.name) * wait_us


def _strategy(setting: Setting, recorded: str) -> str:
    name = setting.strategy or recorded
    return name if name in STRATEGIES and name != ONE_ROUND else DEFAULT_STRATEGY


def _protocol(setting: Setting, recorded_mode: str) -> Callable[[Change], tuple[float, list[float]]]:
    if setting.protocol == CENTRAL:
        return _CENTRAL.get(setting.mode or recorded_mode, incremental)
    return _CLIENT_SIDE[setting.protocol]


def central_eager(change: Change) -> tuple[float, list[float]]:
    """Charge the central mode `eager`: all owners stop, the slowest answer starts everything again."""
    slowest_ms = max(change.answers_ms.values(), default=0.0)
    pauses_ms = [
        (change.debounce_ms + slowest_ms if change.is_orphan(partition) else slowest_ms - change.answers_ms[owner])
        + 2 * ROUND_TRIP_MS
        for partition, owner in enumerate(change.before)
    ]
    return change.debounce_ms + slowest_ms + 2 * ROUND_TRIP_MS, pauses_ms


_CENTRAL: Mapping[str, Callable[[Change], tuple[float, list[float]]]] = {
    INCREMENTAL: incremental,
    EAGER: central_eager,
}
_CLIENT_SIDE: Mapping[str, Callable[[Change], tuple[float, list[float]]]] = {
    "eager": eager,
    "cooperative": cooperative,
    KIP_848: kip848,
}
