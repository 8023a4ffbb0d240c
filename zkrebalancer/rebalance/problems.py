"""Nodes of a group that cannot be read: a few lines for each place, because another program may have made thousands."""

from __future__ import annotations

from collections import Counter

from zkrebalancer.protocol.calls import Refusal

MAX_SHOWN = 20  # of each place
MAX_PROBLEMS_LOGGED = 20  # at each reading

OF_ONE = ("ids", "owners", "channel", "evicted")  # below these, every node belongs to one consumer
DISPENSABLE = ("offsets", "incarnations", "static", "given")  # below these, to one topic, static member or consumer
OF_ONE_FOR_LEADERS = (*OF_ONE, *DISPENSABLE)
PLACE = 4  # the position in a path of the name below the group's node
ANY_REFUSAL = frozenset(Refusal)
ONLY_MISSING = frozenset({Refusal.NO_NODE})


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


def expected_refusals(path: str, *, of_tool: bool = False) -> frozenset[Refusal]:
    """Return the refusals of a read that the reader handles: only NO_NODE for a node that the whole group depends on.

    A leader does without a list of marks, static members or given partitions: its possible contents stand still.
    A tool that may not read the records of given partitions trusts members' claims; it guesses nothing else.
    """
    names = path.split("/")
    place = names[PLACE] if len(names) > PLACE else ""
    if of_tool:
        is_handled = place == "given" or (len(names) > PLACE + 1 and place in OF_ONE)
    else:
        is_handled = place in (OF_ONE_FOR_LEADERS if len(names) > PLACE + 1 else DISPENSABLE)
    return ANY_REFUSAL if is_handled else ONLY_MISSING
