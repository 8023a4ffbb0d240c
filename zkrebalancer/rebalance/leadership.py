"""What a leader's parts share: the desk, the topics, the request queue, and the fence around every write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Check, Multi, Operation, Refused, Reply
from zkrebalancer.rebalance.desk import Desk
from zkrebalancer.rebalance.request_queue import RebalanceRequestQueue
from zkrebalancer.rebalance.subscriptions import Subscriptions

RECONCILE_INTERVAL_US = 300_000_000  # how often an idle group is read again from ZooKeeper


@dataclass(slots=True)
class Leadership:
    """One leadership: its epoch fences every write that is made under it."""

    desk: Desk
    epoch: int
    epoch_version: int
    step_down: Callable[[str], None]
    subscriptions: Subscriptions
    rebalance_request_queue: RebalanceRequestQueue
    weighing: frozenset[str]  # strategies for which `ReadLoads` are performed

    def fenced(self, *operations: Operation) -> Multi:
        """Return a transaction that fails as a whole once somebody else leads."""
        return Multi((Check(paths.COORDINATOR_EPOCH, self.epoch_version), *operations))

    def is_deposed(self, reply: Reply) -> bool:
        """Whether a fenced transaction failed because somebody else leads; only then is the leadership over."""
        if isinstance(reply, Refused) and reply.index == 0:
            self.step_down("another coordinator leads")
            return True
        return False
