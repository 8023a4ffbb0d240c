"""Places partitions around members that can be told nothing: they keep what they hold, and get nothing more.

The strategy sees a smaller group: without the partitions that such members hold, in which they read nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from zkrebalancer.assignment.columns import Columns, Flags, Rows, Strategy, offsets


def place_around(
    strategy: Strategy, columns: Columns, options: Mapping[str, object], keeping: Collection[str]
) -> tuple[Rows, Rows]:
    """Return the member and the consumer thread of each row; `keeping`: the consumers that keep what they hold."""
    keeps = np.fromiter((name in keeping for name in columns.consumers), np.bool_, len(columns.consumers))
    is_kept = np.append(keeps, np.False_)[columns.holder]  # NOBODY, -1, is the last entry
    member, thread = columns.holder.copy(), columns.owner_thread.copy()
    member[~is_kept], thread[~is_kept] = strategy(_without(columns, keeps, ~is_kept), options)
    return member, thread


def _without(columns: Columns, keeps: Flags, rows: Flags) -> Columns:
    """Return a group of these rows, in which some members read nothing."""
    threads = np.vstack((columns.threads, np.zeros((1, len(columns.topics)), np.int16)))
    subscription = np.where(keeps, np.int32(len(columns.threads)), columns.subscription)
    is_used = np.bincount(subscription, minlength=len(threads)) > 0
    holder = columns.holder[rows]
    return replace(
        columns,
        first=offsets(np.bincount(columns.topic[rows], minlength=len(columns.topics))),
        topic=columns.topic[rows],
        holder=holder,
        owner=holder if columns.owner is columns.holder else columns.owner[rows],
        owner_thread=columns.owner_thread[rows],
        subscription=(np.cumsum(is_used) - 1)[subscription].astype(np.int32),
        threads=threads[is_used],
        lag=columns.lag[rows],
        rate=columns.rate[rows],
        rack_set=columns.rack_set[rows],
        disputed=None if columns.disputed is None else columns.disputed[rows],
        numbers=(np.arange(len(columns.topic)) - columns.first[columns.topic])[rows],
    )
