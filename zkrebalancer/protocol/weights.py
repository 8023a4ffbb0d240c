"""A group's weights in the node `/consumers/groups/<group>/weights`: the expected rate of each partition.

`{"version": 1, "slot_count": 24, "rates": {"orders": [[…24 numbers…], …]}}`: for each partition of a topic, in order,
the records per second in each time slot. 168 slots are the hours of the week, beginning on Monday; 24 are the hours of
the day; a single slot covers all time. Hours are UTC.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zkrebalancer.protocol import fields
from zkrebalancer.protocol.errors import NodeContentError

VERSION = 1
ALWAYS, DAY, WEEK = 1, 24, 168
SLOT_COUNTS = (ALWAYS, DAY, WEEK)
HOUR_S = 3_600
FIRST_HOUR = 3 * DAY  # the epoch began on a Thursday, three days into its week
_WHAT = "weights"

Rates = Mapping[str, Sequence[Sequence[float]]]  # topic -> partition -> slot


@dataclass(frozen=True, slots=True)
class Weights:
    """Expected records per second of each partition in each of `slot_count` slots."""

    slot_count: int
    rates: Rates

    def at(self, epoch_s: float) -> dict[str, list[float]]:
        """Return topic -> rate of each partition, in records per second, at a time in seconds since the epoch."""
        slot = slot_at(epoch_s, self.slot_count)
        return {topic: [float(each[slot]) for each in partitions] for topic, partitions in self.rates.items()}


def slot_at(epoch_s: float, slot_count: int) -> int:
    """Return the slot of a time in seconds since the epoch."""
    return (int(epoch_s) // HOUR_S + FIRST_HOUR) % slot_count


def encode(weights: Weights) -> bytes:
    """Encode weights; the caller checks that they fit into a node."""
    return fields.write_document({"version": VERSION, "slot_count": weights.slot_count, "rates": weights.rates})


def decode(content: bytes) -> Weights:
    """Decode weights; unknown keys are ignored.

    Raises:
        NodeContentError: the message names the key and the fault.

    """
    document = fields.read_document(_WHAT, content)
    fields.require_version(_WHAT, document, VERSION)
    slot_count = fields.integer(_WHAT, document, "slot_count")
    if slot_count not in SLOT_COUNTS:
        raise NodeContentError(f"{_WHAT}: slot_count is {slot_count}, must be 1, 24 or 168")
    rates = fields.mapping(_WHAT, document, "rates")
    for topic, partitions in rates.items():
        fields.topic_name(_WHAT, topic)
        if not isinstance(partitions, list):
            raise NodeContentError(f"{_WHAT}: {topic} must be a list of partitions, not {partitions!r:.80}")
        for number, of_slots in enumerate(partitions):
            if not (isinstance(of_slots, list) and len(of_slots) == slot_count and all(map(_is_rate, of_slots))):
                raise NodeContentError(
                    f"{_WHAT}: {topic}[{number}] must be {slot_count} non-negative numbers, not {of_slots!r:.80}"
                )
    return Weights(slot_count, rates)


def _is_rate(value: object) -> bool:
    return type(value) in {int, float} and 0 <= value <= sys.float_info.max  # type: ignore[operator]  # a number by now
