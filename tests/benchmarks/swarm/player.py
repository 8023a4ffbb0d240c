"""A process that plays the members of some groups; it reads orders and writes answers, one JSON line each."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import gevent
from gevent.event import Event
from gevent.fileobject import FileObjectThread

from tests.benchmarks.swarm.members import Counted, Member, SessionOfMany, wait_until

MAX_MEMBERS_PER_SESSION = 1_000  # the end of a session is one transaction with all its nodes
MAX_IN_TURN = 500  # members that are registered before answers have their turn
CHANGE_DEADLINE_S = 600.0
MAX_CHANGING = 20  # groups at the same time
Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cast:
    """Which groups a process plays, and how large all are."""

    zookeeper: str
    groups: range
    members: int
    partitions: int
    topics: int
    session_timeout_ms: int

    def topic_of(self, group: int) -> str:
        """Return the topic that a group reads."""
        return f"swarm-{group % self.topics}"


def group_name(number: int) -> str:
    """Return the name of a group."""
    return f"swarm-{number}"


class Player:
    """All members of a process."""

    def __init__(self, cast: Cast) -> None:
        """Connect as many sessions as the members need."""
        self.cast = cast
        self.counted = Counted()
        self._sessions: list[SessionOfMany] = []
        self._open()

    def _open(self) -> None:
        needed = -(-len(self.cast.groups) * self.cast.members // MAX_MEMBERS_PER_SESSION)
        address, timeout_ms = self.cast.zookeeper, self.cast.session_timeout_ms
        self._sessions = [SessionOfMany(address, self.counted, timeout_ms) for _ in range(needed)]

    def _session_of(self, group: int) -> SessionOfMany:
        return self._sessions[(group - self.cast.groups.start) % len(self._sessions)]

    def _add(self, group: int, client_id: str) -> Member:
        return self._session_of(group).add(group_name(group), self.cast.topic_of(group), client_id)

    def fill(self, first: int, last: int) -> Answer:
        """Register the members of these groups, and return at once."""
        gevent.spawn(self._fill, range(max(first, self.cast.groups.start), min(last, self.cast.groups.stop)))
        return {}

    def _fill(self, groups: range) -> None:
        for number in range(self.cast.members):
            for group in groups:
                self._add(group, f"m{number}")
                if group % MAX_IN_TURN == 0:
                    gevent.sleep(0.001)

    def look(self) -> Answer:
        """Return what the members own."""
        counted = self.counted
        return {
            "registered": counted.registered,
            "owned": counted.total,
            "commands": counted.commands,
            "last_change_us": counted.last_change_us,
            "faults": counted.faults[:3],
        }

    def join(self, group: int) -> Answer:
        """Let a member join a group and leave; return how long it took until all partitions had an owner each time."""
        began_us = _now_us()
        member = self._add(group, "joiner")
        self._wait(group, lambda: bool(member.started_us))
        joined_ms = (self.counted.last_change_us - began_us) / 1_000
        began_us = _now_us()
        self._session_of(group).remove(member)
        self._wait(group, lambda: True)
        return {"join_ms": joined_ms, "leave_ms": (self.counted.last_change_us - began_us) / 1_000}

    def _wait(self, group: int, is_so: Callable[[], bool]) -> None:
        owned, wanted = self.counted.owned, self.cast.partitions
        wait_until(
            lambda: is_so() and owned.get(group_name(group)) == wanted, CHANGE_DEADLINE_S, f"a change in group {group}"
        )

    def change(self, count: float) -> Answer:
        """Let so many members join and leave as fast as possible, one at a time in each group; return how many did."""
        changing = min(MAX_CHANGING, len(self.cast.groups))
        left = iter(range(int(count)))
        gevent.joinall(
            [gevent.spawn(self._change, self.cast.groups[n::changing], left) for n in range(changing)], raise_error=True
        )
        return {"changed": int(count)}

    def _change(self, groups: range, left: Iterator[int]) -> None:
        for group, _number in zip(cycle(groups), left, strict=False):
            self.join(group)

    def restart(self) -> Answer:
        """End all sessions, and register all members anew."""
        for session in self._sessions:
            session.close()
        self._open()
        return self.fill(self.cast.groups.start, self.cast.groups.stop)

    def renew(self, seconds: float) -> Answer:
        """Renew leases of members, one after the other in each session, for so long; return how many."""
        renewed = [0]
        end_us = _now_us() + int(seconds * 1e6)
        busy = [gevent.spawn(self._renew, session, end_us, renewed) for session in self._sessions if session.members]
        gevent.joinall(busy)
        return {"renewed": renewed[0]}

    def _renew(self, session: SessionOfMany, end_us: int, renewed: list[int]) -> None:
        for member in _for_ever(session):
            done = Event()
            session.renew(member, done.set)
            done.wait()
            renewed[0] += 1
            if _now_us() >= end_us:
                return

    def close(self) -> None:
        """End all sessions."""
        for session in self._sessions:
            session.close()


def _for_ever(session: SessionOfMany) -> Iterator[Member]:
    while True:
        yield from list(session.members.values())


def _now_us() -> int:
    return time.monotonic_ns() // 1_000


def play(cast: Cast) -> None:
    """Carry out the orders on standard input until it ends."""
    player = Player(cast)
    orders: dict[str, Callable[..., Answer]] = {
        "fill": player.fill,
        "look": player.look,
        "join": player.join,
        "change": player.change,
        "restart": player.restart,
        "renew": player.renew,
    }
    for line in FileObjectThread(sys.stdin.fileno(), closefd=False):
        name, *arguments = json.loads(line)
        sys.stdout.write(json.dumps(orders[name](*arguments)) + "\n")
        sys.stdout.flush()
    player.close()
