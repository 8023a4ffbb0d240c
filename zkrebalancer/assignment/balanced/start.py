"""The greedy starts: owners keep what fits under the level of the load, and the rest goes where it costs least.

What is let go of, and what nobody owns, is placed one by one, the heaviest first (Graham's longest processing time
first); an owner takes its own back unless another member is better by more than the price of the move. If more
partitions move than may, the moves that gain least are taken back.
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

MAX_SMALL_ROWS = 1_000  # of a group for which there is time to try everything from every start
TAKEN_BACK_AT_ONCE = 1 / 8  # of the moves above the limit, before the rest is judged anew
LOOKED_AT = 7  # of a shelf, for one that has few of the topic: the first entry and, in the tree, the two levels below
ROUNDING = 1e-9  # of sums of loads


def starts(case: Case) -> Iterator[Rows]:
    """Yield targets within all limits; NOBODY where a row has no reader, or none with room."""
    for kept in _ways_to_keep(case):
        target = np.where(kept, case.columns.owner, np.int32(NOBODY))
        _place(case, target, np.flatnonzero(~kept & case.free_to_move))
        make_room(case, target)
        _take_back(case, target)
        yield target


def _ways_to_keep(case: Case) -> Iterator[Flags]:
    """Yield for each row whether its owner keeps it, in up to four ways.

    A member above its level lets go of the lightest single partition that brings it below, or of its heaviest ones
    until it is below, or of none; in a small group also everybody of everything. Partitions that are above the level
    even alone are the last ones to go.
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
    """Give rows that nobody has to readers, in `target`: those of the kinds with the fewest readers first."""
    if len(rows):
        kinds = case.kind[rows]
        order = np.lexsort((rows, -case.load[rows], kinds, case.reader_count[kinds]))
        board = _Board(case, case.carried(target).tolist(), case.counts(target).tolist())
        for rows_of_kind in np.split(rows[order], np.flatnonzero(np.diff(kinds[order])) + 1):
            board.place(target, rows_of_kind)


@dataclass(slots=True)
class _Board:
    """What each member carries while rows are placed. Plain lists, because one element is read at a time.

    The readers of a kind stand on shelves, one for each rack and class of capacity: heaps of (utilisation, member). The
    first entries of a shelf are its best members, as in one class no capacity is twice another one.
    """

    case: Case
    carried: list[float]
    counts: list[int]
    held: dict[int, Counter[int]] = field(default_factory=dict)  # topic -> member -> partitions, once it is asked for
    strength: list[float] = field(init=False)
    even_share: list[int] = field(init=False)
    shelves: list[tuple[int, list[tuple[float, int]]]] = field(init=False)  # (rack, heap)
    utilisation: dict[int, float] = field(init=False)  # of the readers; entries of the heaps may be older
    peak: float = field(init=False)
    room: int = field(init=False)  # partitions that a member may have
    topic: int = field(init=False)  # of the row that is being placed
    crowding_cost: float = field(init=False)  # of one more partition above its topic's even share

    def place(self, target: Rows, rows: Indexes) -> None:
        """Place rows of one kind, in their order."""
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
        """Return the reader that takes a row at the least cost, and this cost; NOBODY if none has room."""
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
            for seen, member in shelf[:LOOKED_AT]:
                if seen == self.utilisation[member] and self.counts[member] < self.room:
                    cost = self._cost(load, member, is_across=crosses[rack])
                    if cost < best_cost:
                        best, best_cost = member, cost
                    if not self._would_crowd(member):
                        break
        return best, best_cost

    def _cost(self, load: float, member: int, *, is_across: bool) -> float:
        """Return by how much the cost grows when the member takes the load too, but for a constant."""
        options, carried, strength = self.case.options, self.carried[member], self.strength[member]
        cost = options.uneven_cost * load * (2 * carried + load) / strength
        if (carried + load) / strength > self.peak:
            cost += options.peak_cost * ((carried + load) / strength - self.peak)
        if self._would_crowd(member):
            cost += self.crowding_cost
        return cost + options.rack_cost * load if is_across else cost

    def _would_crowd(self, member: int) -> bool:
        return self.held[self.topic].get(member, 0) >= self.even_share[self.topic]


def _take_back(case: Case, target: Rows) -> None:
    """Give partitions back to their owners, in `target`, until no more leave than may: first where it costs least.

    An owner may then have more of its own than fit, but nothing else.
    """
    limit = case.options.max_moves_per_rebalance
    if limit is None:
        return
    owner = case.columns.owner
    left = np.flatnonzero(case.has_left(target))
    while len(left) > limit:
        count = max(1, int((len(left) - limit) * TAKEN_BACK_AT_ONCE))
        back = left[_cheapest_returns(case, target, left)[:count]]
        target[back] = owner[back]
        left = np.setdiff1d(left, back, assume_unique=True)
    if case.options.max_partitions_per_member is not None:
        _make_way(case, target, case.options.max_partitions_per_member)
        _place(case, target, np.flatnonzero((target == NOBODY) & case.free_to_move & (owner == NOBODY)))


def _make_way(case: Case, target: Rows, room: int) -> None:
    """Take from members above the limit what is not their own, the lightest first: it goes back, or to nobody."""
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
    """Return the order in which rows should go back; to an owner that should not have them only the last ones."""
    owner, load = case.columns.owner[moved], case.load[moved]
    across = case.is_across(moved, target[moved]).astype(np.float64) - case.is_across(moved, owner)
    loss = _lost_evenness(case, case.carried(target), target[moved], owner, load)
    gain = case.price[moved] + case.options.rack_cost * load * across - loss
    lacks_room = ~case.active[owner]
    if case.options.max_partitions_per_member is not None:
        lacks_room |= case.counts(target)[owner] >= case.options.max_partitions_per_member
    return np.lexsort((moved, -gain, target[moved] != NOBODY, lacks_room))


def _lost_evenness(case: Case, carried: Floats, giver: Rows, taker: Rows, load: Floats) -> Floats:
    """Return by how much each move alone would raise the unevenness's cost; nothing is known of a drained taker: 0."""
    strength = np.where(case.active, case.strength, 1.0)
    utilisation = carried / strength
    loss = load * (2 * (utilisation[taker] - utilisation[giver]) + load / strength[giver] + load / strength[taker])
    return np.where(case.active[taker], case.options.uneven_cost * loss, 0.0)
