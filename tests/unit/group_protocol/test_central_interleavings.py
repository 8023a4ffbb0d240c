"""Random clients of both protocols in a central group, whose partitions somebody outside moves at random.

Writes are late or fail, answers are lost, clients hang and die, coordinators crash. What holds after every step: no
partition is owned by two clients that are members, and a client owns nothing that its owners record does not have. In
the end everybody has what was given, and nobody waits.
"""

from __future__ import annotations

import random

import pytest

from tests.support.central_group import Outside
from tests.support.classic_consumer import ClassicConsumer
from tests.support.group_coordinator import GROUP, REBALANCE_MS
from tests.support.kip848_group import Client, coordinator_with
from zkrebalancer.group_protocol import stored
from zkrebalancer.group_protocol.consumer_group import ConsumerGroup
from zkrebalancer.group_protocol.error_codes import ErrorCode as E
from zkrebalancer.group_protocol.requests import LeaveGroupRequest, MemberIdentity
from zkrebalancer.group_protocol.settings import GroupProtocolSettings

STEPS = 300
PARTITIONS = 5
Member = ClassicConsumer | Client


class World:
    """A central group, its clients, and the one who decides."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.coordinator = coordinator_with({"t": PARTITIONS}, GroupProtocolSettings(assigns_centrally=True))
        self.outside = Outside(self.coordinator)
        self.members: list[Member] = []
        self.born = 0

    def step(self) -> None:
        roll = self.random.random()
        if roll < 0.06 and len(self.members) < 4:
            self.born += 1
            self.members.append(self.newcomer(f"m{self.born}"))
        elif roll < 0.1 and self.members:
            self.random.choice((self.kill, self.leave, self.crash, self.hold_on))(self.random.choice(self.members))
        elif roll < 0.13:
            self.coordinator.stores_at_once = self.random.random() < 0.5
        elif roll < 0.28:
            self.coordinator.finish_writes(self.random.choice((E.NONE, E.NONE, E.NONE, E.COORDINATOR_NOT_AVAILABLE)))
        elif roll < 0.36:
            self.coordinator.pass_time(self.random.choice((1, 500, 5_000)))
        elif roll < 0.55:
            self.outside.do_something(self.random, PARTITIONS)
        elif self.members:
            self.act(self.random.choice(self.members))
        self.outside.advance()
        self.check_owners()
        self.check_what_is_kept()

    def newcomer(self, name: str) -> Member:
        if self.random.random() < 0.5:
            return Client(self.coordinator, name)
        return ClassicConsumer(self.coordinator, name, is_eager=self.random.random() < 0.5)

    def act(self, member: Member) -> None:
        if isinstance(member, ClassicConsumer):
            member.act()
            return
        if member.ticket and member.ticket in self.coordinator.answers:
            if self.random.random() < 0.9:  # else the answer is lost
                member.receive()
            member.ticket = 0
        if not member.ticket or self.random.random() < 0.2:
            member.send()

    # ---- faults

    def kill(self, member: Member) -> None:
        self.members.remove(member)

    def leave(self, member: Member) -> None:
        self.members.remove(member)
        if isinstance(member, Client):
            member.send(-1)
        elif member.member_id:
            self.coordinator.send(LeaveGroupRequest(GROUP, (MemberIdentity(member.member_id),)), 5)

    def hold_on(self, member: Member) -> None:
        if isinstance(member, Client):
            member.holds_on = not member.holds_on
            member.owned = member.owned if member.holds_on else member.wanted

    def crash(self, _member: Member) -> None:
        self.coordinator.standings = {}
        self.coordinator.crash(writes_arrived=self.random.random() < 0.5)
        for member in self.members:
            member.ticket = 0
        self.outside.adopt()

    # ---- what has to hold

    def owned(self, member: Member) -> tuple[str, set[int]]:
        if isinstance(member, ClassicConsumer):
            return member.member_id, set(member.owned)
        return member.name, set(member.numbers()) if member.epoch > 0 else set()

    def check_owners(self) -> None:
        owned: list[int] = []
        for member in self.members:
            name, numbers = self.owned(member)
            if name in self.outside.owners:
                assert numbers <= {number for _topic, number in self.outside.owners[name]}, f"{name} has more"
                owned += numbers
        assert len(owned) == len(set(owned)), "two owners"

    def check_what_is_kept(self) -> None:
        """Assert that what is computed for changed members alone is what all of it would be."""
        group = self.coordinator.machine._groups.get(GROUP)
        if not isinstance(group, ConsumerGroup) or group.central is None or group.is_dead:
            return
        members = group.roster.members.values()
        former = set(group.roster.unsettled)
        if group.target_epoch == group.group_epoch:
            for member in members:
                assert member.target == group.central.target_of(member), "an old target"
                group._note_progress(member)
            assert group.roster.unsettled == former
        reported = group._standings()
        kept = stored.to_bytes(group.stored_form())
        for member in members:
            member.kept = None
        group.central._reported.clear()
        assert group._standings() == reported, "an old report"
        assert stored.to_bytes(group.stored_form()) == kept, "an old form"

    def settle(self) -> None:
        self.coordinator.stores_at_once = True
        self.coordinator.finish_writes()
        for member in self.members:
            if isinstance(member, Client) and member.holds_on:
                self.hold_on(member)
            member.ticket = member.ticket if isinstance(member, ClassicConsumer) else 0
        end_ms = self.coordinator.now_ms + 3 * REBALANCE_MS
        while self.coordinator.now_ms < end_ms:
            for member in self.members:
                self.act(member)
                self.outside.share(PARTITIONS)
                self.check_owners()
            self.check_what_is_kept()  # it costs more than all else, and little happens any more
            self.coordinator.pass_time(500)
        owned = sorted(number for member in self.members for number in self.owned(member)[1])
        assert owned == (list(range(PARTITIONS)) if self.members else [])
        self.coordinator.pass_time(REBALANCE_MS)
        waiting = [ticket for ticket in self.coordinator.asked if self.coordinator.is_waiting(ticket)]
        assert waiting == []


@pytest.mark.parametrize("seed", range(30))
def test_random_commands(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        world.step()
    world.settle()
    assert world.outside.commands > 0 or not world.members
