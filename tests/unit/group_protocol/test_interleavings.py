"""Random clients against a classic group: requests and answers are dropped and repeated, clients and coordinators die.

What holds after every step: a generation never falls, within a generation nobody owns what another owns, only members
of the last generation that was assigned may commit, and every request that waits is answered once time passes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from tests.support.group_coordinator import GROUP, RANGE, REBALANCE_MS, Coordinator
from zkrebalancer.group_protocol.answers import Answer, HeartbeatAnswer, JoinGroupAnswer, SyncGroupAnswer
from zkrebalancer.group_protocol.error_codes import ErrorCode as E
from zkrebalancer.group_protocol.requests import JoinGroupProtocol

PARTITIONS = range(6)
STEPS = 250
MORE = (*RANGE, JoinGroupProtocol("other", b""))


@dataclass
class Client:
    """A client that follows the protocol; `waits_for` is its request that is under way."""

    name: str
    instance: str | None
    version: int
    member_id: str = ""
    generation: int = -1
    owned: frozenset[int] = frozenset()
    waits_for: int | None = None
    next_step: str = "join"
    protocols: tuple[JoinGroupProtocol, ...] = RANGE
    rebalance_ms: int = REBALANCE_MS
    members: tuple[str, ...] = ()


class World:
    """A coordinator, its clients, and what is known of them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.coordinator = Coordinator()
        self.clients: list[Client] = []
        self.born = 0
        self.highest = 0
        self.given: dict[int, dict[str, frozenset[int]]] = {}  # generation -> member -> what it was given

    # ---- clients

    def send(self, client: Client) -> None:
        coordinator, lost = self.coordinator, self.random.random() < 0.1
        if lost:
            return  # the request never arrives; the client sends it again
        match client.next_step:
            case "join":
                ticket = coordinator.join(
                    client.member_id,
                    client.protocols,
                    version=client.version,
                    instance=client.instance,
                    rebalance_ms=client.rebalance_ms,
                )
            case "sync":
                ticket = coordinator.sync(client.member_id, client.generation, self.assignment(client), client.instance)
            case _:
                self.check_commit(client)
                code = coordinator.heartbeat(client.member_id, client.generation, client.instance)
                self.take(client, HeartbeatAnswer(code))
                return
        client.waits_for = ticket

    def assignment(self, client: Client) -> dict[str, bytes]:
        names = sorted(client.members)
        return {
            name: bytes(partition for partition in PARTITIONS if partition % len(names) == index)
            for index, name in enumerate(names)
        }

    def receive(self, client: Client) -> None:
        if client.waits_for is None or client.waits_for not in self.coordinator.answers:
            return
        answer = self.coordinator.answers[client.waits_for]
        client.waits_for = None
        if self.random.random() >= 0.1:  # else the answer is lost, and the client sends its request again
            self.take(client, answer)

    def take(self, client: Client, answer: Answer) -> None:
        match answer:
            case JoinGroupAnswer(error_code=E.MEMBER_ID_REQUIRED):
                client.member_id = answer.member_id
            case JoinGroupAnswer(error_code=E.NONE):
                assert answer.generation_id >= client.generation, "a generation fell"
                client.member_id, client.generation = answer.member_id, answer.generation_id
                client.members = tuple(member.member_id for member in answer.members)
                client.owned, client.next_step = frozenset(), "sync"
            case SyncGroupAnswer(error_code=E.NONE):
                client.owned, client.next_step = frozenset(answer.assignment), "poll"
                self.note_ownership(client)
            case HeartbeatAnswer(error_code=E.NONE):
                pass
            case JoinGroupAnswer() | SyncGroupAnswer() | HeartbeatAnswer():
                if answer.error_code in {E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID}:
                    client.member_id, client.generation = "", -1
                client.owned, client.next_step = frozenset(), "join"

    # ---- invariants

    def note_ownership(self, client: Client) -> None:
        given = self.given.setdefault(client.generation, {})
        holder = client.instance or client.member_id
        assert given.setdefault(holder, client.owned) == client.owned, "the same member, another assignment"
        everything = [partition for owned in given.values() for partition in owned]
        assert len(everything) == len(set(everything)), f"two owners in generation {client.generation}"

    def check_commit(self, client: Client) -> None:
        code = self.coordinator.commit(client.member_id, client.generation, client.instance)
        if code is E.NONE:
            newest = max(self.given)
            assert client.generation == newest, "a commit of an old generation was allowed"

    def check_generation(self) -> None:
        if GROUP in self.coordinator.kept:
            generation = self.coordinator.generation()
            assert generation >= self.highest, "what is stored fell back"
            self.highest = generation

    # ---- what happens

    def step(self) -> None:
        """Let one thing happen, the rarer ones seldom."""
        roll = self.random.random()
        if roll < 0.05:
            self.add_client()
        elif roll < 0.13 and self.clients:
            client = self.random.choice(self.clients)
            self.random.choice((self.kill, self.leave, self.crash, self.change))(client)
        elif roll < 0.16:
            self.coordinator.stores_at_once = self.random.random() < 0.5
        elif roll < 0.3:
            self.coordinator.finish_writes(self.random.choice((E.NONE, E.NONE, E.NONE, E.COORDINATOR_NOT_AVAILABLE)))
        elif roll < 0.45:
            self.coordinator.pass_time(self.random.choice((1, 500, 3_000, 9_000)))
        elif self.clients:
            client = self.random.choice(self.clients)
            self.receive(client)
            if client.waits_for is None or self.random.random() < 0.05:  # or it lost patience, and asks again
                self.send(client)
        self.check_generation()

    def add_client(self) -> None:
        if len(self.clients) < 5:
            self.born += 1
            instance = f"pod-{self.born}" if self.random.random() < 0.3 else None
            client = Client(f"c{self.born}", instance, self.random.choice((3, 5, 9)))
            if instance is not None and self.born % 2:
                client.rebalance_ms = 0  # nobody refuses that
            self.clients.append(client)

    def leave(self, client: Client) -> None:
        self.coordinator.leave(client.member_id)
        self.clients.remove(client)

    def crash(self, _client: Client) -> None:
        self.coordinator.crash(writes_arrived=self.random.random() < 0.5)
        for client in self.clients:
            client.waits_for = None

    def change(self, client: Client) -> None:
        client.protocols, client.next_step = self.random.choice((RANGE, MORE)), "join"

    def kill(self, client: Client) -> None:
        self.clients.remove(client)
        if client.instance is not None:  # its successor has the same name, and nothing else
            self.clients.append(
                Client(f"{client.name}'", client.instance, client.version, rebalance_ms=client.rebalance_ms)
            )

    def settle(self) -> None:
        """Without further faults every client that is left owns its part, and nobody waits."""
        for client in self.clients:
            client.rebalance_ms = REBALANCE_MS  # else they need not have the time to ask for their assignments
        self.coordinator.stores_at_once = True
        self.coordinator.finish_writes()
        self.random.random = lambda: 0.99  # type: ignore[method-assign]
        for _ in range(200):
            for client in list(self.clients):
                self.receive(client)
                if client.waits_for is None:
                    self.send(client)
            self.coordinator.pass_time(1_000)
        assert {client.next_step for client in self.clients} <= {"poll"}
        owned = sorted(partition for client in self.clients for partition in client.owned)
        assert owned == (list(PARTITIONS) if self.clients else [])
        if self.clients:
            assert self.coordinator.state() == "Stable"
        self.coordinator.pass_time(self.coordinator.settings.new_member_join_timeout_ms)
        assert [ticket for ticket in self.coordinator.asked if self.coordinator.is_waiting(ticket)] == []


@pytest.mark.parametrize("seed", range(40))
def test_random_clients(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        world.step()
    world.settle()
