"""Cooperative sticky, first round: the sticky target without the partitions that another member has to revoke first.

Source: Kafka's `CooperativeStickyAssignor`. Once the owners have revoked, a second round assigns the withheld ones.
"""

from __future__ import annotations

import numpy as np

from zkrebalancer.assignment.columns import NOBODY, Columns, Rows
from zkrebalancer.assignment.placement import to_threads
from zkrebalancer.assignment.sticky import sticky


def place_cooperative_sticky(columns: Columns) -> tuple[Rows, Rows]:
    """Place like sticky, but withhold partitions that have another owner now, even one that no longer subscribes.

    Returns the member and the consumer thread of each row.
    """
    target = sticky(columns)
    given = withheld(columns, target)
    return given, np.where(given >= 0, to_threads(columns, target), np.int32(NOBODY))


def withheld(columns: Columns, target: Rows) -> Rows:
    """Return the target without the rows that another member owns now, or claims in the owner's generation."""
    is_given = (columns.holder < 0) | (columns.holder == target)
    if columns.disputed is not None:
        is_given &= ~columns.disputed
    return np.where(is_given, target, np.int32(NOBODY))
