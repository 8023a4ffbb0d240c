"""Reads that ZooKeeper refuses for a reason that nobody expects, such as a missing right. Pure.

What may not be read is not taken for absent: a start would begin at the wrong offset, and commands would not be seen.
"""

from __future__ import annotations

from dataclasses import dataclass

from consumer_agent.membership.effects import EffectQueue, Warn
from zkrebalancer.protocol.calls import Get, ListChildren, Refused
from zkrebalancer.protocol.refusals import refused_text

MIN_PAUSE_MS, MAX_PAUSE_MS = 100, 30_000  # before the next try; doubled each time


@dataclass(slots=True)
class RefusedReads:
    """The reads of one purpose: the first refusal is logged, and retries have growing intervals until `succeeded`."""

    effects: EffectQueue
    consumer: str
    retry_at_ms: int | None = None
    tries: int = 0

    def note(self, read: Get | ListChildren, reply: Refused) -> None:
        """Note a refusal; `take_due` says when to try again."""
        if self.retry_at_ms is not None:
            return
        if self.tries == 0:
            text = f"{self.consumer}: {refused_text(read, reply)}; retried at growing intervals"
            self.effects.add(Warn(text))
        self.retry_at_ms = self.effects.now_ms + min(MAX_PAUSE_MS, MIN_PAUSE_MS << min(self.tries, 10))
        self.tries += 1

    def take_due(self, now_ms: int) -> bool:
        """Return whether it is time to try again, once."""
        if self.retry_at_ms is None or now_ms < self.retry_at_ms:
            return False
        self.retry_at_ms = None
        return True

    def succeeded(self) -> None:
        """Begin anew with the next refusal."""
        self.retry_at_ms, self.tries = None, 0
