from __future__ import annotations

import json
from datetime import UTC, datetime

import msgpack
import pytest

from zkrebalancer.protocol import weights
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.weights import DAY, WEEK, Weights

RATES = {"t": [[float(hour) for hour in range(DAY)], [1.0] * DAY]}


def test_round_trip() -> None:
    assert weights.decode(weights.encode(Weights(DAY, RATES))) == Weights(DAY, RATES)


def test_a_slot_is_an_hour_of_the_day_or_of_the_week() -> None:
    for day in (8, 12, 14):  # a Monday, a Friday and a Sunday of January 2024
        time = datetime(2024, 1, day, 17, 59, 59, tzinfo=UTC)
        assert weights.slot_at(time.timestamp(), DAY) == 17
        assert weights.slot_at(time.timestamp(), WEEK) == (day - 8) * DAY + 17
    assert Weights(DAY, RATES).at(5 * 3_600) == {"t": [5.0, 1.0]}


def test_unknown_keys_are_ignored() -> None:
    assert weights.decode(b'{"version":1,"slot_count":1,"rates":{"t":[[2]]},"made_by":"x"}') == Weights(1, {"t": [[2]]})


def test_a_large_whole_number_can_be_passed_on_by_msgpack() -> None:
    """In `Weights.at`, return it as it is: from 2**64 on, it ends the process that reads loads."""
    known = weights.decode(b'{"version":1,"slot_count":1,"rates":{"t":[[1%b]]}}' % (b"0" * 300))
    assert msgpack.unpackb(msgpack.packb(known.at(0))) == {"t": [1e300]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version 2 is newer"),
        ({"slot_count": "24"}, "slot_count must be an integer"),
        ({"slot_count": 7}, "slot_count is 7, must be 1, 24 or 168"),
        ({"rates": None}, "rates must be an object"),
        ({"rates": {"no topic": []}}, "'no topic' is not a topic name"),
        ({"rates": {"t": {}}}, "t must be a list of partitions"),
        ({"rates": {"t": [[1.0], [1.0, 2.0]]}}, r"t\[1\] must be 1 non-negative numbers"),
        ({"rates": {"t": [[-1.0]]}}, r"t\[0\] must be 1 non-negative numbers"),
        ({"rates": {"t": [[True]]}}, r"t\[0\] must be 1 non-negative numbers"),
        ({"rates": {"t": [[float("nan")]]}}, r"t\[0\] must be 1 non-negative numbers"),
    ],
)
def test_an_error_names_the_faulty_key(change: dict[str, object], message: str) -> None:
    document = {"version": 1, "slot_count": 1, "rates": {"t": [[1.0]]}} | change
    with pytest.raises(NodeContentError, match=message):
        weights.decode(json.dumps(document).encode())
