"""Cooperative sticky, first round: the sticky target, without what somebody else still has to let go.

Source: Kafka's `CooperativeStickyAssignor`. Once the owners have revoked, a second round assigns what was withheld.
"""

from __future__ import annotations

import numpy as np

from zkrebalancer.assignment.columns import NOBODY, Columns, Rows
from zkrebalancer.assignment.placement import to_threads
from zkrebalancer.assignment.sticky import sticky


def place_cooperative_sticky(columns: Columns) -> tuple[Rows, Rows]:
    """Place as sticky does, but nobody a partition that has another owner now, even one that no longer subscribes.

    Returns the member and the consumer thread that get each row.
    """
    target = sticky(columns)
    given = withheld(columns, target)
    return given, np.where(given >= 0, to_threads(columns, target), np.int32(NOBODY))


def withheld(columns: Columns, target: Rows) -> Rows:
    """Return the target without the rows that another member holds now, or claims in the same generation."""
    is_given = (columns.holder < 0) | (columns.holder == target)
    if columns.disputed is not None:
        is_given &= ~columns.disputed
    return np.where(is_given, target, np.int32(NOBODY))
