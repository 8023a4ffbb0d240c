"""Explains a target: for any partition, the reason for its member, and how the best other member would change the cost.

Nothing is recorded during planning. The finished target is evaluated: one partition against every other member, with
all other partitions in place. The time per partition is proportional to the number of members.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from zkrebalancer.assignment.balanced.case import Case, Floats
from zkrebalancer.assignment.columns import NOBODY, Flags, Rows

ROUNDING = 1e-9  # largest difference of costs that count as equal


class Reason(StrEnum):
    """Why a partition is with its member, or unassigned."""

    NO_SUBSCRIBER = "no subscriber"
    ALL_DRAINED = "all subscribers are being drained"
    NO_ROOM = "no room at any subscriber"
    PINNED = "pinned"
    ONLY_SUBSCRIBER = "only subscriber"
    KEPT = "kept"
    NOT_WORTH_THE_MOVE = "not worth the move"
    MOVE_LIMIT = "move limit"
    SEARCH_ENDED = "search ended"  # there is a better member, which the search did not examine
    LEAST_LOADED = "least loaded"
    RACK = "rack"
    BEST_FIT = "best fit"  # lowest total cost, although others are less loaded


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about one partition, and the best other member that may have it, if any.

    The changes are those of the cost, by term, if the alternative had the partition; above 0 is worse.
    """

    reason: Reason
    member: str | None
    owner: str | None
    alternative: str | None = None
    load_change: float = 0.0
    rack_change: float = 0.0
    move_change: float = 0.0
    spread_change: float = 0.0


def explain(case: Case, target: Rows, row: int) -> Decision:
    """Explain why a row is with its member."""
    return _Judgement(case, target).explain(row)


def reasons(case: Case, target: Rows, rows: Iterable[int]) -> list[Reason]:
    """Return the reason for each of these rows; the time is proportional to rows times members."""
    judgement = _Judgement(case, target)
    return [judgement.explain(row).reason for row in rows]


def changes_of(case: Case, target: Rows, row: int) -> Changes:
    """Return how the cost would change if each active member had the row, which an active member has now."""
    return _Judgement(case, target).changes(row)


@dataclass(frozen=True, slots=True)
class Changes:
    """How the cost would change, by term, if each member had the row, [M]."""

    load: Floats
    rack: Floats
    move: Floats
    spread: Floats

    @property
    def total(self) -> Floats:
        """The sum of all terms."""
        return self.load + self.rack + self.move + self.spread


class _Judgement:
    """One target, with intermediate results that all its rows share."""

    def __init__(self, case: Case, target: Rows) -> None:
        self.case, self.target = case, target
        self.strength = np.where(case.active, case.strength, 1.0)
        self.carried = np.where(case.active, case.carried(target), 0.0)
        self.utilisation = self.carried / self.strength
        self.counts = case.counts(target)
        limit = case.options.max_moves_per_rebalance
        self.is_move_left = limit is None or np.count_nonzero(case.has_left(target)) < limit

    def explain(self, row: int) -> Decision:
        case = self.case
        member, owner = int(self.target[row]), int(case.columns.owner[row])
        names = case.columns.consumers
        name, owner_name = (names[m] if m != NOBODY else None for m in (member, owner))
        reason = self._plain_reason(row, member)
        if reason is not None:
            return Decision(reason, name, owner_name)
        changes = self.changes(row)
        others = self._may_have(row)
        others[member] = False
        total = np.where(others, changes.total, np.inf)
        best = int(total.argmin())
        if not others[best]:
            return Decision(Reason.KEPT if member == owner else Reason.LEAST_LOADED, name, owner_name)
        reason = self._reason_to_stay(changes, others) if member == owner else self._reason_to_go(row, others)
        of_best = (float(term[best]) for term in (changes.load, changes.rack, changes.move, changes.spread))
        return Decision(reason, name, owner_name, names[best], *of_best)

    def _plain_reason(self, row: int, member: int) -> Reason | None:
        """Return the reason if there was no choice."""
        case = self.case
        reader_count = int(case.reader_count[case.kind[row]])
        if case.pinned[row]:
            return Reason.PINNED
        if member == NOBODY:
            if reader_count:
                return Reason.NO_ROOM
            return Reason.ALL_DRAINED if case.reads[:, case.kind[row]].any() else Reason.NO_SUBSCRIBER
        if reader_count <= 1 and (case.active[member] or not reader_count):
            return Reason.ONLY_SUBSCRIBER
        if not case.active[member]:
            return Reason.NO_ROOM if self.is_move_left else Reason.MOVE_LIMIT
        return None

    def _reason_to_stay(self, changes: Changes, others: Flags) -> Reason:
        if (changes.total - changes.move)[others].min() >= -ROUNDING:
            return Reason.KEPT
        if changes.total[others].min() >= -ROUNDING:
            return Reason.NOT_WORTH_THE_MOVE
        return Reason.SEARCH_ENDED if self.is_move_left else Reason.MOVE_LIMIT

    def _reason_to_go(self, row: int, others: Flags) -> Reason:
        """Return why a row goes to a member that does not own it."""
        member = self.target[row]
        after = (self.carried + self.case.load[row]) / self.strength
        lighter = np.flatnonzero(others & (after < self.utilisation[member] - ROUNDING))
        if not len(lighter):
            return Reason.LEAST_LOADED
        crosses = self.case.crosses[row, self.case.columns.rack]
        return Reason.RACK if not crosses[member] and crosses[lighter].all() else Reason.BEST_FIT

    def _may_have(self, row: int) -> Flags:
        """Return the members that read the row and have room for it."""
        case = self.case
        may_have: Flags = case.reads[case.columns.subscription, case.kind[row]] & case.active
        if case.options.max_partitions_per_member is not None:
            may_have &= self.counts < case.options.max_partitions_per_member
        return may_have

    def changes(self, row: int) -> Changes:
        """See `changes_of`."""
        case, options = self.case, self.case.options
        member, load = int(self.target[row]), float(case.load[row])
        here = (self.carried[member] - load) / self.strength[member]
        there = (self.carried + load) / self.strength
        unevenness = self.strength * ((there - 1) ** 2 - (self.utilisation - 1) ** 2)
        unevenness += self.strength[member] * ((here - 1) ** 2 - (self.utilisation[member] - 1) ** 2)
        without = self.utilisation.copy()
        without[member] = here
        peak = np.maximum(there, without.max()) - self.utilisation.max()

        rack = case.columns.rack
        across = case.crosses[row, rack].astype(np.float64) - case.crosses[row, rack[member]]
        owner = case.columns.owner[row]
        places = np.arange(len(self.strength))
        leaves = (places != owner).astype(np.float64) - (member != owner)
        topic = case.columns.topic[row]
        rows_of_topic = self.target[case.columns.first[topic] : case.columns.first[topic + 1]]
        above = np.bincount(rows_of_topic[rows_of_topic >= 0], minlength=len(places)) - case.even_share[topic]
        crowding = (above >= 0).astype(np.float64) - (above[member] > 0)
        changes = Changes(
            options.uneven_cost * unevenness + options.peak_cost * peak,
            options.rack_cost * load * across,
            case.price[row] * leaves,
            options.spread_cost * case.average_load * crowding,
        )
        for term in (changes.load, changes.rack, changes.move, changes.spread):
            term[member] = 0.0
        return changes
