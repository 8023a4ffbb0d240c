"""The heart of sticky: partitions spread over owners as evenly as their topics allow, moving as few as possible.

An owner is a consumer of the group, or a thread of one consumer: sticky spreads twice, first over members, then each
member's share over its threads. Owners that read the same topics, which nobody else reads, have a closed form that
takes one pass; owners whose topics overlap in part are balanced by chains of moves (`chains.py`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from zkrebalancer.assignment.chains import balanced_counts
from zkrebalancer.protocol.fields import TopicPartition

Owner = TypeVar("Owner", str, int)


def spread(
    topics_of: Mapping[Owner, Iterable[str]],
    partitions: Mapping[str, Sequence[int]],
    claims: Mapping[Owner, Sequence[TopicPartition]],
) -> dict[Owner, list[TopicPartition]]:
    """Give every partition to one owner that reads its topic.

    `topics_of`: owner -> the topics that it reads, all of them keys of `partitions`; the order of owners settles ties.
    `partitions`: topic -> sorted partitions; each topic has at least one reader.
    `claims`: owner -> what it holds and may keep, the dearest first; no partition is claimed twice.

    The sum of the squared sizes is the smallest possible (so sizes differ by at most one wherever the subscriptions
    allow it); among all such results, as many claims as possible are kept.
    """
    alike: dict[frozenset[str], list[Owner]] = {}
    for owner, topics in topics_of.items():
        alike.setdefault(frozenset(topics), []).append(owner)
    kinds_of_reader = Counter(topic for topics in alike for topic in topics)

    shares: dict[Owner, list[TopicPartition]] = {}
    overlapping: dict[Owner, list[str]] = {}
    overlapping_topics: set[str] = set()
    for topics, owners in alike.items():
        if all(kinds_of_reader[topic] == 1 for topic in topics):
            shares |= _spread_alike(owners, {topic: partitions[topic] for topic in topics}, claims)
        else:
            overlapping |= dict.fromkeys(owners, sorted(topics))
            overlapping_topics |= topics
    if overlapping:
        in_order = {owner: overlapping[owner] for owner in topics_of if owner in overlapping}
        shares |= _spread_overlapping(in_order, {topic: partitions[topic] for topic in overlapping_topics}, claims)
    return shares


def _spread_alike(
    owners: Sequence[Owner], partitions: Mapping[str, Sequence[int]], claims: Mapping[Owner, Sequence[TopicPartition]]
) -> dict[Owner, list[TopicPartition]]:
    """All owners read all topics: each gets the same number, and the first ones in need of it one more.

    An owner that claims more than its share has to give up some whatever the others do, so the larger shares go to
    such owners first; this keeps the most claims possible.
    """
    size, larger_count = divmod(sum(map(len, partitions.values())), len(owners))
    shares: dict[Owner, list[TopicPartition]] = {}
    for owner in owners:
        claimed = claims.get(owner, ())
        is_larger = larger_count > 0 and len(claimed) > size
        larger_count -= is_larger
        shares[owner] = list(claimed[: size + is_larger])

    kept = {topic_partition for share in shares.values() for topic_partition in share}
    room: dict[Owner, int] = {}
    for owner in owners:
        is_larger = larger_count > 0 and len(shares[owner]) <= size
        larger_count -= is_larger
        room[owner] = max(size + is_larger - len(shares[owner]), 0)

    circle = deque(owner for owner in owners if room[owner])
    for topic in sorted(partitions):
        for partition in partitions[topic]:
            if (topic, partition) not in kept:
                owner = circle.popleft()
                shares[owner].append((topic, partition))
                room[owner] -= 1
                if room[owner]:
                    circle.append(owner)
    return shares


def _spread_overlapping(
    topics_of: Mapping[Owner, Sequence[str]],
    partitions: Mapping[str, Sequence[int]],
    claims: Mapping[Owner, Sequence[TopicPartition]],
) -> dict[Owner, list[TopicPartition]]:
    """Decide how many of each topic each owner gets, then which: those of a topic differ only in who claims them."""
    owners = list(topics_of)
    counts = balanced_counts(
        [topics_of[owner] for owner in owners],
        {topic: len(partitions[topic]) for topic in sorted(partitions)},
        [Counter(topic for topic, _ in claims.get(owner, ())) for owner in owners],
    )
    shares: dict[Owner, list[TopicPartition]] = {owner: [] for owner in owners}
    kept: set[TopicPartition] = set()
    for owner, count_of in zip(owners, counts, strict=True):
        for topic, partition in claims.get(owner, ()):
            if count_of[topic] > 0:
                count_of[topic] -= 1
                shares[owner].append((topic, partition))
                kept.add((topic, partition))
    free = {
        topic: deque(partition for partition in partitions[topic] if (topic, partition) not in kept)
        for topic in partitions
    }
    for owner, count_of in zip(owners, counts, strict=True):
        for topic, count in count_of.items():
            shares[owner].extend((topic, free[topic].popleft()) for _ in range(count))
    return shares
