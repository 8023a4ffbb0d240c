"""Which nodes for offsets exist in ZooKeeper, as far as a gateway remembers: of the groups used last. Pure."""

from __future__ import annotations

from collections import OrderedDict

from consumer_agent.membership.offset_books import OffsetBook

MAX_BOOKS = 10_000  # groups
MAX_REMEMBERED = 500_000  # nodes, of all groups together


class OffsetNodes:
    """A book for each group; books that were not used for long go first, and are made again when they are needed."""

    def __init__(self) -> None:
        """Start without books."""
        self._books: OrderedDict[str, OffsetBook] = OrderedDict()
        self._counted: dict[str, int] = {}  # group -> how much its book had when it was last counted
        self._total = 0

    def of(self, group: str) -> OffsetBook:
        """Return the group's book; call `keep_within_limits` when it was used."""
        book = self._books.pop(group, None) or OffsetBook(group)
        self._books[group] = book
        return book

    def forget(self, group: str) -> None:
        """Forget a group."""
        self._books.pop(group, None)
        self._total -= self._counted.pop(group, 0)

    def keep_within_limits(self, group: str) -> None:
        """Count what the group's book has now, and forget groups if all have too much."""
        book = self._books.get(group)
        if book is not None:
            size = len(book.nodes) + len(book.missing_topics)
            self._total += size - self._counted.get(group, 0)
            self._counted[group] = size
        while self._total > MAX_REMEMBERED or len(self._books) > MAX_BOOKS:
            self.forget(next(iter(self._books)))
