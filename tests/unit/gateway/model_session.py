"""A session with a ZooKeeper in memory, which answers at once."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.zk_model import ZkModel
from zkrebalancer.gateway.session import Session
from zkrebalancer.protocol.calls import (
    Call,
    Get,
    ListChildren,
    Multi,
    Operation,
    ReadEach,
    Refusal,
    Refused,
    Reply,
    SetContent,
)
from zkrebalancer.protocol.requests import DEFAULT_LIMIT, RequestLimit


class ModelSession(Session):
    """A gateway's session; `refusals` are given to its next calls, and to those on `forbidden` nodes."""

    def __init__(self) -> None:
        self.model = ZkModel()
        self.is_leased = True
        self.refusals: list[Refused] = []
        self.forbidden: set[str] = set()
        self.why_stalled: str | None = None
        self.renew()

    def renew(self) -> None:
        """Go on with another session; what the former one made stays."""
        self.session_id = self.model.open(6_000).session_id

    @property
    def request_limit(self) -> RequestLimit:
        return DEFAULT_LIMIT

    @property
    def has_lease(self) -> bool:
        return self.is_leased

    def stalled(self) -> str | None:
        return self.why_stalled

    def request(self, call: Call, when_replied: Callable[[Reply], None]) -> None:
        operations = call.operations if isinstance(call, Multi) else (call,)
        if self.refusals:
            when_replied(self.refusals.pop(0))
        elif any(isinstance(one, Get | ListChildren | SetContent) and one.path in self.forbidden for one in operations):
            when_replied(Refused(Refusal.NO_AUTH))
        else:
            when_replied(self.model.perform(call, self.session_id))

    def do(self, *operations: Operation) -> None:
        """Perform a transaction."""
        self.require(Multi(operations))

    def read_each(self, reads: ReadEach) -> list[Reply]:
        return self.perform_all([reads.read(place) for place in range(len(reads.names))])
