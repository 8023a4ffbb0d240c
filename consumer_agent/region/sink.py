"""The interface of sinks: rows, next offsets and the fence of each partition, in one transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from zkrebalancer.protocol.cluster_nodes import is_same_topic, merged_names
from zkrebalancer.protocol.fields import TopicPartition

IDLE_LIMIT_MS = 60_000  # of a transaction in which nothing is sent, if the database can end it


@dataclass(frozen=True, slots=True)
class Claim:
    """A consumer's claim to write the results of a partition."""

    partition: TopicPartition
    generation: int  # of the partition's start: the fence
    identity: str  # names of the topic's incarnation, as `cluster_nodes.is_same_topic` compares them; "": unknown
    life: int  # how often an operator has set the group's offsets; only grows
    offset: int  # where the group begins if the sink has no progress of this topic and life


class Advance(NamedTuple):
    """What one transaction adds to a partition's progress."""

    before: int  # the next offset in the sink, as claimed or as left by the last transaction
    after: int
    generation: int


@dataclass(frozen=True, slots=True)
class Row:
    """What a sink stores of a group's partition."""

    identity: str
    life: int
    generation: int
    next_offset: int


def settled(claim: Claim, row: Row | None) -> Row | None:
    """Return the row to store for a claim, given the stored one; None: a younger consumer has claimed the partition.

    The rule of `Sink.claim`, for every kind of sink. Pure.
    """
    if row is None:
        return Row(claim.identity, claim.life, claim.generation, claim.offset)
    if row.generation > claim.generation:
        return None
    is_same = not row.identity or not claim.identity or is_same_topic(row.identity, claim.identity)
    if not is_same or claim.life > row.life:
        return Row(claim.identity or row.identity, max(claim.life, row.life), claim.generation, claim.offset)
    return Row(merged_names(claim.identity, row.identity), row.life, claim.generation, row.next_offset)


@runtime_checkable
class Sink(Protocol):
    """Where results are stored. One thread uses it; at most one transaction is open.

    For each group and partition a sink keeps the topic's identity, the life, the generation, and the next offset.
    """

    @property
    def connection(self) -> Any:  # noqa: ANN401  # each database has its own type
        """What the application writes rows with, between `begin` and `commit` or `rollback`."""

    def claim(self, group: str, claims: Sequence[Claim], /) -> dict[TopicPartition, int]:
        """Store the generations in one transaction, and return where each partition continues.

        A partition that has a higher generation is left out. If its identity or life is another one (a higher life),
        or nothing is stored, the offset of the claim is stored and returned. An empty identity equals every other.
        """

    def begin(self, group: str, advances: Mapping[TopicPartition, Advance], /) -> set[TopicPartition]:
        """Begin a transaction that advances these partitions; return those that are refused.

        A partition is refused unless its generation and its next offset are as given. It stays locked until the end.
        """

    def commit(self) -> None:
        """Commit the transaction."""

    def rollback(self) -> None:
        """Roll the transaction back; nothing if none is open. After an interrupt it may be called again."""


@runtime_checkable
class Keeping(Protocol):
    """A sink with something open for each partition."""

    def keep(self, partitions: Collection[TopicPartition], /) -> None:
        """Close it for all others: they moved away. Called before claims."""
