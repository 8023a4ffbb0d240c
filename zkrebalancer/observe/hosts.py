"""Finds out which clock each event was written by, and what ties the clocks of several hosts together.

`Witness.add` gets every event of a run once, in any order, on which nothing depends. A clock is a boot of a host:
`boot` of an event names it. Events without that key (of earlier versions) count to the one boot of their host, unless
the wall clock says that they are of another one; of a host without any, it tells boots apart.

Causes and effects: the request of a command, and what its member does then; a member's stop, and its acknowledgement as
the coordinator sees it, or the member's clean end; a record handed to a producer, and its delivery; a boot's last
event, and the next one's first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from zkrebalancer.observe.clocks import Evidence
from zkrebalancer.observe.partition_history import CLOSED
from zkrebalancer.observe.reading import MAX_NUMBER, Event, text_of

REBOOTED_US = 600_000_000  # a wall clock that is this far from where it was belongs to another boot
SAMPLED = 16  # of every so many offsets, at most one is followed from its producer to its consumers
MAX_SAMPLES = 200_000  # with more, fewer offsets are followed
MAX_STRIDE = 1 << 62
_FETCHERS = {"fetcher_started": "start-fetcher", "fetcher_stopped": "stop-fetcher"}
_CLEAN_END = {"fetcher_stopped": CLOSED, "ownership_ended": "expired", "member_left": CLOSED}  # with which reasons

At = tuple[str, int]  # a clock and its time
_Plan = tuple[object, ...]  # group, generation and cause
_Member = tuple[str, str]  # group and name, which is used once
_Sample = tuple[str, int, int]  # topic, partition and offset
_Spans = dict[str, dict[str, tuple[int, int]]]  # by host and clock: the first and the last time


class ClockNames:
    """Names the clock of each event."""

    def __init__(self) -> None:
        """Know no clock yet."""
        self._boots: dict[str, dict[str, int | None]] = {}  # by host and boot: distances to the wall clock
        self._walls: dict[str, list[int]] = {}  # by host: those of events without `boot`

    def note(self, event: Event) -> None:
        """Look at an event of the run."""
        host, boot, wall_us = text_of(event, "host"), text_of(event, "boot"), _wall_us(event)
        if boot:
            boots = self._boots.setdefault(host, {})
            known = boots.setdefault(boot, wall_us)
            if wall_us is not None and (known is None or wall_us < known):
                boots[boot] = wall_us
            return
        walls = self._walls.setdefault(host, [])
        if wall_us is not None and not any(_is_near(each, wall_us) for each in walls):
            walls.append(wall_us)

    def of(self, event: Event) -> str:
        """Return the name of an event's clock; call it after every event was noted."""
        host, boot, wall_us = text_of(event, "host"), text_of(event, "boot"), _wall_us(event)
        if boot:
            return boot
        walls, boots = self._unnamed(host), self._boots.get(host, {})
        if len(boots) == 1:
            name, known = next(iter(boots.items()))
            if not walls or wall_us is None or known is None or _is_near(known, wall_us):
                return name
        at_us = wall_us or 0
        nearest = min(range(len(walls)), key=lambda number: abs(walls[number] - at_us), default=0)
        return f"{host}#{nearest + 1}" if len(walls) > 1 else host

    def _unnamed(self, host: str) -> list[int]:
        """Return the distances to the wall clock of the clocks of a host whose events do not name them."""
        walls, boots = self._walls.get(host, []), self._boots.get(host, {})
        if len(boots) != 1:
            return walls
        (known,) = boots.values()
        return [each for each in walls if known is not None and not _is_near(known, each)]

    @property
    def depend_on_walls(self) -> bool:
        """Whether boots of a host are told apart by the wall clock only, so that later events may name others anew."""
        return any(len(self._unnamed(host)) > self._least_unnamed(host) for host in self._walls)

    @property
    def count(self) -> int:
        """How many clocks there are."""
        boots = set[str]().union(*self._boots.values())
        return len(boots) + sum(max(len(self._unnamed(host)), self._least_unnamed(host)) for host in self._walls)

    def _least_unnamed(self, host: str) -> int:
        """Return how many clocks events without `boot` have at least: none of their own if one boot is named."""
        return 0 if len(self._boots.get(host, ())) == 1 else 1


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
    """Collects what ties clocks together; it may be asked, and go on."""

    def __init__(self, names: ClockNames) -> None:
        """`names` knows all events of the run."""
        self.names = names
        self.has_erred = False  # a cause and its effect were told that are none: only a new witness knows the others
        self._found = Evidence()
        self._commands: dict[str, _Command] = {}
        self._clean_ends: dict[_Member, dict[str, list[At]]] = {}  # by kind
        self._plans: dict[_Plan, list[At]] = {}
        self._planned: dict[_Plan, list[At]] = {}  # what members did under a plan, without a command's id
        self._produced: dict[_Sample, At | None] = {}  # None: made anew
        self._delivered: dict[_Sample, dict[str, int]] = {}  # the earliest, by clock
        self._spans: _Spans = {}
        self._stride = SAMPLED
        self._news: tuple[set[str], set[_Plan], set[_Sample]] = (set(), set(), set())  # of whom there is more to tell
        self._ended: set[_Member] = set()  # the same
        self._told: tuple[set[_Plan], set[_Sample]] = (set(), set())
        self._boots: set[tuple[str, str]] = set()  # pairs that were told

    @property
    def remembered(self) -> int:
        """How much is remembered of events."""
        of_commands = len(self._commands) + len(self._planned) + len(self._clean_ends)
        return of_commands + len(self._produced) + len(self._delivered)

    def add(self, event: Event, count: int = 1) -> None:
        """Look at an event; `count`: of how many of its clock it is one."""
        clock = self._note(event, count, self._found, self._spans)
        kind, at = event["kind"], (clock, event["mono_us"])
        if kind == "rebalance_planned":
            self._plans.setdefault(_plan(event), []).append(at)
            self._news[1].add(_plan(event))
        elif kind in {"command_sent", "command_acked", *_FETCHERS}:
            self._add_command(event, at)
        elif kind in {"ownership_ended", "member_left"}:
            self._add_end(event, at)
        elif kind in {"produced", "delivered"} and (key := _sample(event, self._stride)) is not None:
            if kind == "delivered":
                came = self._delivered.setdefault(key, {})
                came[clock] = min(came.get(clock, at[1]), at[1])
            elif (sent_us := _time(event, "sent_us")) is not None:
                self._produced[key] = None if key in self._produced else (clock, sent_us)
            self._news[2].add(key)
            while max(len(self._produced), len(self._delivered)) > MAX_SAMPLES and self._stride < MAX_STRIDE:
                self._follow_fewer()

    def _note(self, event: Event, count: int, found: Evidence, spans: _Spans) -> str:
        clock, mono_us = self.names.of(event), event["mono_us"]
        found.note(clock, mono_us, _time(event, "ts_us"), count)
        of_host = spans.setdefault(text_of(event, "host"), {})
        first, last = of_host.get(clock, (mono_us, mono_us))
        of_host[clock] = min(first, mono_us), max(last, mono_us)
        return clock

    def _follow_fewer(self) -> None:
        """Follow every other of the offsets that are followed; which of them, depends on no order of events."""
        self._stride *= 2
        dropped = {key for key in (*self._produced, *self._delivered) if key[2] % self._stride}
        for key in dropped:
            self._produced.pop(key, None)
            self._delivered.pop(key, None)
        self._news[2].difference_update(dropped)
        self.has_erred = self.has_erred or not dropped.isdisjoint(self._told[1])

    def _add_command(self, event: Event, at: At) -> None:
        kind, command_id = event["kind"], text_of(event, "command_id")
        if kind in _FETCHERS and event.get("cause_id") is not None:
            self._planned.setdefault(_plan(event), []).append(at)
            self._news[1].add(_plan(event))
        if kind == "fetcher_stopped":
            self._add_end(event, at)
        if not command_id:
            return
        command = self._commands.setdefault(command_id, _Command())
        self._news[0].add(command_id)
        if kind in _FETCHERS:
            command.done.append((kind, at))
        elif kind == "command_acked":
            command.acked.append(at)
        elif (asked_us := _time(event, "asked_us")) is not None:  # the event is written after the transaction
            command.asked.append((at[0], asked_us))

    def _add_end(self, event: Event, at: At) -> None:
        kind, member = event["kind"], (text_of(event, "group"), text_of(event, "member"))
        if event.get("reason") == _CLEAN_END[kind]:
            self._clean_ends.setdefault(member, {}).setdefault(kind, []).append(at)
            self._ended.add(member)

    def evidence(self, ends: Iterable[tuple[Event, int]] = ()) -> Evidence:
        """Return what was found; of causes and effects, only what was not returned before.

        `ends`: events that count this time only, each with the number of those of its clock.
        """
        found = Evidence(wall_us=dict(self._found.wall_us), events=Counter(self._found.events))
        spans = {host: dict(clocks) for host, clocks in self._spans.items()}
        for event, count in ends:
            self._note(event, count, found, spans)
        for command_id in self._news[0]:
            self._commands[command_id].tell(found)
        for member in self._ended:
            self._tell_end(member, found)
        for plan in self._news[1]:
            self._tell_plan(plan, found)
        for key in self._news[2]:
            self._tell_sample(key, found)
        for of_whom in (*self._news, self._ended):
            of_whom.clear()
        self._tell_boots(spans, found)
        return found

    def _tell_plan(self, plan: _Plan, found: Evidence) -> None:
        causes, effects = self._plans.get(plan, ()), self._planned.get(plan, ())
        if len(causes) == 1 and effects:
            self._told[0].add(plan)
            for effect in effects:
                found.add(causes[0], effect)
        elif plan in self._told[0]:
            self.has_erred = True

    def _tell_end(self, member: _Member, found: Evidence) -> None:
        """Note that a member stopped before its end; unless that was clean, its session may have been over first."""
        known = self._clean_ends[member]
        seen = (*known.get("ownership_ended", ()), *known["member_left"]) if "member_left" in known else ()
        for stopped in known.get("fetcher_stopped", ()):
            for ended in seen:
                found.add(stopped, ended)

    def _tell_sample(self, key: _Sample, found: Evidence) -> None:
        sent = self._produced.get(key)
        if sent is None:
            self.has_erred = self.has_erred or key in self._told[1]
            return
        for came in self._delivered.get(key, {}).items():
            self._told[1].add(key)
            found.add(sent, came)

    def _tell_boots(self, spans: _Spans, found: Evidence) -> None:
        walls, boots = found.wall_us, set()
        for of_host in spans.values():
            began_us = {clock: first + walls[clock] for clock, (first, _last) in of_host.items() if clock in walls}
            for before, after in pairwise(sorted(began_us, key=lambda clock: (began_us[clock], clock))):
                if of_host[before][1] + walls[before] <= began_us[after]:  # else a pod has come back to its former node
                    boots.add((before, after))
                    found.add((before, of_host[before][1]), (after, of_host[after][0]))
        self.has_erred = self.has_erred or not self._boots <= boots
        self._boots = boots


def _sample(event: Event, stride: int) -> _Sample | None:
    """Return the roundest offset of a range, if it is followed: a multiple of the highest power of two."""
    first, last = event["first_offset"], event["last_offset"]
    digits = ((first - 1) ^ last).bit_length() - 1 if first else last.bit_length()
    offset = last >> digits << digits
    return None if offset % stride else (event["topic"], event["partition"], offset)


def _plan(event: Event) -> _Plan:
    return text_of(event, "group"), event.get("generation"), text_of(event, "cause_id")


def _is_near(one_us: int, other_us: int) -> bool:
    """Whether clocks with these distances to the wall clock may be the same."""
    return abs(one_us - other_us) <= REBOOTED_US


def _time(event: Event, key: str) -> int | None:
    """Return a time that its kind of events does not require, None if it is missing or none."""
    value = event.get(key)
    return value if type(value) is int and abs(value) <= MAX_NUMBER else None


def _wall_us(event: Event) -> int | None:
    ts_us = _time(event, "ts_us")
    return None if ts_us is None else ts_us - int(event["mono_us"])
