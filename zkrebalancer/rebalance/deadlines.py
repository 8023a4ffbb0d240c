"""When each of many machines has work next: asking for the first does not look at all of them."""

from __future__ import annotations

import heapq
from collections.abc import Collection

MAX_MOVED = 4  # entries of the heap for each machine, before it is made anew


class Deadlines:
    """The next deadline of each machine, by its place in the list of machines."""

    def __init__(self) -> None:
        """Start without deadlines."""
        self._known: dict[int, int] = {}  # place -> when
        self._heap: list[tuple[int, int]] = []  # when, place; an entry that differs from `_known` has been moved

    def clear(self) -> None:
        """Forget all deadlines."""
        self._known.clear()
        self._heap.clear()

    def set(self, place: int, at_us: int | None) -> None:
        """Note when a machine has work next; None: never."""
        if self._known.get(place) == at_us:
            return
        if at_us is None:
            del self._known[place]
        else:
            self._known[place] = at_us
            heapq.heappush(self._heap, (at_us, place))
            if len(self._heap) > MAX_MOVED * len(self._known):
                self._heap = [(known_us, other) for other, known_us in self._known.items()]
                heapq.heapify(self._heap)

    def first_us(self) -> int | None:
        """Return the first deadline."""
        heap = self._heap
        while heap and self._known.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now_us: int, but: Collection[int]) -> int | None:
        """Return the machine whose deadline has passed first, None if there is none; `but` these."""
        passed: list[tuple[int, int]] = []
        while (at_us := self.first_us()) is not None and at_us <= now_us and self._heap[0][1] in but:
            passed.append(heapq.heappop(self._heap))
        found = self._heap[0][1] if at_us is not None and at_us <= now_us else None
        for entry in passed:
            heapq.heappush(self._heap, entry)
        return found
