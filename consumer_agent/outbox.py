"""What one step of the machine sends out, and which answer belongs to which question."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from consumer_agent.signals import Effect, Request
from zkrebalancer.protocol.calls import Call


class Purpose(Enum):
    """Why a ZooKeeper call was made; decides who handles its answer."""

    LIST_GROUP = auto()
    LIST_ANCESTOR = auto()
    CREATE_GROUP = auto()
    READ_INSTANCE = auto()
    READ_SUCCESSOR = auto()
    REGISTER = auto()
    VERIFY_REGISTRATION = auto()
    LIST_CHANNEL = auto()
    RENEW = auto()
    READ_COMMAND = auto()
    READ_OFFSET = auto()
    READ_MARK = auto()
    READ_REGISTRATION = auto()
    WRITE_REGISTRATION = auto()
    WRITE = auto()
    SYNC_WRITE = auto()
    VERIFY_WRITE = auto()
    LEAVE = auto()
    LIST_BEFORE_LEAVING = auto()
    LIST_QUARANTINE = auto()
    QUARANTINE = auto()


@dataclass(slots=True)
class Outbox:
    """Effects in the order in which they are to be performed; tokens and call ids count up from one sequence."""

    effects: list[Effect] = field(default_factory=list)
    waiting: dict[int, tuple[Purpose, object]] = field(default_factory=dict)  # call id -> purpose and its argument
    last_token: int = 0
    now_ms: int = 0  # of the step under way

    def add(self, *effects: Effect) -> None:
        """Add effects."""
        self.effects.extend(effects)

    def token(self) -> int:
        """Return a token that was never used before."""
        self.last_token += 1
        return self.last_token

    def request(self, purpose: Purpose, call: Call, argument: object = None) -> None:
        """Make a call; its answer is handed to the handler of `purpose`, with `argument`."""
        call_id = self.token()
        self.waiting[call_id] = (purpose, argument)
        self.add(Request(call_id, call))

    def forget_calls(self) -> None:
        """Ignore the answers that are still to come."""
        self.waiting.clear()

    def take(self) -> list[Effect]:
        """Return the effects and begin anew."""
        taken, self.effects = self.effects, []
        return taken
