"""Lower bounds of the cost, found without search, to judge the quality of a target.

Components of the group (which share no topic) are bounded separately. In a component with load W, strength S,
strongest member c and partitions of loads w, for every level t (duality: L^2 / s >= 2 t L - t^2 s for every load L on
strength s):

    sum over members of L^2 / s  >=  2 t W - t^2 S + sum over partitions of max(0, w - t c)^2 / c

because a partition above the level is at best alone on a strongest member. The best t is the level that the other
members reach when those partitions are set aside; the greedy start fills members up to the same level.
"""

from __future__ import annotations

import numpy as np

from zkrebalancer.assignment.balanced.case import Case, Floats, Indexes
from zkrebalancer.assignment.balanced.objective import Cost
from zkrebalancer.assignment.columns import Flags, Rows

MAX_LEVEL_ROUNDS = 60  # each round sets aside at least one more partition; the bound is valid after any round


def levels(case: Case) -> Floats:
    """Return the level of each component: the utilisation of its members without a partition above the level."""
    return _Components(case, np.flatnonzero(case.load > 0)).level


def lower_bound(case: Case, target: Rows) -> Cost:
    """Return lower bounds of the terms for all targets that give active members the same rows as this one."""
    options = case.options
    rows = np.flatnonzero(target >= 0)
    rows = rows[case.active[target[rows]]]
    parts = _Components(case, rows)
    unevenness = float((parts.squares() - 2 * parts.load + parts.strength).clip(min=0).sum())
    peak = float(parts.peaks().max(initial=0.0))
    crossing = float(case.load[rows[_must_cross(case, rows)]].sum())
    owner = case.columns.owner[rows]
    moving = float(case.price[rows[(owner >= 0) & ~case.active[owner]]].sum())
    total = options.peak_cost * peak + options.uneven_cost * unevenness + options.rack_cost * crossing + moving
    return Cost(peak, unevenness, crossing, moving, 0.0, total)


class _Components:
    """Rows and members by component; arrays are [C], where C is one more than the highest component number."""

    def __init__(self, case: Case, rows: Indexes) -> None:
        of_member, of_kind = case.components
        self.count = int(max(of_member.max(initial=-1), of_kind.max(initial=-1))) + 1
        self.rows_load = case.load[rows]
        self.rows_part = of_kind[case.kind[rows]]
        self.load = np.bincount(self.rows_part, self.rows_load, self.count)
        self.strength = np.bincount(of_member, case.strength, self.count)
        self.member_count = np.bincount(of_member, case.active, self.count)
        self.strongest = np.zeros(self.count)
        np.maximum.at(self.strongest, of_member, case.strength)
        self.level = self._levels()

    def _levels(self) -> Floats:
        level = np.divide(self.load, self.strength, out=np.zeros(self.count), where=self.strength > 0)
        for _ in range(MAX_LEVEL_ROUNDS):
            above = self.rows_load > (level * self.strongest)[self.rows_part] + 1e-12
            rest_load = self.load - np.bincount(self.rows_part[above], self.rows_load[above], self.count)
            rest_strength = self.strength - np.bincount(self.rows_part[above], minlength=self.count) * self.strongest
            has_rest = (rest_strength > 1e-9) & (rest_load > 0)
            lower = np.where(has_rest, rest_load / np.where(has_rest, rest_strength, 1.0), level)
            if not (lower < level).any():
                break
            level = np.minimum(level, lower)
        return level

    def squares(self) -> Floats:
        """Return a lower bound of the sum of L^2 / s in each component."""
        strongest = np.where(self.strongest > 0, self.strongest, 1.0)
        above = np.maximum(self.rows_load - (self.level * strongest)[self.rows_part], 0.0)
        apart = np.bincount(self.rows_part, above**2, self.count) / strongest
        return 2 * self.level * self.load - self.level**2 * self.strength + apart

    def peaks(self) -> Floats:
        """Return a lower bound of the highest utilisation in each component.

        It is the greatest of: the mean; the heaviest partition on the strongest member; and, for each k, the total of
        the lightest k + 1 among the k n + 1 heaviest partitions, because some k + 1 of these share one of n members.
        """
        mean = np.divide(self.load, self.strength, out=np.zeros(self.count), where=self.strength > 0)
        highest = np.zeros(self.count)
        order = np.argsort(-self.rows_load)  # the order of equal loads does not matter
        if self.count > 1:
            order = order[np.argsort(self.rows_part[order], kind="stable")]
        load, part = self.rows_load[order], self.rows_part[order]
        begin = np.searchsorted(part, np.arange(self.count))
        place = np.arange(len(order)) - begin[part]  # 0: the heaviest of its component
        sharing, last = np.divmod(place, np.maximum(self.member_count, 1)[part].astype(np.int64))
        at = np.flatnonzero(last == 0)
        total = np.concatenate(([0.0], np.cumsum(load)))
        together = total[at + 1] - total[at - sharing[at]]
        np.maximum.at(highest, part[at], together)
        return np.maximum(mean, np.divide(highest, self.strongest, out=np.zeros(self.count), where=self.strongest > 0))


def _must_cross(case: Case, rows: Indexes) -> Flags:
    """Return the rows that every reader would read across racks."""
    has_rack = np.zeros((len(case.readers), case.crosses.shape[1]), np.bool_)
    for kind, readers in enumerate(case.readers):
        has_rack[kind, case.columns.rack[readers]] = True
    must_cross: Flags = np.all(case.crosses[rows] | ~has_rack[case.kind[rows]], axis=1)
    return must_cross
