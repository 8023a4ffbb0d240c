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
        full: set[int] = set()  # members from which no chain leads to room; none ever will, as it would pass them
        for kind, readers in enumerate(case.readers):
            are_full = full.issuperset(readers.tolist())
            rows = np.flatnonzero((target == NOBODY) & case.free_to_move & (case.kind == kind))
            for row, owner in zip(rows.tolist(), case.columns.owner[rows].tolist(), strict=True):
                may_be_kept = with_drained and owner != NOBODY and owner not in full
                if are_full and not may_be_kept:
                    continue  # so are thousands of rows of a group that lacks members: a search for each took minutes
                for given, member in _shortest_chain(case, target, row, limit, full, with_drained=with_drained):
                    target[given] = member
                are_full = full.issuperset(readers.tolist())


def _shortest_chain(
    case: Case, target: Rows, row: int, limit: int, full: set[int], *, with_drained: bool
) -> list[tuple[int, int]]:
    """Return a chain of (row, its new member), the unassigned row last; [] if none leads to a member with room.

    `full`: members that need no search; without a chain, all that were searched are added.
    """
    owner, has_room = case.columns.owner, case.counts(target) < limit
    takers = case.readers[case.kind[row]].tolist()
    if with_drained and owner[row] != NOBODY:
        takers.append(int(owner[row]))
    reached: dict[int, tuple[int, int]] = {taker: (row, NOBODY) for taker in takers if taker not in full}
    for taker in reached:
        if has_room[taker]:
            return _chain_to(taker, reached)
    waiting = deque(reached)
    passed: set[int] = set()  # kinds whose readers are all reached
    while waiting:
        member = waiting.popleft()
        rows = np.flatnonzero((target == member) & case.free_to_move)
        rows = rows[np.lexsort((case.load[rows], owner[rows] == member))]
        for given, taker in _gifts(case, rows, passed, with_drained=with_drained):
            if taker not in reached and taker not in full:
                reached[taker] = (given, member)
                if has_room[taker]:
                    return _chain_to(taker, reached)
                waiting.append(taker)
    full.update(reached)
    return []


def _chain_to(member: int, reached: Mapping[int, tuple[int, int]]) -> list[tuple[int, int]]:
    chain = []
    while member != NOBODY:
        row, giver = reached[member]
        chain.append((row, member))
        member = giver
    return chain


def _gifts(case: Case, rows: Indexes, passed: set[int], *, with_drained: bool) -> Iterator[tuple[int, int]]:
    """Yield (row, possible new member): each kind's first row and every reader, each row and its drained owner.

    `passed`: kinds to leave out; gets these.
    """
    kinds, firsts = np.unique(case.kind[rows], return_index=True)
    for kind, first in zip(kinds.tolist(), firsts.tolist(), strict=True):
        if kind not in passed:
            passed.add(kind)
            for taker in case.readers[kind].tolist():
                yield int(rows[first]), taker
    if with_drained:
        owner = case.columns.owner[rows]
        for position in np.flatnonzero((owner != NOBODY) & ~case.active[owner]).tolist():
            yield int(rows[position]), int(owner[position])
