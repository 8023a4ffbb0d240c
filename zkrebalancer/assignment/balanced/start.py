"""Greedy starts: owners keep the partitions that fit under the load level; the others go where they cost least.

Released and unowned partitions are placed one by one, the heaviest first (Graham's longest processing time first). A
released one returns to its owner unless another member is better by more than the price of the move. If more partitions
move than allowed, the moves that gain least are undone.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from zkrebalancer.assignment.alike import rank_in_run
from zkrebalancer.assignment.balanced.case import Case, Floats, Indexes
from zkrebalancer.assignment.balanced.lower_bound import levels
from zkrebalancer.assignment.balanced.room import make_room
from zkrebalancer.assignment.columns import NOBODY, Flags, Rows

MAX_SMALL_ROWS = 1_000  # up to this size there is time for all starts, and for a search from each
UNDONE_AT_ONCE = 1 / 8  # share of the moves above the limit to undo before the others are evaluated again
EXAMINED = 7  # entries of a heap to examine for a member with few partitions of the topic: its first three levels
ROUNDING = 1e-9  # of sums of loads


def starts(case: Case) -> Iterator[Rows]:
    """Yield targets within all limits; rows without a reader, or without one with room, are unassigned."""
    for kept in _ways_to_keep(case):
        target = np.where(kept, case.columns.owner, np.int32(NOBODY))
        _place(case, target, np.flatnonzero(~kept & case.free_to_move))
        make_room(case, target)
        _undo_moves(case, target)
        yield target


def _ways_to_keep(case: Case) -> Iterator[Flags]:
    """Yield up to four choices of the rows that their owners keep, [P] each.

    A member above its level releases the lightest single partition that brings it below, or its heaviest ones until it
    is below, or none. In a small group, a fourth choice releases everything. Partitions that exceed the level by
    themselves are released last.
    """
    owner = case.columns.owner
    choosable = (owner >= 0) & case.free_to_move & case.active[owner]
    rows = np.flatnonzero(choosable | ((owner >= 0) & ~case.free_to_move))
    if not len(rows):
        yield np.zeros(len(owner), np.bool_)
        return
    component_of_member, _ = case.components
    full = (levels(case)[component_of_member] * case.strength)[owner[rows]]
    is_last = ~choosable[rows] | (case.load[rows] > full)
    across = case.is_across(rows, owner[rows])
    order = np.lexsort((case.load[rows], across, ~is_last, choosable[rows], owner[rows]))
    rows, full, is_last = rows[order], full[order], is_last[order]
    holder = owner[rows]
    begins = np.searchsorted(holder, np.arange(len(case.strength) + 1))
    total = np.concatenate(([0.0], np.cumsum(case.load[rows])))
    before = total[begins]

    until_below = total[1:] - before[holder] <= full + ROUNDING
    excess = (before[holder + 1] - before[holder]) - full
    sufficient = np.flatnonzero(~is_last & (excess > ROUNDING) & (case.load[rows] >= excess))
    holders, firsts = np.unique(holder[sufficient], return_index=True)
    all_but_one = np.where(np.isin(holder, holders), np.True_, until_below)
    all_but_one[sufficient[firsts]] = False
    has_room = np.ones(len(rows), np.bool_)
    if case.options.max_partitions_per_member is not None:
        has_room = np.arange(len(rows)) - begins[holder] < case.options.max_partitions_per_member
    for fits in (all_but_one, until_below, np.ones(len(rows), np.bool_)):
        kept = np.zeros(len(owner), np.bool_)
        kept[rows] = (fits & has_room) | ~choosable[rows]
        yield kept
    if len(owner) <= MAX_SMALL_ROWS:
        yield (owner >= 0) & ~case.free_to_move


def _place(case: Case, target: Rows, rows: Indexes) -> None:
    """Give unassigned rows to readers, in `target`; kinds with the fewest readers first."""
    if len(rows):
        kinds = case.kind[rows]
        order = np.lexsort((rows, -case.load[rows], kinds, case.reader_count[kinds]))
        board = _Board(case, case.carried(target).tolist(), case.counts(target).tolist())
        for rows_of_kind in np.split(rows[order], np.flatnonzero(np.diff(kinds[order])) + 1):
            board.place(target, rows_of_kind)


@dataclass(slots=True)
class _Board:
    """The load of each member while rows are placed. Plain lists, because elements are accessed one at a time.

    The readers of a kind are on shelves, one for each rack and capacity class: heaps of (utilisation, member). Within a
    class, capacities differ by less than a factor of two, so the first entries of a shelf are its best members.
    """

    case: Case
    carried: list[float]
    counts: list[int]
    held: dict[int, Counter[int]] = field(default_factory=dict)  # topic -> member -> partitions, filled on first use
    strength: list[float] = field(init=False)
    even_share: list[int] = field(init=False)
    shelves: list[tuple[int, list[tuple[float, int]]]] = field(init=False)  # (rack, heap)
    utilisation: dict[int, float] = field(init=False)  # of the readers; heap entries may be outdated
    peak: float = field(init=False)
    room: int = field(init=False)  # most partitions of a member
    topic: int = field(init=False)  # of the row being placed
    crowding_cost: float = field(init=False)  # of one more partition above its topic's even share

    def place(self, target: Rows, rows: Indexes) -> None:
        """Place rows of one kind, in the given order."""
        case = self.case
        limit = case.options.max_partitions_per_member
        self.room = limit if limit is not None else len(case.load)
        self.strength, self.even_share = case.strength.tolist(), case.even_share.tolist()
        self._fill_shelves(case.readers[case.kind[rows[0]]])
        self.crowding_cost = case.options.spread_cost * case.average_load
        rack = case.columns.rack.tolist()
        columns = (case.columns.topic, case.load, case.columns.owner, case.price, case.crosses)
        for row, self.topic, load, owner, price, across in zip(
            rows.tolist(), *(column[rows].tolist() for column in columns), strict=True
        ):
            if self.topic not in self.held:
                rows_of_topic = slice(*case.columns.first[self.topic : self.topic + 2])
                self.held[self.topic] = Counter(target[rows_of_topic].tolist())
            best, best_cost = self._best_reader(load, across)
            may_keep = owner in self.utilisation and self.counts[owner] < self.room
            if may_keep and self._cost(load, owner, is_across=across[rack[owner]]) <= best_cost + price:
                best = owner
            if best != NOBODY:
                target[row] = best
                self.counts[best] += 1
                self.held[self.topic][best] += 1
                self.carried[best] += load
                self.utilisation[best] = self.carried[best] / self.strength[best]
                self.peak = max(self.peak, self.utilisation[best])

    def _fill_shelves(self, readers: Rows) -> None:
        self.utilisation = {member: self.carried[member] / self.strength[member] for member in readers.tolist()}
        self.peak = max(self.utilisation.values())
        shelves: dict[tuple[int, int], list[tuple[float, int]]] = {}
        racks = self.case.columns.rack[readers].tolist()
        capacity_classes = np.floor(np.log2(self.case.strength[readers])).astype(np.int64).tolist()
        for (member, utilisation), rack, capacity_class in zip(
            self.utilisation.items(), racks, capacity_classes, strict=True
        ):
            shelves.setdefault((rack, capacity_class), []).append((utilisation, member))
        for shelf in shelves.values():
            heapq.heapify(shelf)
        self.shelves = [(rack, shelves[rack, capacity_class]) for rack, capacity_class in sorted(shelves)]

    def _best_reader(self, load: float, crosses: list[bool]) -> tuple[int, float]:
        """Return the reader that can have the row at the lowest cost, and this cost; NOBODY if none has room."""
        best, best_cost = NOBODY, float("inf")
        for rack, shelf in self.shelves:
            while shelf:
                seen, member = shelf[0]
                if self.counts[member] >= self.room:
                    heapq.heappop(shelf)
                elif seen != self.utilisation[member]:
                    heapq.heapreplace(shelf, (self.utilisation[member], member))
                else:
                    break
            for seen, member in shelf[:EXAMINED]:
                if seen == self.utilisation[member] and self.counts[member] < self.room:
                    cost = self._cost(load, member, is_across=crosses[rack])
                    if cost < best_cost:
                        best, best_cost = member, cost
                    if not self._would_crowd(member):
                        break
        return best, best_cost

    def _cost(self, load: float, member: int, *, is_across: bool) -> float:
        """Return the increase of the cost, up to a constant, if the member gets the load."""
        options, carried, strength = self.case.options, self.carried[member], self.strength[member]
        cost = options.uneven_cost * load * (2 * carried + load) / strength
        if (carried + load) / strength > self.peak:
            cost += options.peak_cost * ((carried + load) / strength - self.peak)
        if self._would_crowd(member):
            cost += self.crowding_cost
        return cost + options.rack_cost * load if is_across else cost

    def _would_crowd(self, member: int) -> bool:
        return self.held[self.topic].get(member, 0) >= self.even_share[self.topic]


def _undo_moves(case: Case, target: Rows) -> None:
    """Return partitions to their owners, in `target`, until the moves are within the limit; the cheapest returns first.

    An owner may then have more partitions than `max_partitions_per_member`, but only its own.
    """
    limit = case.options.max_moves_per_rebalance
    if limit is None:
        return
    owner = case.columns.owner
    left = np.flatnonzero(case.has_left(target))
    while len(left) > limit:
        count = max(1, int((len(left) - limit) * UNDONE_AT_ONCE))
        back = left[_cheapest_returns(case, target, left)[:count]]
        target[back] = owner[back]
        left = np.setdiff1d(left, back, assume_unique=True)
    if case.options.max_partitions_per_member is not None:
        _make_way(case, target, case.options.max_partitions_per_member)
        _place(case, target, np.flatnonzero((target == NOBODY) & case.free_to_move & (owner == NOBODY)))


def _make_way(case: Case, target: Rows, room: int) -> None:
    """Remove the lightest foreign partitions from members above the limit; they return to their owner, if any."""
    owner = case.columns.owner
    while True:
        surplus = case.counts(target) - room
        rows = np.flatnonzero((target >= 0) & (target != owner) & case.free_to_move)
        rows = rows[surplus[target[rows]] > 0]
        if not len(rows):
            return
        rows = rows[np.lexsort((case.load[rows], target[rows]))]
        rows = rows[rank_in_run(target[rows]) < surplus[target[rows]]]
        target[rows] = owner[rows]


def _cheapest_returns(case: Case, target: Rows, moved: Indexes) -> Indexes:
    """Return the indexes of moved rows in the order to return them; owners that are drained or full come last."""
    owner, load = case.columns.owner[moved], case.load[moved]
    across = case.is_across(moved, target[moved]).astype(np.float64) - case.is_across(moved, owner)
    loss = _lost_evenness(case, case.carried(target), target[moved], owner, load)
    gain = case.price[moved] + case.options.rack_cost * load * across - loss
    lacks_room = ~case.active[owner]
    if case.options.max_partitions_per_member is not None:
        lacks_room |= case.counts(target)[owner] >= case.options.max_partitions_per_member
    return np.lexsort((moved, -gain, target[moved] != NOBODY, lacks_room))


def _lost_evenness(case: Case, carried: Floats, giver: Rows, taker: Rows, load: Floats) -> Floats:
    """Return by how much each move alone would raise the cost of unevenness; 0 for a drained taker."""
    strength = np.where(case.active, case.strength, 1.0)
    utilisation = carried / strength
    loss = load * (2 * (utilisation[taker] - utilisation[giver]) + load / strength[giver] + load / strength[taker])
    return np.where(case.active[taker], case.options.uneven_cost * loss, 0.0)
