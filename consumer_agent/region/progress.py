"""What a region knows about its partitions in a sink: claims, next offsets, refusals. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from consumer_agent.region.sink import Advance, Claim
from zkrebalancer.protocol.fields import TopicPartition


@dataclass(frozen=True, slots=True)
class Extent:
    """The records of a partition in one batch: the first offset, the next one after the last, and the generation."""

    first: int
    after: int
    generation: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """A partition that this consumer has claimed, and the sink's next offset, as far as it is known."""

    generation: int
    next_offset: int


@dataclass(slots=True)
class Progress:
    """The partitions of one region in one sink."""

    claimed: dict[TopicPartition, Claimed] = field(default_factory=dict)
    refused: dict[TopicPartition, int] = field(default_factory=dict)  # partition -> generation that a younger one beat

    def unclaimed(self, generations: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Return the partitions that are neither claimed nor refused in these generations, sorted."""
        return sorted(
            partition
            for partition, generation in generations.items()
            if self.refused.get(partition) != generation
            and (partition not in self.claimed or self.claimed[partition].generation != generation)
        )

    def note_claims(
        self, claims: Iterable[Claim], answer: Mapping[TopicPartition, int], expected: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Note a sink's answer; return where partitions continue that are not at the `expected` offset."""
        elsewhere = {}
        for claim in claims:
            partition = claim.partition
            self.forget([partition])
            if partition not in answer:
                self.refused[partition] = claim.generation
                continue
            self.claimed[partition] = Claimed(claim.generation, answer[partition])
            if answer[partition] != expected.get(partition):
                elsewhere[partition] = answer[partition]
        return elsewhere

    def advances(self, batch: Mapping[TopicPartition, Extent]) -> dict[TopicPartition, Advance]:
        """Return what a transaction for a batch adds; partitions that are not claimed for it are left out."""
        advances = {}
        for partition, extent in batch.items():
            claimed = self.claimed.get(partition)
            if claimed is not None and claimed.generation == extent.generation:
                advances[partition] = Advance(claimed.next_offset, extent.after, claimed.generation)
        return advances

    def stored(self, advances: Mapping[TopicPartition, Advance]) -> None:
        """Note a transaction that is committed."""
        for partition, advance in advances.items():
            self.claimed[partition] = Claimed(advance.generation, advance.after)

    def refuse(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that a younger consumer has claimed these partitions."""
        for partition in partitions:
            claimed = self.claimed.pop(partition, None)
            if claimed is not None:
                self.refused[partition] = claimed.generation

    def positions(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the sink's next offset of each partition that is claimed."""
        return {tp: self.claimed[tp].next_offset for tp in partitions if tp in self.claimed}

    def keep(self, partitions: Collection[TopicPartition]) -> None:
        """Forget what is known of all other partitions."""
        self.forget((self.claimed.keys() | self.refused.keys()) - set(partitions))

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget what is known of partitions: they are claimed again before the next write."""
        for partition in partitions:
            self.claimed.pop(partition, None)
            self.refused.pop(partition, None)
