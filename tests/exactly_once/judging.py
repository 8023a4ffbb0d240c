"""Compares a sink with the input. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Log = Mapping[int, "array[int]"]  # partition -> the number in each record, by offset


@dataclass(slots=True)
class Judgement:
    """What a sink has, and its differences from the input; all zero but the first two: exactly once, in order."""

    expected: int = 0
    stored: int = 0
    lost: int = 0
    doubled: int = 0
    out_of_order: int = 0
    wrong: int = 0  # results of no record, or of another one

    @property
    def is_exact(self) -> bool:
        """Whether the sink equals the input."""
        return not (self.lost or self.doubled or self.out_of_order or self.wrong)


def judge(log: Log, rows: Iterable[tuple[int, int, int]]) -> Judgement:
    """Compare results with the log of a topic.

    `rows`: partition, offset and number of each, those of a partition in the order in which they were stored.
    """
    found = Judgement(expected=sum(map(len, log.values())))
    seen = {partition: bytearray(len(numbers)) for partition, numbers in log.items()}
    last: dict[int, int] = {}
    for partition, offset, number in rows:
        found.stored += 1
        numbers = log.get(partition)
        if numbers is None or not 0 <= offset < len(numbers) or numbers[offset] != number:
            found.wrong += 1
            continue
        if seen[partition][offset]:
            found.doubled += 1
        elif offset < last.get(partition, -1):
            found.out_of_order += 1
        seen[partition][offset] = 1
        last[partition] = offset
    found.lost = sum(flags.count(0) for flags in seen.values())
    return found
