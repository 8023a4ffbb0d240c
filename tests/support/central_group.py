"""A short model of the coordinator for a central group: it assigns partitions to members, which report what they own.

It follows the coordinator's rules: a partition is started when it has no owner, and a stop is acknowledged when the
group has stored that its client gave the partitions up. `owners` survives a crash, as it does in ZooKeeper.
"""

from __future__ import annotations

import random

from tests.support.group_coordinator import GROUP, Coordinator
from zkrebalancer.group_protocol.effects import Targeted

Named = tuple[str, int]


class Outside:
    """Owners and pending stops; `advance` handles the members' reports."""

    def __init__(self, coordinator: Coordinator, topic: str = "t") -> None:
        self.coordinator = coordinator
        self.topic = topic
        self.owners: dict[str, set[Named]] = {}
        self.stopping: dict[str, set[Named]] = {}
        self.commands = 0
        self.numbers: dict[str, int] = {}  # of the last target of each member

    def advance(self) -> None:
        """Acknowledge completed stops, forget members that are gone, and admit new ones."""
        standings = self.coordinator.standings
        for member_id in [*self.owners]:
            if member_id not in standings:
                del self.owners[member_id]
                self.stopping.pop(member_id, None)
        for member_id, standing in standings.items():
            self.owners.setdefault(member_id, set())
            stopping = self.stopping.get(member_id, set())
            is_heard = standing.number >= self.numbers.get(member_id, 0)
            if stopping and is_heard and stopping.isdisjoint(standing.held):
                self.owners[member_id] -= stopping
                del self.stopping[member_id]

    def target(self, member_id: str) -> None:
        wanted = frozenset(self.owners[member_id] - self.stopping.get(member_id, set()))
        number = self.numbers[member_id] = self.numbers.get(member_id, 0) + 1
        self.coordinator.step(Targeted(GROUP, member_id, number, wanted))

    def adopt(self) -> None:
        """Send all targets again, as a successor does."""
        self.advance()
        for member_id in self.owners:
            self.target(member_id)

    def start(self, member_id: str, *numbers: int) -> None:
        partitions = {(self.topic, number) for number in numbers}
        assert all(partitions.isdisjoint(owned) for owned in self.owners.values()), "a start of an owned partition"
        self.owners[member_id] |= partitions
        self.commands += 1
        self.target(member_id)

    def stop(self, member_id: str, *numbers: int) -> None:
        partitions = {(self.topic, number) for number in numbers}
        assert partitions <= self.owners[member_id]
        self.stopping.setdefault(member_id, set()).update(partitions)
        self.commands += 1
        self.target(member_id)

    def share(self, count: int) -> None:
        """Send the next commands on the way to equal shares."""
        self.advance()
        names = sorted(self.owners)
        starts: dict[str, list[int]] = {}
        stops: dict[str, list[int]] = {}
        for number in range(count if names else 0):
            wanted = names[number % len(names)]
            holder = next((name for name in names if (self.topic, number) in self.owners[name]), None)
            if holder is None:
                starts.setdefault(wanted, []).append(number)
            elif holder != wanted and (self.topic, number) not in self.stopping.get(holder, set()):
                stops.setdefault(holder, []).append(number)
        for name, numbers in stops.items():
            self.stop(name, *numbers)
        for name, numbers in starts.items():
            self.start(name, *numbers)

    def do_something(self, chance: random.Random, count: int) -> None:
        """Send one command that the rules allow."""
        self.advance()
        owned = {one: name for name, partitions in self.owners.items() for one in partitions}
        number = chance.randrange(count)
        holder = owned.get((self.topic, number))
        if holder is None and self.owners:
            self.start(chance.choice(sorted(self.owners)), number)
        elif holder is not None and (self.topic, number) not in self.stopping.get(holder, set()):
            self.stop(holder, number)
