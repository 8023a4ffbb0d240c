"""A consumer of the classic protocol with encoded subscriptions and assignments; as leader, it assigns."""

from __future__ import annotations

import struct

from tests.support.group_coordinator import Coordinator
from zkrebalancer.group_protocol.answers import JoinGroupAnswer, SyncGroupAnswer
from zkrebalancer.group_protocol.consumer_protocol import read_assignment, write_assignment
from zkrebalancer.group_protocol.error_codes import ErrorCode as E
from zkrebalancer.group_protocol.requests import JoinGroupProtocol

OWN_TOPIC, PARTITIONS = "t", 4


def subscription(owned: frozenset[int], version: int = 1) -> bytes:
    """Return the metadata of a consumer of "t" that owns these partitions."""
    topics = struct.pack(">hih1si", version, 1, 1, b"t", -1)
    return topics + struct.pack(f">ih1si{len(owned)}i", 1, 1, b"t", len(owned), *sorted(owned))


NEWCOMER = (JoinGroupProtocol("range", subscription(frozenset())),)  # the protocols of one that owns nothing


class ClassicConsumer:
    """Joins, syncs and sends heartbeats; an eager one gives up everything before it joins."""

    def __init__(
        self, coordinator: Coordinator, name: str, *, is_eager: bool = False, instance: str | None = None
    ) -> None:
        self.coordinator = coordinator
        self.name = name
        self.is_eager = is_eager
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self.owned: frozenset[int] = frozenset()
        self.ticket = 0
        self.phase = "join"
        self.members: tuple[str, ...] = ()

    def act(self) -> None:
        """Handle the answer to the last request, if any, and send the next one."""
        if self.ticket and self.coordinator.is_waiting(self.ticket):
            return
        if self.ticket:
            answer = self.coordinator.answers[self.ticket]
            self.ticket = 0
            if isinstance(answer, JoinGroupAnswer):
                self._joined(answer)
            elif isinstance(answer, SyncGroupAnswer):
                self._synced(answer)
        if self.phase == "join":
            self._join()
        elif self.phase == "sync":
            given = {name: write_assignment(1, {OWN_TOPIC: self._share(at)}) for at, name in enumerate(self.members)}
            self.ticket = self.coordinator.sync(self.member_id, self.generation, given, self.instance)
        else:
            self._refused(self.coordinator.heartbeat(self.member_id, self.generation, self.instance))

    def numbers(self) -> list[int]:
        """Return the partitions of "t" that it owns."""
        return sorted(self.owned)

    def _share(self, at: int) -> tuple[int, ...]:
        return tuple(number for number in range(PARTITIONS) if number % len(self.members) == at)

    def _join(self) -> None:
        if self.is_eager:
            self.owned = frozenset()
        protocols = (JoinGroupProtocol("range", subscription(self.owned)),)
        self.ticket = self.coordinator.join(
            self.member_id, protocols, version=5, client_id=self.name, instance=self.instance
        )

    def _joined(self, answer: JoinGroupAnswer) -> None:
        if answer.error_code is E.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        elif answer.error_code:
            self._refused(answer.error_code)
        else:
            self.member_id, self.generation = answer.member_id, answer.generation_id
            self.members = tuple(sorted(member.member_id for member in answer.members))
            self.phase = "sync"

    def _synced(self, answer: SyncGroupAnswer) -> None:
        if answer.error_code:
            self._refused(answer.error_code)
            return
        now_owned = frozenset(read_assignment(answer.assignment).get(OWN_TOPIC, ()))
        has_lost = bool(self.owned - now_owned)
        self.owned = now_owned
        self.phase = "join" if has_lost and not self.is_eager else "poll"

    def _refused(self, code: E) -> None:
        if code in {E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID}:
            self.member_id = ""
        if code in {E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID, E.ILLEGAL_GENERATION}:
            self.owned, self.generation = frozenset(), -1
        if code:
            self.phase = "join"
