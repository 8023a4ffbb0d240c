"""An operator's client of a world's ZooKeeper, which can be killed at any call."""

from __future__ import annotations

from collections.abc import Collection

from tests.support.secured_model import OPERATOR, require_allowed
from tests.support.world import World
from zkrebalancer.protocol.calls import Call, Multi, Refusal, Reply
from zkrebalancer.protocol.errors import RequestTooLargeError
from zkrebalancer.protocol.refusals import require_expected
from zkrebalancer.protocol.requests import DEFAULT_LIMIT, RequestLimit

MAX_CALLS = 100


class KilledError(BaseException):
    """The process was killed: none of its further calls has an effect."""


def require_fitting(call: Call, limit: RequestLimit) -> None:
    """Refuse a transaction that is too large, as `BlockingZk` does."""
    if isinstance(call, Multi) and not limit.fits(call.operations):
        raise RequestTooLargeError(f"a transaction of more than {limit.max_bytes} bytes is not sent")


class Client:
    """A `BlockingZk` of a process that is killed before its n-th call, or after it.

    A call that a secured tree would refuse to `principal` fails the test.
    """

    request_limit = DEFAULT_LIMIT
    principal = OPERATOR
    session_id = 0  # of ephemeral nodes: none

    def __init__(self, world: World, calls: int = MAX_CALLS, *, is_last_lost: bool = True, pause_ms: int = 0) -> None:
        self.world, self.left, self.is_last_lost, self.pause_ms = world, calls, is_last_lost, pause_ms

    def perform(self, call: Call, expected: Collection[Refusal] = ()) -> Reply:
        self.left -= 1
        if self.left < 0 or (self.left == 0 and self.is_last_lost):
            raise KilledError
        require_allowed(call, self.principal)
        require_fitting(call, self.request_limit)
        reply = self.world.zk.perform(call, self.session_id)
        self.world.pass_time(self.pause_ms if isinstance(call, Multi) else 0)
        if self.left == 0:
            raise KilledError
        require_expected(call, reply, expected)
        return reply

    def perform_all(self, calls: list[Call], expected: Collection[Refusal] = ()) -> list[Reply]:
        return [self.perform(call, expected) for call in calls]
