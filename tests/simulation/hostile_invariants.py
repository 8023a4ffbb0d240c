"""Checks for a hostile world: no offset is deleted needlessly, no call is repeated without a pause."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from tests.simulation.coordinator import CoordinatorHost
from tests.simulation.ensemble import Ensemble
from tests.simulation.host import Host
from tests.simulation.kafka import Brokers
from tests.simulation.promises import BrokenPromiseError
from tests.simulation.schedule import Schedule
from tests.support.zk_model import Change
from zkrebalancer.protocol import fields, offset_copy, paths
from zkrebalancer.protocol.calls import Call, Multi, Operation
from zkrebalancer.protocol.numbers import decimal

SECOND_US = 1_000_000
MAX_CALLS_PER_SECOND = 1_500  # per process
MAX_EQUAL_CALLS_PER_SECOND = 80  # two plans of 16 small commands, for each of which a channel is listed twice, make 64


class OffsetInvariants:
    """Checks that coordinators delete offsets only of former incarnations of a topic, and keep copies."""

    def __init__(self, ensemble: Ensemble, brokers: Brokers, life: Callable[[str], str]) -> None:
        self._ensemble = ensemble
        self._brokers = brokers
        self._life = life
        self._written: dict[str, str] = {}  # path of an offset -> incarnation of its topic when it was written
        ensemble.watchers.append(self.committed)

    def committed(self, session_id: int, _operations: tuple[Operation, ...], changes: tuple[Change, ...]) -> None:
        for change in changes:
            _, *parts = change.path.split("/")
            if len(parts) != 6 or parts[3] != "offsets" or decimal(parts[5], fields.MAX_PARTITION) is None:
                continue  # of a name that no partition has, nobody reads an offset
            log = self._brokers.logs.get((parts[4], int(parts[5])))
            incarnation = log.incarnation if log is not None else ""
            if change.after is not None and change.after.content:  # empty: it could not be deleted
                self._written.setdefault(change.path, self._named(parts[2], parts[4]) or incarnation)
                continue
            written = self._written.pop(change.path, "")
            is_coordinator = isinstance(self._ensemble.hosts.get(session_id), CoordinatorHost)
            if is_coordinator and log is not None and written == incarnation:
                raise BrokenPromiseError("offset deleted", f"{change.path}, although {parts[4]} is the same topic")
            if is_coordinator and not _is_copied(change, changes):
                raise BrokenPromiseError("offset deleted", f"{change.path} without a copy")

    def _named(self, group: str, topic: str) -> str:
        """Return the incarnation that the mark of the offsets names, else the one in the record, else ""."""
        stored = (paths.offsets(group, topic), paths.incarnations(group, topic))
        found = [self._ensemble.zk.nodes[path].content for path in stored if path in self._ensemble.zk.nodes]
        return next(filter(None, (self._life(content.decode(errors="replace")) for content in found)), "")


def _is_copied(deleted: Change, changes: tuple[Change, ...]) -> bool:
    """Whether the transaction that deleted an offset also copied it; content that is no number needs no copy."""
    _, *parts = deleted.path.split("/")
    offset = decimal(deleted.before.content.strip()) if deleted.before is not None else None
    made = [each.after.content for each in changes if each.after is not None and "/deleted_offsets/" in each.path]
    copies = map(offset_copy.decode, made)
    return offset is None or any(
        copy.topic == parts[4] and copy.offsets.get(int(parts[5])) == offset for copy in copies
    )


class CallRates:
    """Checks that a process makes a bounded number of calls per second, and few that are equal."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._recent: dict[str, deque[tuple[int, str]]] = {}
        self._equal: dict[str, Counter[str]] = {}

    def requested(self, host: Host, call: Call) -> None:
        now_us, text = self._schedule.now_us, f"{type(call).__name__} {_paths(call)}"
        recent, equal = self._recent.setdefault(host.name, deque()), self._equal.setdefault(host.name, Counter())
        recent.append((now_us, text))
        equal[text] += 1
        while recent[0][0] < now_us - SECOND_US:
            equal[recent.popleft()[1]] -= 1
        if len(recent) > MAX_CALLS_PER_SECOND or equal[text] > MAX_EQUAL_CALLS_PER_SECOND:
            raise BrokenPromiseError(
                "repetition", f"{host.name} makes {len(recent)} calls a second, {equal[text]} are {text}"
            )


def _paths(call: Call) -> str:
    if not isinstance(call, Multi):
        return call.path
    return " ".join(f"{type(each).__name__[0]}{each.path.removeprefix(paths.GROUPS)}" for each in call.operations)[:300]
