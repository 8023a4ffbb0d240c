"""The merge of a round's answers: complete when all are there and their union covers every held partition."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.region.documents import CHECKPOINT, UNKNOWN, Contribution, Merge, Round


class ContradictionError(RebalancerError):
    """Two members continue one partition at different offsets, so no checkpoint can be made of both."""


@dataclass(slots=True)
class Answers:
    """The answers to one round, in any order. A piece counts once; one of another round is void."""

    round: Round
    pieces: dict[str, dict[int, Contribution]] = field(default_factory=dict)

    def add(self, member: str, part: Contribution) -> bool:
        """Add one piece; return whether it is new."""
        known = self.pieces.setdefault(member, {})
        if part.round != self.round.id or part.piece in known:
            return False
        known[part.piece] = part
        return True

    def has_all_of(self, member: str) -> bool:
        """Whether every piece that a member has announced is here."""
        known = self.pieces.get(member, {})
        return bool(known) and known.keys() >= set(range(max(part.pieces for part in known.values())))

    @property
    def missing(self) -> list[str]:
        """The members that have not answered yet, sorted."""
        return sorted(name for name in self.round.members if not self.has_all_of(name))

    def uncovered(self, holdings: Mapping[str, Iterable[TopicPartition]]) -> list[TopicPartition]:
        """Return the held partitions for which their holders have not answered, sorted; `holdings`: by consumer."""
        answered = defaultdict[str | None, set[TopicPartition]](set)
        for known in self.pieces.values():
            for part in known.values():
                answered[part.consumer].update(part.offsets)
        return sorted(tp for consumer, held in holdings.items() for tp in set(held) - answered[consumer])

    def union(self) -> dict[TopicPartition, int]:
        """Return where each partition continues, UNKNOWN if it has no position yet.

        Raises:
            ContradictionError: two members contradict each other. In a checkpoint, two unmodified clients that name one
            partition do, at whatever offset: both may have processed the same records, as Kafka tells one of them late.

        """
        found: dict[TopicPartition, tuple[int, str, bool]] = {}
        for member, known in sorted(self.pieces.items()):
            for _piece, part in sorted(known.items()):
                is_alone = part.consumer is None and self.round.kind == CHECKPOINT
                for partition, offset in part.offsets.items():
                    before, other, was_alone = found.setdefault(partition, (offset, member, is_alone))
                    if member != other and (before != offset or (is_alone and was_alone)):
                        topic, number = partition
                        text = f"{topic}/{number} continues at {before} for {other}, and at {offset} for {member}"
                        raise ContradictionError(text)
        return {partition: offset for partition, (offset, _member, _is_alone) in found.items()}

    def incarnations(self) -> dict[str, str]:
        """Return the incarnation of each topic, as far as a member knows it."""
        parts = [part for _name, known in sorted(self.pieces.items()) for part in known.values()]
        return {topic: mark for part in parts for topic, mark in part.incarnations.items() if mark}


def merged(
    answers: Answers, before: Merge | None, unheld: Mapping[TopicPartition, int], marks: Mapping[str, str]
) -> Merge:
    """Return the checkpoint of a round.

    `before`: the last complete one, whose copies are still those of members that are away. `unheld`: where partitions
    continue that no member holds, `marks`: topic -> its incarnation, of those. Raises ContradictionError.
    """
    known = before or Merge(answers.round.id)
    offsets = {**unheld, **answers.union()}
    offsets = {tp: known.offsets.get(tp, UNKNOWN) if at == UNKNOWN else at for tp, at in offsets.items()}
    return Merge(
        answers.round.id,
        {tp: at for tp, at in offsets.items() if at != UNKNOWN},
        {**known.incarnations, **marks, **answers.incarnations()},
        {**known.states, **dict.fromkeys(answers.round.members, answers.round.id)},
    )
