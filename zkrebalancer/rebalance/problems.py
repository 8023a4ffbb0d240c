"""Nodes of a group that cannot be read: a few lines for each place, because another program may have made thousands."""

from __future__ import annotations

from collections import Counter

MAX_SHOWN = 20  # of each place
MAX_PROBLEMS_LOGGED = 20  # at each reading


class Problems:
    """The first problems of each place (a folder of the group), and how many each place has."""

    def __init__(self) -> None:
        """Start without problems."""
        self.counts: Counter[str] = Counter()  # place -> number of problems
        self.shown: list[str] = []

    def add(self, place: str, text: str) -> None:
        """Count a problem, and keep its text if the place has few."""
        self.counts[place] += 1
        if self.counts[place] <= MAX_SHOWN:
            self.shown.append(text)

    def lines(self) -> list[str]:
        """Return the texts, and for each place the number of problems that are not shown."""
        more = {place: count - MAX_SHOWN for place, count in self.counts.items() if count > MAX_SHOWN}
        return [*self.shown, *(f"{place}: {count} more problems" for place, count in more.items())]

    def logged(self) -> list[str]:
        """Return the texts for a log, at most MAX_PROBLEMS_LOGGED, and how many more there are."""
        more = self.counts.total() - MAX_PROBLEMS_LOGGED
        return self.shown[:MAX_PROBLEMS_LOGGED] + ([f"{more} more nodes cannot be read"] if more > 0 else [])
