"""The options of `balanced`: the cost of each term of its objective, and limits."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.fields import MAX_PARTITION

MAX_COUNT = 2**31 - 1
MIN_SECONDS = 0.001


class OptionError(RebalancerError, ValueError):
    """An option does not exist or has a wrong value; the message names its key."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class BalancedOptions:
    """Costs and limits of one group. Costs are in units of utilisation; see `objective.py` for the terms."""

    peak_cost: float = 10.0
    """Cost of the highest utilisation (load / capacity) of a member; the mean utilisation is 1."""
    uneven_cost: float = 1.0
    """Cost of the squared differences from the mean utilisation."""
    rack_cost: float = 0.5
    """Cost of reading across racks, in proportion to the load."""
    move_cost: float = 0.1
    """Cost of moving a partition, in proportion to its load."""
    min_gain: float = 0.05
    """Cost of moving any partition, in units of the average load."""
    spread_cost: float = 0.01
    """Cost of each partition above its topic's even share, in units of the average load."""
    catch_up_s: float = 60.0
    """Lag counts as the rate that would consume it in this many seconds."""
    load_floor: float = 0.1
    """Smallest load of a partition, relative to the mean."""
    max_moves_per_rebalance: int | None = None
    """Most partitions that may leave their owner in one rebalance."""
    max_partitions_per_member: int | None = None
    """Most partitions of one member; further ones stay unassigned."""
    max_search_steps: int = 200
    """Most steps of the local search from each start; 0 keeps the greedy start."""
    pinned: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Topic -> partitions that stay with their owner while it is alive and subscribed."""


def read_options(entries: Mapping[str, object]) -> BalancedOptions:
    """Decode and validate options from JSON values.

    Raises:
        OptionError: one line with the key: `options.move_cost: must be a number from 0 to 2147483647, not "high"`.

    """
    for key in entries:
        if key not in _READERS:
            raise OptionError(f"options.{_printable(key)}: is unknown; known are {', '.join(_READERS)}")
    values: dict[str, Any] = {key: _READERS[key](f"options.{key}", value) for key, value in entries.items()}
    return BalancedOptions(**values)


def _error(path: str, expected: str, value: object) -> OptionError:
    shown = "an object" if isinstance(value, Mapping) else "a list" if isinstance(value, list) else json.dumps(value)
    return OptionError(f"{path}: must be {expected}, not {shown:.60}")


def _printable(key: str) -> str:
    return f"{key:.60}" if key.isprintable() else f"{json.dumps(key):.60}"


def _cost(path: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_COUNT:
        raise _error(path, f"a number from 0 to {MAX_COUNT}", value)
    return float(value)


def _seconds(path: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not MIN_SECONDS <= value <= MAX_COUNT:
        raise _error(path, f"a number from {MIN_SECONDS} to {MAX_COUNT}", value)
    return float(value)


def _count(path: str, value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_COUNT:
        raise _error(path, f"an integer from 0 to {MAX_COUNT}", value)
    return value


def _limit(path: str, value: object) -> int | None:
    return None if value is None else _count(path, value)


def _partitions_of_topics(path: str, value: object) -> dict[str, frozenset[int]]:
    if not isinstance(value, Mapping):
        raise _error(path, "an object", value)
    pinned: dict[str, frozenset[int]] = {}
    for topic, partitions in value.items():
        where = f"{path}.{_printable(topic)}"
        if not isinstance(partitions, list | tuple):
            raise _error(where, "a list", partitions)
        for index, partition in enumerate(partitions):
            if type(partition) is not int or not 0 <= partition <= MAX_PARTITION:
                raise _error(f"{where}[{index}]", f"an integer from 0 to {MAX_PARTITION}", partition)
        pinned[topic] = frozenset(partitions)
    return pinned


_Reader: TypeAlias = Callable[[str, object], object]
_READERS: Mapping[str, _Reader] = {
    "peak_cost": _cost,
    "uneven_cost": _cost,
    "rack_cost": _cost,
    "move_cost": _cost,
    "min_gain": _cost,
    "spread_cost": _cost,
    "catch_up_s": _seconds,
    "load_floor": _cost,
    "max_moves_per_rebalance": _limit,
    "max_partitions_per_member": _limit,
    "max_search_steps": _count,
    "pinned": _partitions_of_topics,
}
