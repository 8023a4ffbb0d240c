"""Reads that ZooKeeper refuses for an unexpected reason, such as a missing right. Pure.

A node that may not be read does not count as absent: a start would begin at the wrong offset, and commands would be
missed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from consumer_agent.membership.effects import EffectQueue, Warn
from zkrebalancer.protocol.calls import Get, ListChildren, Refused
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.refusals import refused_text

MIN_PAUSE_MS, MAX_PAUSE_MS = 100, 30_000  # before the next try; doubled each time
HIDDEN = "ZooKeeper does not let it be read what is stored; asking again"


@dataclass(slots=True)
class RefusedReads:
    """The reads of one purpose: the first refusal is logged, and retries have growing intervals until `succeeded`."""

    effects: EffectQueue
    consumer: str
    retry_at_ms: int | None = None
    tries: int = 0
    told: frozenset[TopicPartition] = frozenset()  # whose stored offsets are refused

    def note(self, read: Get | ListChildren, reply: Refused) -> None:
        """Note a refusal; `take_due` shows when to retry."""
        if self.retry_at_ms is not None:
            return
        if self.tries == 0:
            text = f"{self.consumer}: {refused_text(read, reply)}; retried at growing intervals"
            self.effects.add(Warn(text))
        self.retry_at_ms = self.effects.now_ms + min(MAX_PAUSE_MS, MIN_PAUSE_MS << min(self.tries, 10))
        self.tries += 1

    def tell_rest(self, partitions: Collection[TopicPartition]) -> None:
        """Log whose stored offsets are refused, unless just these were logged: rights are missing node by node."""
        refused = frozenset(partitions)
        if refused and refused != self.told:
            self.effects.add(Warn(partitions_text(refused, HIDDEN)))
        self.told = refused

    def take_due(self, now_ms: int) -> bool:
        """Return whether a retry is due; True only once for each refusal."""
        if self.retry_at_ms is None or now_ms < self.retry_at_ms:
            return False
        self.retry_at_ms = None
        return True

    def succeeded(self) -> None:
        """Reset, so that the next refusal counts as the first."""
        self.retry_at_ms, self.tries = None, 0


def partitions_text(partitions: frozenset[TopicPartition], why: str) -> str:
    """Return a line about some partitions, of which it names one."""
    topic, number = min(partitions)
    more = f" and {len(partitions) - 1} other partitions" if len(partitions) > 1 else ""
    return f"{topic}/{number}{more}: {why}"
