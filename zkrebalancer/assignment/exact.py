"""An optimal spread for owners whose topics partly overlap; for small groups.

An owner is a consumer of the group, or a thread of one consumer. `chains.py` decides how many partitions of each topic
an owner gets; this module decides which.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence

from zkrebalancer.assignment.chains import balanced_counts
from zkrebalancer.protocol.fields import TopicPartition


def spread_exactly(
    topics_of: Mapping[int, Sequence[str]],
    partitions: Mapping[str, Sequence[int]],
    claims: Mapping[int, Sequence[TopicPartition]],
) -> dict[int, list[TopicPartition]]:
    """Give every partition to one owner that reads its topic.

    `topics_of`: owner -> the topics that it reads, all of them keys of `partitions`; the order of owners breaks ties.
    `partitions`: topic -> sorted partitions; each topic has at least one reader.
    `claims`: owner -> partitions that it owns and may keep, those to keep first; no partition is claimed twice.

    The result has the smallest sum of squared sizes (so sizes differ by at most one wherever subscriptions allow it)
    and, among those, the most kept claims. Free partitions are dealt in a circle.
    """
    owners = list(topics_of)
    counts = balanced_counts(
        [topics_of[owner] for owner in owners],
        {topic: len(partitions[topic]) for topic in sorted(partitions)},
        [Counter(topic for topic, _ in claims.get(owner, ())) for owner in owners],
    )
    shares: dict[int, list[TopicPartition]] = {owner: [] for owner in owners}
    kept: set[TopicPartition] = set()
    for owner, count_of in zip(owners, counts, strict=True):
        for topic, partition in claims.get(owner, ()):
            if count_of[topic] > 0:
                count_of[topic] -= 1
                shares[owner].append((topic, partition))
                kept.add((topic, partition))
    for topic in partitions:
        circle = deque((owner, count_of[topic]) for owner, count_of in zip(owners, counts, strict=True))
        for partition in partitions[topic]:
            if (topic, partition) not in kept:
                while not circle[0][1]:
                    circle.popleft()
                owner, count = circle.popleft()
                shares[owner].append((topic, partition))
                circle.append((owner, count - 1))
    return shares
