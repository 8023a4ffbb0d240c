"""The grid of a sweep: every group shape with every strategy. Each cell can be computed alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from zkrebalancer.assignment import STRATEGIES, strategy
from zkrebalancer.protocol.errors import ConfigurationError

MAX_CELLS = 20_000  # the driver holds the whole table
MAX_MEMBERS = 10_000
MAX_PARTITIONS = 100_000
MAX_SKEW = 3.0


@dataclass(frozen=True, slots=True)
class Cell:
    """One group: its shape, its strategy, and `repeat`, which selects the random draw."""

    members: int
    partitions: int
    skew: float
    churn: float
    strategy: str
    repeat: int


@dataclass(frozen=True, slots=True)
class Grid:
    """The values of each axis.

    `skew`: the rate of the partition of rank r falls as r^-skew; 0 makes all equal. `churn`: the share of members that
    joins or leaves in one change, at least one member.
    """

    members: tuple[int, ...] = (5, 20, 80)
    partitions: tuple[int, ...] = (100, 1_000)
    skew: tuple[float, ...] = (0.0, 0.6, 1.2)
    churn: tuple[float, ...] = (0.0, 0.1, 0.3)
    strategy: tuple[str, ...] = tuple(name for name in STRATEGIES if name != "cooperative_sticky")  # places as `sticky`

    def cells(self, repeats: int) -> list[Cell]:
        """Return every cell, `repeats` times with different random draws.

        Raises:
            ConfigurationError: there are more than MAX_CELLS.

        """
        axes = [getattr(self, field.name) for field in fields(self)]
        count = math.prod(map(len, axes)) * repeats
        if count > MAX_CELLS:
            raise ConfigurationError(f"--grid and --repeat make {count} cells; the maximum is {MAX_CELLS}")
        return [Cell(*values) for values in itertools.product(*axes, range(repeats))]


def read_grid(texts: Iterable[str]) -> Grid:
    """Return the default grid with its axes replaced by those given as `NAME=VALUE,VALUE,…`.

    Raises:
        ConfigurationError: names the axis and what is wrong with it.

    """
    axes: dict[str, tuple[object, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if name not in _READERS or not equals:
            raise ConfigurationError(f"--grid {text:.80}: NAME=VALUE,… is expected, NAME one of {', '.join(_READERS)}")
        try:
            read = [_READERS[name](value) for value in values.split(",")]
        except ValueError:
            raise ConfigurationError(f"--grid {name}: {_EXPECTED[name]} are expected, not {values:.80}") from None
        axes[name] = tuple(dict.fromkeys(read))
    return replace(Grid(), **axes)  # type: ignore[arg-type]  # each value was read by its own reader


def _whole(text: str, maximum: int) -> int:
    if not 1 <= int(text) <= maximum:
        raise ValueError
    return int(text)


def _share(text: str, maximum: float) -> float:
    if not 0 <= float(text) <= maximum:
        raise ValueError
    return float(text)


def _strategy(text: str) -> str:
    strategy(text)  # raises an error that lists the names
    return text


_READERS = {
    "members": lambda text: _whole(text, MAX_MEMBERS),
    "partitions": lambda text: _whole(text, MAX_PARTITIONS),
    "skew": lambda text: _share(text, MAX_SKEW),
    "churn": lambda text: _share(text, 1.0),
    "strategy": _strategy,
}
_EXPECTED = {
    "members": f"whole numbers from 1 to {MAX_MEMBERS}",
    "partitions": f"whole numbers from 1 to {MAX_PARTITIONS}",
    "skew": f"numbers from 0 to {MAX_SKEW:g}",
    "churn": "numbers from 0 to 1",
    "strategy": f"some of {', '.join(STRATEGIES)}",
}
