"""What the groups of one leader share, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from zkrebalancer.rebalance.deletions import Deletions
from zkrebalancer.rebalance.former_lives import FormerLives
from zkrebalancer.rebalance.scheduler import Scheduler
from zkrebalancer.rebalance.subscriptions import Subscriptions
from zkrebalancer.rebalance.turnover import Turnover
from zkrebalancer.rebalance.turns import Turns


@dataclass(slots=True)
class Leadership:
    """One leadership."""

    scheduler: Scheduler
    epoch: int
    subscriptions: Subscriptions
    former_lives: FormerLives
    deletions: Deletions
    rebalance_request_queue: Turns  # groups that wait to be planned
    groups_to_load: Turns
    weighing: frozenset[str]  # strategies for which `ReadLoads` are performed
    turnover: Turnover  # for people only
    loading: set[str] = field(default_factory=set)  # groups that are being read, except those that have to wait
    gone: set[str] = field(default_factory=set)  # groups whose nodes were missing; the next list may have them again
