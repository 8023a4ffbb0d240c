"""The lag of a partition."""

from __future__ import annotations

import pytest

from zkrebalancer.operations.group_lag import PartitionLag


@pytest.mark.parametrize(
    ("known", "lag"),
    [
        (PartitionLag(10, None, 15), 5),
        (PartitionLag(10, 12, 15), 3),
        (PartitionLag(None, 12, 15), 3),
        (PartitionLag(20, None, 15), 0),
        (PartitionLag(None, None, 15), None),
        (PartitionLag(10, 10, None), None),
    ],
)
def test_lag_is_counted_from_the_higher_offset(known: PartitionLag, lag: int | None) -> None:
    assert known.lag == lag
