"""Balance for owners whose topics partly overlap: moves partitions along chains until no chain lowers the cost.

A chain moves one partition of a topic from owner a to b, then one (perhaps of another topic) from b to c, and so on:
only the first owner shrinks, only the last one grows. This is a minimum-cost flow from topics to owners, with the cost

    the sum of squared sizes   first,
    then the number of claims that are not kept.

Both terms are convex, so a state that no single chain improves is a global optimum, provided that each applied chain is
a cheapest one (successive shortest paths: Ahuja, Magnanti, Orlin, "Network Flows", chapter 9; optimal semi-matchings:
Harvey, Ladner, Lovasz, Tamir, "Semi-matchings for bipartite graphs and load balancing"). The start keeps every claim,
which is the cheapest state with these sizes; applying a cheapest chain preserves that property.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


def balanced_counts(
    topics_of: Sequence[Sequence[str]], partition_counts: Mapping[str, int], claimed: Sequence[Mapping[str, int]]
) -> list[Counter[str]]:
    """Return for each owner the number of partitions of each topic.

    `topics_of`: for each owner, the topics that it reads. `partition_counts`: topic -> number of partitions; each topic
    has a reader. `claimed`: for each owner, topic -> number of partitions that it owns now and may keep.
    """
    readers: dict[str, list[int]] = {topic: [] for topic in partition_counts}
    for owner, topics in enumerate(topics_of):
        for topic in topics:
            readers[topic].append(owner)
    state = _State(readers, claimed, [Counter(claims) for claims in claimed], sum(partition_counts.values()) + 1)
    state.place_free(partition_counts)
    while state.improve():
        pass
    return state.held


@dataclass(slots=True)
class _State:
    """The number of partitions of each topic and owner, and the search for chains that improve it."""

    readers: Mapping[str, Sequence[int]]  # topic -> owners that read it
    claimed: Sequence[Mapping[str, int]]  # owner -> topic -> claims
    held: list[Counter[str]]  # owner -> topic -> partitions
    size_weight: int  # cost of one unit of squared size, in lost claims; above the number of claims
    sizes: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.sizes = [count_of.total() for count_of in self.held]

    def place_free(self, partition_counts: Mapping[str, int]) -> None:
        """Give unclaimed partitions to the smallest reader; topics with few readers first, which saves chains later."""
        free = Counter(partition_counts)
        for count_of in self.held:
            free.subtract(count_of)
        for topic in sorted(free, key=lambda name: (len(self.readers[name]), name)):
            smallest = [(self.sizes[owner], owner) for owner in self.readers[topic]]
            heapq.heapify(smallest)
            for _ in range(free[topic]):
                size, owner = smallest[0]
                heapq.heapreplace(smallest, (size + 1, owner))
                self.held[owner][topic] += 1
                self.sizes[owner] += 1

    def improve(self) -> bool:
        """Apply cheapest chains, at most one per topic; return False if no chain lowers the cost.

        Chains without a common topic do not affect each other's cost, so one search serves them all. Only the sizes at
        their ends must be checked again, because another chain may begin or end there.
        """
        before = self._shrinking_costs()
        cost, came_from, given_by = self._cheapest_chains(before)
        total = [cost[owner] + self.size_weight * (2 * size + 1) for owner, size in enumerate(self.sizes)]
        used_topics: set[str] = set()
        for last in sorted(range(len(total)), key=total.__getitem__):
            if total[last] >= 0:
                break
            chain: list[tuple[int, str, int]] = []  # (giver, topic, taker), the last hop first
            first = last
            while first in came_from:
                chain.append((given_by[came_from[first]], came_from[first], first))
                first = given_by[came_from[first]]
            lost_claims = cost[last] - before[first]
            growth = 2 * (self.sizes[last] - self.sizes[first] + 1)  # of the sum of squared sizes
            topics = {topic for _, topic, _ in chain}
            if lost_claims + self.size_weight * growth < 0 and used_topics.isdisjoint(topics):
                used_topics |= topics
                self._apply(chain)
        return bool(used_topics)

    def _shrinking_costs(self) -> list[int]:
        """Return the (negative) cost of shrinking each owner by one."""
        return [self.size_weight * (1 - 2 * size) for size in self.sizes]

    def _cheapest_chains(self, before: Sequence[int]) -> tuple[list[int], dict[int, str], dict[str, int]]:
        """Find the cheapest chain to each owner; its cost excludes the growth of the last owner.

        Returns (cost by owner, owner -> topic of the last hop, topic -> giver). Bellman-Ford from all owners at once,
        over the edges giver -> topic (1 if a claim is lost) and topic -> taker (-1 if the taker regains a claim).
        """
        cost = list(before)
        topic_cost: dict[str, int] = {}
        came_from: dict[int, str] = {}
        given_by: dict[str, int] = {}
        queue = deque(sorted(range(len(cost)), key=cost.__getitem__))
        is_queued = [True] * len(cost)
        while queue:
            giver = queue.popleft()
            is_queued[giver] = False
            for topic, count in self.held[giver].items():
                given_cost = cost[giver] + (count <= self.claimed[giver].get(topic, 0))
                if count == 0 or (topic in topic_cost and topic_cost[topic] <= given_cost):
                    continue
                topic_cost[topic], given_by[topic] = given_cost, giver
                for taker in self.readers[topic]:
                    taken_cost = given_cost - (self.held[taker][topic] < self.claimed[taker].get(topic, 0))
                    if taken_cost < cost[taker]:
                        cost[taker], came_from[taker] = taken_cost, topic
                        if not is_queued[taker]:
                            is_queued[taker] = True
                            queue.append(taker)
        return cost, came_from, given_by

    def _apply(self, chain: Sequence[tuple[int, str, int]]) -> None:
        for giver, topic, taker in chain:
            self.held[giver][topic] -= 1
            self.held[taker][topic] += 1
            self.sizes[giver] -= 1
            self.sizes[taker] += 1
