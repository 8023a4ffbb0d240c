"""Makes room for unassigned rows: members at `max_partitions_per_member` pass partitions on to members below it.

The moves form a chain, an augmenting path found breadth first: a reader gets the unassigned row and gives one of its
partitions to another reader of it, which gives one to a third, and so on, until a member has room. When no chain is
left, no assignment has room for more rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

import numpy as np

from zkrebalancer.assignment.balanced.case import Case, Indexes
from zkrebalancer.assignment.columns import NOBODY, Rows


def make_room(case: Case, target: Rows) -> None:
    """Give unassigned rows to readers that have room, or can get it, in `target`.

    A drained member keeps its own rows, up to the limit, only if they would be unassigned otherwise.
    """
    limit = case.options.max_partitions_per_member
    if limit is None:
        return
    for with_drained in (False, True):
        for kind in range(len(case.readers)):
            for row in np.flatnonzero((target == NOBODY) & case.free_to_move & (case.kind == kind)).tolist():
                chain = _shortest_chain(case, target, row, limit, with_drained=with_drained)
                for given, member in chain:
                    target[given] = member
                if not chain and not with_drained:
                    break


def _shortest_chain(case: Case, target: Rows, row: int, limit: int, *, with_drained: bool) -> list[tuple[int, int]]:
    """Return a chain of (row, its new member), the unassigned row last; [] if none leads to a member with room."""
    owner, counts = case.columns.owner, case.counts(target)
    reached: dict[int, tuple[int, int]] = dict.fromkeys(case.readers[case.kind[row]].tolist(), (row, NOBODY))
    if with_drained and owner[row] != NOBODY:
        reached.setdefault(int(owner[row]), (row, NOBODY))
    waiting = deque(reached)
    while waiting:
        member = waiting.popleft()
        if counts[member] < limit:
            return _chain_to(member, reached)
        rows = np.flatnonzero((target == member) & case.free_to_move)
        rows = rows[np.lexsort((case.load[rows], owner[rows] == member))]
        for given, taker in _gifts(case, rows, with_drained=with_drained):
            if taker not in reached:
                reached[taker] = (given, member)
                waiting.append(taker)
    return []


def _chain_to(member: int, reached: Mapping[int, tuple[int, int]]) -> list[tuple[int, int]]:
    chain = []
    while member != NOBODY:
        row, giver = reached[member]
        chain.append((row, member))
        member = giver
    return chain


def _gifts(case: Case, rows: Indexes, *, with_drained: bool) -> Iterator[tuple[int, int]]:
    """Yield (row, possible new member): each kind's first row and every reader, each row and its drained owner."""
    kinds, firsts = np.unique(case.kind[rows], return_index=True)
    for kind, first in zip(kinds.tolist(), firsts.tolist(), strict=True):
        for taker in case.readers[kind].tolist():
            yield int(rows[first]), taker
    if with_drained:
        owner = case.columns.owner[rows]
        for position in np.flatnonzero((owner != NOBODY) & ~case.active[owner]).tolist():
            yield int(rows[position]), int(owner[position])
