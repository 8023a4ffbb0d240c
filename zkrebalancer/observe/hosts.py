"""Finds out which clock each event was written by, and what ties the clocks of several hosts together.

`Witness.add` gets every event of a run once, in any order. A clock is a boot of a host: `boot` of an event names it.
Events without that key (of earlier versions) count to the one boot of their host; of a host without any, the distance
to the wall clock tells boots apart.

Causes and effects: the request of a command, and what its member does then; a member's stop, and its acknowledgement as
the coordinator sees it; a record handed to a producer, and its delivery; a boot's last event, and the next one's first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from zkrebalancer.observe.clocks import Evidence
from zkrebalancer.observe.reading import Event

REBOOTED_US = 600_000_000  # a wall clock that is this far from where it was belongs to another boot
SAMPLED = 16  # of every so many offsets, one is followed from its producer to its consumers
MAX_SAMPLES = 200_000
_FETCHERS = {"fetcher_started": "start-fetcher", "fetcher_stopped": "stop-fetcher"}

At = tuple[str, int]  # a clock and its time


class ClockNames:
    """Names the clock of each event."""

    def __init__(self) -> None:
        """Know no clock yet."""
        self._boots: dict[str, set[str]] = {}  # by host
        self._walls: dict[str, list[int]] = {}  # by host: distances to the wall clock of events without `boot`

    def note(self, event: Event) -> None:
        """Look at an event of the run."""
        host, boot = _text(event, "host"), _text(event, "boot")
        if boot:
            self._boots.setdefault(host, set()).add(boot)
            return
        walls, wall_us = self._walls.setdefault(host, []), _wall_us(event)
        if not walls or (wall_us is not None and all(abs(each - wall_us) > REBOOTED_US for each in walls)):
            walls.append(wall_us or 0)

    def of(self, event: Event) -> str:
        """Return the name of an event's clock; call it after every event was noted."""
        host, boot = _text(event, "host"), _text(event, "boot")
        if boot:
            return boot
        boots = self._boots.get(host, set())
        if len(boots) == 1:
            return next(iter(boots))
        walls, wall_us = self._walls[host], _wall_us(event) or 0
        nearest = min(range(len(walls)), key=lambda number: abs(walls[number] - wall_us))
        return f"{host}#{nearest + 1}" if len(walls) > 1 else host

    @property
    def count(self) -> int:
        """How many clocks there are."""
        boots = set[str]().union(*self._boots.values())
        apart = (len(walls) for host, walls in self._walls.items() if len(self._boots.get(host, ())) != 1)
        return len(boots) + sum(apart)


@dataclass(slots=True)
class _Command:
    """What is known of one command: when it was asked for, what it did, when its effect was seen."""

    asked: list[At] = field(default_factory=list)
    done: list[tuple[str, At]] = field(default_factory=list)  # the kind of the member's event
    acked: list[At] = field(default_factory=list)

    def tell(self, evidence: Evidence) -> None:
        """Add the causes and effects; a start may be acknowledged before its event."""
        for kind, done in self.done:
            for asked in self.asked:
                evidence.add(asked, done)
            for acked in self.acked if kind == "fetcher_stopped" else ():
                evidence.add(done, acked)


class Witness:
    """Collects what ties clocks together."""

    def __init__(self, names: ClockNames) -> None:
        """`names` knows all events of the run."""
        self._names = names
        self._evidence = Evidence()
        self._commands: dict[str, _Command] = {}
        self._plans: dict[tuple[object, ...], list[At]] = {}
        self._planned: dict[tuple[object, ...], list[At]] = {}  # what members did under a plan, without a command's id
        self._produced: dict[tuple[str, int, int], At | None] = {}  # by topic, partition, offset; None: made anew
        self._delivered: dict[tuple[str, int, int], dict[str, int]] = {}  # the earliest, by clock
        self._spans: dict[str, dict[str, tuple[int, int]]] = {}  # by host and clock: the first and the last time

    def add(self, event: Event, count: int = 1) -> None:
        """Look at an event; `count`: of how many of its clock it is one."""
        clock, kind, mono_us = self._names.of(event), event["kind"], event["mono_us"]
        ts_us = event.get("ts_us")
        self._evidence.note(clock, mono_us, ts_us if type(ts_us) is int else None, count)
        spans = self._spans.setdefault(_text(event, "host"), {})
        first, last = spans.get(clock, (mono_us, mono_us))
        spans[clock] = min(first, mono_us), max(last, mono_us)
        at = (clock, mono_us)
        if kind == "rebalance_planned":
            self._plans.setdefault(_plan(event), []).append(at)
        elif kind in {"command_sent", "command_acked", *_FETCHERS}:
            self._add_command(event, at)
        elif kind == "produced":
            self._add_produced(event, clock)
        elif kind == "delivered":
            self._add_delivered(event, at)

    def _add_command(self, event: Event, at: At) -> None:
        kind, command_id = event["kind"], _text(event, "command_id")
        if kind in _FETCHERS and event.get("cause_id") is not None:
            self._planned.setdefault(_plan(event), []).append(at)
        if not command_id:
            return
        command = self._commands.setdefault(command_id, _Command())
        if kind in _FETCHERS:
            command.done.append((kind, at))
        elif kind == "command_acked":
            command.acked.append(at)
        elif type(event.get("asked_us")) is int:  # it is written after the transaction, which may be too late
            command.asked.append((at[0], event["asked_us"]))

    def _add_produced(self, event: Event, clock: str) -> None:
        key = _sample(event)
        if key is not None and type(event.get("sent_us")) is int and len(self._produced) < MAX_SAMPLES:
            self._produced[key] = None if key in self._produced else (clock, event["sent_us"])

    def _add_delivered(self, event: Event, at: At) -> None:
        key = _sample(event)
        if key is not None and (key in self._delivered or len(self._delivered) < MAX_SAMPLES):
            came = self._delivered.setdefault(key, {})
            came[at[0]] = min(came.get(at[0], at[1]), at[1])

    def evidence(self) -> Evidence:
        """Return everything that was found; call it once, after the last event."""
        for command in self._commands.values():
            command.tell(self._evidence)
        for plan, effects in self._planned.items():
            if len(causes := self._plans.get(plan, [])) == 1:
                for effect in effects:
                    self._evidence.add(causes[0], effect)
        for key, sent in self._produced.items():
            for came in self._delivered.get(key, {}).items():
                if sent is not None:
                    self._evidence.add(sent, came)
        self._add_boots()
        return self._evidence

    def _add_boots(self) -> None:
        walls = self._evidence.wall_us
        for spans in self._spans.values():
            began_us = {clock: first + walls[clock] for clock, (first, _last) in spans.items() if clock in walls}
            for before, after in pairwise(sorted(began_us, key=lambda clock: (began_us[clock], clock))):
                self._evidence.add((before, spans[before][1]), (after, spans[after][0]))


def _sample(event: Event) -> tuple[str, int, int] | None:
    """Return the first offset of a range that is followed."""
    offset = -(-event["first_offset"] // SAMPLED) * SAMPLED
    return (event["topic"], event["partition"], offset) if offset <= event["last_offset"] else None


def _plan(event: Event) -> tuple[object, ...]:
    return _text(event, "group"), event.get("generation"), _text(event, "cause_id")


def _text(event: Event, key: str) -> str:
    value = event.get(key)
    return value if isinstance(value, str) else ""


def _wall_us(event: Event) -> int | None:
    ts_us = event.get("ts_us")
    return ts_us - int(event["mono_us"]) if type(ts_us) is int else None
