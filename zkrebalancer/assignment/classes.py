"""Balance for large groups with overlapping subscriptions, decided for classes of members instead of single members.

Members with equal subscriptions form a class; topics that the same classes read form a kind. How many rows of each
kind each class gets is a flow over few nodes, regardless of the number of members. First every class keeps its claims,
then free rows go to the least loaded readers, then rows move along chains of classes, many at a time, until no chain
improves the balance. Every hop costs moves, so chains are shortest ones. The sum of squared member sizes is then
minimal (`chains.py` explains why single chains suffice).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from zkrebalancer.assignment.alike import Counts
from zkrebalancer.assignment.columns import Flags, Offsets

FITTING_ROUNDS = 10  # chains correct the remaining unevenness


def balance_classes(reads: Flags, widths: Counts, row_counts: Counts, claimed: Counts) -> Counts:
    """Return how many rows of each kind each class gets: [classes, kinds].

    `reads`: [classes, kinds], whether a class reads the topics of a kind; every kind with rows has a reader.
    `widths`: members of each class, at least 1. `row_counts`: rows of each kind. `claimed`: [classes, kinds], rows that
    members of the class own and may keep; at most `row_counts` of each kind.
    """
    if not claimed.any():
        flow = _Flow(reads, widths, claimed, poured_at_once(reads, widths, row_counts))
        flow.improve()
        return flow.held
    flow = _Flow(reads, widths, claimed, claimed.copy())
    free = row_counts - claimed.sum(axis=0)
    for kind in np.argsort(reads.sum(axis=0), kind="stable"):  # few readers first, which saves chains later
        if free[kind]:
            readers = np.flatnonzero(reads[:, kind])
            flow.held[readers, kind] += poured(flow.sizes()[readers], widths[readers], int(free[kind]))
    flow.improve()
    return flow.held


def poured_at_once(reads: Flags, widths: Counts, row_counts: Counts) -> Counts:
    """Distribute all kinds over empty classes, approximately evenly; returns [classes, kinds].

    Each kind is split in proportion to its readers' widths, which are scaled repeatedly by how far each class is from
    the mean (iterative proportional fitting). The remainders of the division go to the least loaded readers.
    """
    pull = reads * widths[:, np.newaxis].astype(np.float64)
    for _ in range(FITTING_ROUNDS):
        share = pull * (row_counts / np.maximum(pull.sum(axis=0), 1e-300))
        loads = share.sum(axis=1) / widths
        if np.ptp(loads) * 2 < 1:
            break
        pull *= (loads.mean() / np.maximum(loads, 1.0))[:, np.newaxis]
    held: Counts = np.floor(share).astype(np.int64)
    left, sizes = row_counts - held.sum(axis=0), held.sum(axis=1)
    for kind in np.flatnonzero(left).tolist():
        readers = np.flatnonzero(reads[:, kind])
        lowest = readers[np.argsort(sizes[readers] / widths[readers], kind="stable")[: left[kind]]]
        held[lowest, kind] += 1
        sizes[lowest] += 1
    return held


def poured(sizes: Counts, widths: Counts, amount: int) -> Counts:
    """Pour an amount into vessels with these contents and widths, as level as possible; return what each one gets."""
    order = np.argsort(sizes / widths, kind="stable")
    size, width = np.cumsum(sizes[order]), np.cumsum(widths[order])
    # If only the n lowest vessels get something, their common level is (amount + contents) / widths.
    open_count = np.count_nonzero((amount + size) * widths[order] > sizes[order] * width)
    level = (amount + size[open_count - 1]) // width[open_count - 1]
    got: Counts = np.maximum(level * widths - sizes, 0)
    # The rest is too little for another level: it goes to the first vessels at this level.
    room = np.maximum((level + 1) * widths - sizes - got, 0)
    got += np.clip(amount - got.sum() - (np.cumsum(room) - room), 0, room)
    return got


@dataclass(frozen=True, slots=True, eq=False)
class _Flow:
    """The number of rows of each class and kind, and the chains that improve it."""

    reads: Flags  # [classes, kinds]
    widths: Counts  # [classes]
    claimed: Counts  # [classes, kinds]
    held: Counts  # [classes, kinds]

    def sizes(self) -> Counts:
        sizes: Counts = self.held.sum(axis=1)
        return sizes

    def improve(self) -> None:
        """Relieve the classes with the largest members along chains, until no chain helps.

        A class that cannot be relieved is closed, with all classes that its chains reach: their members are not larger,
        and no later chain can create a way out of them.
        """
        open_classes = np.ones(len(self.widths), np.bool_)
        sizes = self.sizes()
        while open_classes.any():
            largest = -(-sizes // self.widths)
            source = int(np.argmax(np.where(open_classes, largest, -1)))
            smallest = sizes // self.widths
            chain, reached = self._chain(source, smallest, int(largest[source]) - 2)
            if not chain:
                open_classes[reached] = False
                continue
            sink = chain[0][2]
            amount = self._worthwhile(source, sink, sizes)
            amount = min([amount, *(self._available(giver, kind) for giver, kind, _ in chain)])
            for giver, kind, taker in chain:
                self.held[giver, kind] -= amount
                self.held[taker, kind] += amount
            sizes[source] -= amount
            sizes[sink] += amount

    def _chain(self, source: int, smallest: Counts, at_most: int) -> tuple[list[tuple[int, int, int]], Flags]:
        """Find a shortest chain from a class to one whose smallest members have at most `at_most` rows.

        Returns the hops (giver, kind, taker), the last one first ([] if there is no chain), and the classes reached.
        """
        reached = np.zeros(len(self.widths), np.bool_)
        passed = np.zeros(self.reads.shape[1], np.bool_)
        kind_into = np.full(len(reached), -1)  # the kind through which a class was reached
        giver_of = np.full(len(passed), -1)  # the class that gives rows of a kind
        frontier = np.array([source])
        reached[source] = True
        while len(frontier):
            held = self.held[frontier]
            # A class gives unclaimed rows first, because they move anyway.
            can_give = (held > 0).astype(np.int8) + (held > self.claimed[frontier])
            kinds = np.flatnonzero((can_give.max(axis=0) > 0) & ~passed)
            passed[kinds] = True
            giver_of[kinds] = frontier[np.argmax(can_give[:, kinds], axis=0)]
            takers = self.reads[:, kinds] & ~reached[:, np.newaxis]
            frontier = np.flatnonzero(takers.any(axis=1))
            if not len(frontier):
                break
            reached[frontier] = True
            kind_into[frontier] = kinds[np.argmax(takers[frontier], axis=1)]
            sink = int(frontier[np.argmin(smallest[frontier])])
            if smallest[sink] <= at_most:
                return self._back(source, sink, kind_into, giver_of), reached
        return [], reached

    @staticmethod
    def _back(source: int, sink: int, kind_into: Offsets, giver_of: Offsets) -> list[tuple[int, int, int]]:
        chain = []
        while sink != source:
            kind = int(kind_into[sink])
            giver = int(giver_of[kind])
            chain.append((giver, kind, sink))
            sink = giver
        return chain

    def _available(self, giver: int, kind: int) -> int:
        """Return how many rows the class can give at the same cost: unclaimed ones, or else all."""
        held = int(self.held[giver, kind])
        unclaimed = held - int(self.claimed[giver, kind])
        return unclaimed if unclaimed > 0 else held

    def _worthwhile(self, source: int, sink: int, sizes: Counts) -> int:
        """Return how many rows to move from source to sink until their members are level: at least one."""
        source_size, source_width = int(sizes[source]), int(self.widths[source])
        sink_size, sink_width = int(sizes[sink]), int(self.widths[sink])

        def is_enough(amount: int) -> bool:
            """Whether the source's largest member then has less than two rows more than the sink's smallest one."""
            return -(-(source_size - amount) // source_width) - (sink_size + amount) // sink_width < 2

        return 1 + bisect_left(range(1, source_size), 1, key=is_enough)
