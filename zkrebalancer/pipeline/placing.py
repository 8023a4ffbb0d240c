"""`Alignment.place`, for many times at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt

from zkrebalancer.observe.clocks import MAX_DRIFT, Alignment, Envelope, Relation
from zkrebalancer.pipeline.schema import FOREVER_US

Integers = npt.NDArray[np.int64]
Path = Callable[[Relation], Envelope]  # which bound of a relation
WAYS: tuple[Path, Path] = (lambda relation: relation.upper, lambda relation: relation.lower)
K = TypeVar("K")


def placed_by(clocks: Sequence[K], times: Integers, of: Callable[[K], tuple[Alignment, str]]) -> Integers:
    """Return in three rows what `placed` does, for moments of several clocks; `of` is asked once for each clock."""
    numbers = {clock: number for number, clock in enumerate(dict.fromkeys(clocks))}
    codes = np.fromiter((numbers[clock] for clock in clocks), np.int64, len(clocks))
    found = np.zeros((3, len(clocks)), np.int64)
    for clock, number in numbers.items():
        chosen = codes == number
        found[:, chosen] = placed(*of(clock), times[chosen])
    return found


def placed(alignment: Alignment, clock: str, times: Integers) -> tuple[Integers, Integers, Integers]:
    """Return where moments of a clock are, and by how much they may have been earlier, and later."""
    earliest, latest = (_by(alignment, clock, times, way) for way in WAYS)
    if earliest is not None and latest is not None:
        at_us = (earliest + latest) // 2
    else:
        relation = alignment.relations[clock]
        at_us = placed(alignment, relation.parent, _guessed(relation, times))[0]
    forever = np.full(len(times), FOREVER_US)
    return at_us, forever if earliest is None else at_us - earliest, forever if latest is None else latest - at_us


def _by(alignment: Alignment, clock: str, times: Integers, way: Path) -> Integers | None:
    while clock != alignment.reference:
        relation = alignment.relations[clock]
        offsets = _bounds_at(way(relation), times)
        if offsets is None:
            return None
        clock, times = relation.parent, times - offsets
    return times


def _guessed(relation: Relation, times: Integers) -> Integers:
    upper, lower = _bounds_at(relation.upper, times), _bounds_at(relation.lower, times)
    if upper is not None and lower is not None:
        return times - (upper + lower) // 2
    offsets = np.full(len(times), relation.guess_us)
    offsets = offsets if upper is None else np.minimum(offsets, upper)
    offsets = offsets if lower is None else np.maximum(offsets, lower)
    return cast("Integers", times - offsets)


def _bounds_at(envelope: Envelope, times: Integers) -> Integers | None:
    if not envelope.times:
        return None
    known, values = np.array(envelope.times, np.int64), np.array(envelope.values, np.int64)
    after = np.searchsorted(known, times, side="right")
    beside = (np.maximum(after - 1, 0), np.minimum(after, len(known) - 1))
    one, other = (values[index] - -np.abs(times - known[index]) // MAX_DRIFT for index in beside)
    return cast("Integers", envelope.sign * np.minimum(one, other))
