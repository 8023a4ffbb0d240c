"""The heart of sticky: spreads rows evenly over interchangeable owners, keeping as many claims as possible.

Rows and owners are divided into buckets; each owner may get any row of its bucket, and no others. An owner is a member
of the group, or a consumer thread of one member. All buckets are solved at once, in time linear in rows and owners.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from zkrebalancer.assignment.columns import NOBODY, Flags, Offsets, Rows, offsets

Counts: TypeAlias = npt.NDArray[np.int64]
MIN_BLOCK = 500  # average rows per bucket above which it is faster to process each bucket by itself
_UNLIMITED = np.iinfo(np.int64).max


def spread_alike(
    claimed: Rows,
    claimed_thread: Rows | None,
    free: Offsets,
    row_counts: Counts,
    bucket_of_owner: Rows,
    disputed: Flags | None = None,
) -> Rows:
    """Give every row of every bucket to one of the bucket's owners; return the owner of each row.

    `claimed`: owner that has the row now and may keep it, or NOBODY. `claimed_thread`: the owner's thread that has the
    row, which determines the rows to give up; None if it makes no difference. `free`: unclaimed rows, sorted by bucket
    and then in the order to deal them. `row_counts`: rows of each bucket, claimed and free. A bucket with rows needs an
    owner. A row that is neither claimed nor free goes to NOBODY. `disputed`: rows to give up before others.

    Within a bucket, sizes differ by at most one. An owner that claims more than the smaller size has to give up rows in
    any case, so such owners get the larger sizes first, which keeps the most claims. Free rows are dealt in a circle to
    the owners with room.
    """
    places = _Places.of(bucket_of_owner, len(row_counts))
    claim_counts = np.bincount(claimed + 1, minlength=len(bucket_of_owner) + 1)[1:][places.owner]
    size, larger_count = np.divmod(row_counts, np.maximum(places.owner_counts, 1))

    sizes = size[places.bucket]
    keeps_larger = places.first_of(claim_counts > sizes, larger_count)
    limit = sizes + keeps_larger
    kept = np.minimum(claim_counts, limit)
    gets_larger = places.first_of(kept <= sizes, larger_count - places.count(keeps_larger))
    room = sizes + (keeps_larger | gets_larger) - kept

    target = claimed.copy()
    has_too_many = claim_counts > limit
    if has_too_many.any():
        limit_of_owner = np.full(len(limit) + 1, _UNLIMITED)  # the last entry is NOBODY's
        limit_of_owner[places.owner[has_too_many]] = limit[has_too_many]
        given_up, givers = _give_up(target, claimed_thread, limit_of_owner, disputed)
        claims = np.diff(offsets(claim_counts)[places.begins])
        free_bucket = np.repeat(np.arange(len(row_counts)), row_counts - claims)
        free_bucket = np.concatenate((free_bucket, bucket_of_owner[givers]))
        free = np.concatenate((free, given_up))
        free = free[np.lexsort((free, free_bucket))]
    target[free] = places.deal(room)
    return target


def _give_up(target: Rows, thread: Rows | None, limit_of_owner: Counts, disputed: Flags | None) -> tuple[Offsets, Rows]:
    """Free the rows that owners claim beyond their limit: those of their largest threads, disputed ones first.

    Returns the rows and their former owners.
    """
    rows = np.flatnonzero((limit_of_owner < _UNLIMITED)[target])
    if disputed is not None:
        rows = rows[np.argsort(disputed[rows], kind="stable")]
    owner = target[rows]
    if thread is None:
        order = np.argsort(narrow(owner), kind="stable")
    else:
        by_thread = np.lexsort((thread[rows], owner))
        turn = np.empty(len(rows), np.int64)  # one row of each thread, then a second one of each, …
        turn[by_thread] = rank_in_run(owner[by_thread].astype(np.int64) << 32 | thread[rows][by_thread])
        order = np.lexsort((thread[rows], turn, owner))
    order = order[rank_in_run(owner[order]) >= limit_of_owner[owner[order]]]
    target[rows[order]] = NOBODY
    return rows[order], owner[order]


def rank_in_run(values: npt.NDArray[np.integer]) -> Offsets:
    """Return for each entry the number of equal entries directly before it."""
    begins = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))[: len(values)]
    return np.arange(len(values)) - np.repeat(begins, np.diff(begins, append=len(values)))


def narrow(numbers: Rows) -> npt.NDArray[np.integer]:
    """Return numbers in a small type, if they fit, whose stable sort takes linear time."""
    return numbers.astype(np.uint16) if len(numbers) and numbers.max() <= np.iinfo(np.uint16).max else numbers


@dataclass(frozen=True, slots=True, eq=False)
class _Places:
    """Owners sorted by bucket."""

    owner: Rows  # at each place
    bucket: Rows  # at each place
    owner_counts: Counts  # of each bucket
    begins: Offsets  # first place of each bucket, and the end of the last one

    @classmethod
    def of(cls, bucket_of_owner: Rows, bucket_count: int) -> _Places:
        owner_counts = np.bincount(bucket_of_owner, minlength=bucket_count)
        owner = np.arange(len(bucket_of_owner), dtype=np.int32)
        if bucket_count > 1:
            owner = owner[np.argsort(narrow(bucket_of_owner), kind="stable")]
        return cls(owner, bucket_of_owner[owner], owner_counts, offsets(owner_counts))

    def count(self, chosen: Flags) -> Counts:
        """Return the number of chosen places in each bucket."""
        return np.bincount(self.bucket[chosen], minlength=len(self.owner_counts))

    def first_of(self, chosen: Flags, at_most: Counts) -> Flags:
        """Return the first `at_most` chosen places of each bucket."""
        number = offsets(chosen.astype(np.int64))
        rank = number[:-1] - number[self.begins[:-1]][self.bucket]
        return chosen & (rank < at_most[self.bucket])

    def deal(self, room: Counts) -> Rows:
        """Return the owners in dealing order, bucket after bucket: in circles of the owners that still have room.

        A circle changes only when an owner is full, so equal rounds are written at once. The loop ends soon: rooms add
        up to the number of rows n, so at most about sqrt(2 n) of them differ.
        """
        served = np.empty(room.sum(), np.int32)
        begins = offsets(room)[self.begins[:-1]]
        circle = np.flatnonzero(room)
        turn = 0
        while len(circle):
            turns = int(room[circle].min()) - turn
            bucket = self.bucket[circle]
            owner = self.owner[circle]
            width = np.bincount(bucket, minlength=len(begins))
            ends = begins + turns * width
            edges = offsets(width)
            if turns * len(circle) > MIN_BLOCK * len(begins):
                for number in np.flatnonzero(width).tolist():
                    block = served[begins[number] : ends[number]].reshape(turns, -1)
                    block[:] = owner[edges[number] : edges[number + 1]]
            else:
                rank = np.arange(len(circle)) - edges[bucket]
                served[begins[bucket] + rank + np.arange(turns)[:, np.newaxis] * width[bucket]] = owner
            begins = ends
            turn += turns
            circle = circle[room[circle] > turn]
        return served
