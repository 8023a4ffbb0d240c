"""Every possible rebalance of a small group, up to symmetry. Pure.

A shape gives each partition's owner before (a member or none) and after. Of shapes that differ only in the members'
names or the partitions' numbers, one is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement, permutations, product
from typing import TypeAlias

Move: TypeAlias = tuple[int | None, int]  # owner before (None: no owner), owner after


@dataclass(frozen=True, slots=True)
class Shape:
    """A group of `members` (0, 1, …), and the move of each partition."""

    members: int
    moves: tuple[Move, ...]

    def __str__(self) -> str:
        """Return the moves as `partition: before>after`."""
        named = (f"{'-' if before is None else before}>{after}" for before, after in self.moves)
        return f"{self.members} members, {' '.join(named)}"


def shapes(max_members: int, max_partitions: int) -> Iterator[Shape]:
    """Yield every shape up to these numbers of members and partitions, small ones first."""
    for members, partitions in product(range(1, max_members + 1), range(1, max_partitions + 1)):
        kinds = list(product((None, *range(members)), range(members)))
        for moves in combinations_with_replacement(kinds, partitions):
            if _is_first(members, moves):
                yield Shape(members, moves)


def _is_first(members: int, moves: tuple[Move, ...]) -> bool:
    """Whether no renaming of members gives a smaller tuple of moves; partitions are already sorted."""
    own = sorted(map(_key, moves))
    for names in permutations(range(members)):
        renamed = sorted(_key((None if before is None else names[before], names[after])) for before, after in moves)
        if renamed < own:
            return False
    return True


def _key(move: Move) -> tuple[int, int]:
    return (-1 if move[0] is None else move[0], move[1])
