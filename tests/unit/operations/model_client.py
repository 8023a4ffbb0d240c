"""The part of `BlockingZk` that operations use, on a model of ZooKeeper.

A call that a secured tree would refuse to an operator fails the test.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from tests.support.client import require_fitting
from tests.support.secured_model import OPERATOR, require_allowed
from tests.support.zk_model import ZkModel
from zkrebalancer.protocol.calls import Call, Create, Done, Multi, Refusal, Reply, SetContent
from zkrebalancer.protocol.refusals import require_expected
from zkrebalancer.protocol.requests import DEFAULT_LIMIT


class ModelClient:
    """Performs calls at once; `meanwhile` is what another program does just before the next transaction."""

    request_limit = DEFAULT_LIMIT
    principal = OPERATOR

    def __init__(self, model: ZkModel | None = None) -> None:
        self.model = model or ZkModel()
        self.meanwhile: Callable[[], None] | None = None

    def perform(self, call: Call, expected: Collection[Refusal] = ()) -> Reply:
        if isinstance(call, Multi) and self.meanwhile is not None:
            act, self.meanwhile = self.meanwhile, None
            act()
        require_allowed(call, self.principal)
        require_fitting(call, self.request_limit)
        reply = self.model.perform(call)
        require_expected(call, reply, expected)
        return reply

    def perform_all(self, calls: list[Call], expected: Collection[Refusal] = ()) -> list[Reply]:
        return [self.perform(call, expected) for call in calls]

    def create(self, path: str, content: bytes = b"") -> None:
        """Create a node and all nodes above it that are missing."""
        above = path.rpartition("/")[0]
        if above and above not in self.model.nodes:
            self.create(above)
        assert isinstance(self.model.perform(Multi((Create(path, content),))), Done)

    def set(self, path: str, content: bytes) -> None:
        assert isinstance(self.model.perform(Multi((SetContent(path, content),))), Done)
