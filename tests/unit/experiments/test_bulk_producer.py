"""The ends of partitions that are filled in batches, as events."""

from __future__ import annotations

from zkrebalancer.experiments.bulk_producer import Ends
from zkrebalancer.experiments.producer import sent_at_us

A, B = ("t", 0), ("t", 1)


def test_growing_ends_become_ranges_with_the_time_of_their_first_record() -> None:
    ends = Ends([A, B])
    ends.sent(10, 100)
    ends.sent(10, 200)
    assert ends.acknowledged({A: 0, B: 0}) == []
    first = {"topic": "t", "partition": 0, "first_offset": 0, "last_offset": 11, "sent_us": 100}
    assert ends.acknowledged({A: 12, B: 0}) == [first]
    later = [
        {"topic": "t", "partition": 0, "first_offset": 12, "last_offset": 19, "sent_us": 200},
        {"topic": "t", "partition": 1, "first_offset": 0, "last_offset": 19, "sent_us": 100},
    ]
    assert ends.acknowledged({A: 20, B: 20}) == later
    ends.sent(5, 300)
    assert ends.acknowledged({A: 25, B: 20})[0]["sent_us"] == 300


def test_a_record_ends_with_its_time() -> None:
    assert sent_at_us(b" 1732150000000000".rjust(100, b"x")) == 1_732_150_000_000_000
