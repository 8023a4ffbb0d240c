"""Who owned a partition when: the lanes of the picture of owners over time. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.rebalance.turnover import OwnerChange

MAX_SPANS = 4_000  # in one picture; older ones are dropped


@dataclass(frozen=True, slots=True)
class Span:
    """A time in which a member owned a partition. `to_ms`: None if it still does. Times since the epoch."""

    from_ms: int
    to_ms: int | None
    member: str


def spans(
    since_ms: int, changes: Iterable[OwnerChange], owners: Mapping[TopicPartition, str | None]
) -> dict[TopicPartition, list[Span]]:
    """Return the spans of these partitions, oldest first.

    `changes`: all since `since_ms`, oldest first. `owners`: the present owners, which count where changes are missing.
    """
    lanes = {partition: _Lane(since_ms) for partition in owners}
    for change in changes:
        for partition in owners.keys() & change.lost:
            lanes[partition].lost(change)
        for partition in owners.keys() & change.gained:
            lanes[partition].gained(change)
    return {partition: lanes[partition].until_now(owner) for partition, owner in owners.items()}


class _Lane:
    """One partition while changes are replayed."""

    def __init__(self, since_ms: int) -> None:
        self._since_ms = since_ms
        self._spans: list[Span] = []
        self._owner: tuple[int, str] | None = None  # since when, and which member

    def gained(self, change: OwnerChange) -> None:
        if self._owner is not None and self._owner[1] == change.member:
            return
        self._end(change.at_ms)
        self._owner = change.at_ms, change.member

    def lost(self, change: OwnerChange) -> None:
        if self._owner is not None and self._owner[1] != change.member:
            return  # another member has it already
        if self._owner is None and not self._spans:
            self._owner = self._since_ms, change.member  # since before the first change
        self._end(change.at_ms)

    def until_now(self, owner: str | None) -> list[Span]:
        if owner is None:
            return self._spans
        if self._owner is not None and self._owner[1] == owner:
            since_ms = self._owner[0]
        else:
            last_ms = self._spans[-1].to_ms if self._spans else None
            since_ms = self._since_ms if last_ms is None else last_ms
        return [*self._spans, Span(since_ms, None, owner)]

    def _end(self, at_ms: int) -> None:
        if self._owner is not None:
            self._spans.append(Span(self._owner[0], at_ms, self._owner[1]))
            self._owner = None


def newest(found: Mapping[TopicPartition, list[Span]], limit: int = MAX_SPANS) -> dict[TopicPartition, list[Span]]:
    """Return the newest spans of all partitions: those after the begin of the `limit`-th newest, which cuts others."""
    if sum(map(len, found.values())) <= limit:
        return dict(found)
    starts = sorted((span.from_ms for of in found.values() for span in of), reverse=True)
    first_ms = starts[limit - 1]
    return {partition: [*_after(first_ms, of)] for partition, of in found.items()}


def _after(first_ms: int, of: Iterable[Span]) -> Iterator[Span]:
    for span in of:
        if span.to_ms is None or span.to_ms > first_ms:
            yield replace(span, from_ms=max(span.from_ms, first_ms))
