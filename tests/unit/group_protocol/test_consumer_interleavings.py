"""Random KIP-848 clients: heartbeats and answers are lost and repeated, clients and coordinators die, topics change.

What holds after every step: no partition is owned by two clients that are members; epochs do not fall; what is stored
does not fall back. In the end everybody has its share.
"""

from __future__ import annotations

import random

import pytest

from tests.support import examples
from tests.support.group_coordinator import GROUP
from tests.support.kip848_group import Client, coordinator_with, described, topics
from zkrebalancer.group_protocol.error_codes import ErrorCode as E

STEPS = 300


class World:
    """A coordinator, its clients, and what is known of them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.coordinator = coordinator_with({"t": 6})
        self.clients: list[Client] = []
        self.born = 0
        self.highest = 0

    def step(self) -> None:
        roll = self.random.random()
        if roll < 0.05 and len(self.clients) < 5:
            self.born += 1
            instance = f"pod-{self.born}" if self.random.random() < 0.3 else None
            self.clients.append(Client(self.coordinator, f"c{self.born}", instance_id=instance))
        elif roll < 0.1 and self.clients:
            client = self.random.choice(self.clients)
            self.random.choice((self.kill, self.leave, self.crash, self.change_topics, self.hold_on))(client)
        elif roll < 0.13:
            self.coordinator.stores_at_once = self.random.random() < 0.5
        elif roll < 0.3:
            self.coordinator.finish_writes(self.random.choice((E.NONE, E.NONE, E.NONE, E.COORDINATOR_NOT_AVAILABLE)))
        elif roll < 0.4:
            self.coordinator.pass_time(self.random.choice((1, 500, 5_000, 20_000)))
        elif self.clients:
            self.heartbeat(self.random.choice(self.clients))
        self.check()

    def heartbeat(self, client: Client) -> None:
        if client.ticket and client.ticket in self.coordinator.answers:
            self.receive(client)
        if self.random.random() < 0.9:
            client.send()

    def receive(self, client: Client) -> None:
        epoch, incarnation = client.epoch, client.owned
        if self.random.random() < 0.1:  # the answer is lost
            client.ticket = 0
            return
        code = client.receive()
        client.ticket = 0
        if code in {E.FENCED_INSTANCE_ID, E.UNRELEASED_INSTANCE_ID}:
            self.clients.remove(client)
        elif code is E.NONE and client.epoch > 0:
            assert client.epoch >= epoch, (client.name, incarnation)

    # ---- faults

    def kill(self, client: Client) -> None:
        self.clients.remove(client)

    def leave(self, client: Client) -> None:
        if client.epoch > 0:
            client.send(-2 if client.instance_id is not None and self.random.random() < 0.5 else -1)
        self.clients.remove(client)

    def crash(self, _client: Client) -> None:
        self.coordinator.crash(writes_arrived=self.random.random() < 0.5)
        for client in self.clients:
            client.ticket = 0

    def change_topics(self, _client: Client) -> None:
        self.coordinator.topics_read = topics({"t": self.random.randint(4, 8)})
        self.coordinator.step(self.coordinator.topics_read)

    def hold_on(self, client: Client) -> None:
        client.holds_on = not client.holds_on
        if not client.holds_on:
            client.owned = client.wanted

    # ---- what has to hold

    def check(self) -> None:
        members = {member.member_id: member.member_epoch for member in described(self.coordinator).members}
        owned = [
            partition
            for client in self.clients
            if client.name in members and client.epoch > 0
            for partition in client.owned
        ]
        assert len(owned) == len(set(owned)), "two owners"
        if GROUP in self.coordinator.kept:
            assert self.coordinator.generation() >= self.highest, "what is stored fell back"
            self.highest = self.coordinator.generation()

    def settle(self) -> None:
        self.coordinator.stores_at_once = True
        self.coordinator.finish_writes()
        self.coordinator.pass_time(2_000)
        for client in self.clients:
            client.holds_on = False
            client.owned = client.wanted
            client.ticket = 0
        for _ in range(60):
            for client in list(self.clients):
                client.send()
                self.coordinator.pass_time(1)  # a group of ten pauses between two writes
                if client.receive() in {E.FENCED_INSTANCE_ID, E.UNRELEASED_INSTANCE_ID}:
                    self.clients.remove(client)
            self.check()
            self.coordinator.pass_time(5_000)
        owned = sorted(number for client in self.clients for number in client.numbers())
        count = self.coordinator.topics_read.topics["t"].partition_count if self.coordinator.topics_read else 0
        assert owned == (list(range(count)) if self.clients else [])
        assert [ticket for ticket in self.coordinator.asked if self.coordinator.is_waiting(ticket)] == []


@pytest.mark.drawn
@pytest.mark.parametrize("seed", range(examples.count() // 2))
def test_random_clients(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        world.step()
    world.settle()
