"""Checks that the application polls in time. Pure.

An application that hangs keeps its session and its lease, which other threads renew, but does not process its
partitions. It is checked only when its time could be over, not at every poll; each check sets the time of the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from consumer_agent.membership.effects import EffectQueue, LookAtApplication, RecordPollLate, Warn
from consumer_agent.membership.events import ApplicationSeen, Position
from zkrebalancer.protocol.fields import TopicPartition

MAX_NAMED_PARTITIONS = 5  # in one log line


@dataclass(slots=True)
class PollWatch:
    """One registration's watch over the application. `is_over` is set when it has been away for `limit_ms`."""

    effects: EffectQueue
    consumer: str
    limit_ms: int
    look_at_ms: int
    token: int | None = None  # of a check in progress
    is_over: bool = False

    @property
    def warning_ms(self) -> int:
        """The time without a poll before a warning."""
        return self.limit_ms * 2 // 3

    @property
    def wake_at_ms(self) -> int | None:
        """Return when `handle_tick` has work to do."""
        return None if self.is_over or self.token is not None else self.look_at_ms

    def handle_tick(self, now_ms: int) -> None:
        """Check the application when it is time."""
        if self.wake_at_ms is not None and now_ms >= self.look_at_ms:
            self.token = self.effects.token()
            self.effects.add(LookAtApplication(self.token))

    def handle_seen(self, seen: ApplicationSeen, now_ms: int) -> None:
        """Decide when to check again, whether to warn, and whether the application has been away for too long."""
        if seen.token != self.token:
            return
        self.token = None
        if seen.away_since_ms is None:
            self.look_at_ms = now_ms + self.warning_ms
            return
        away_ms = now_ms - seen.away_since_ms
        if away_ms >= self.limit_ms:
            self.is_over = True
            self._tell("gives up its partitions", away_ms, seen)
        elif away_ms >= self.warning_ms:
            self.look_at_ms = seen.away_since_ms + self.limit_ms
            self._tell(f"gives up its partitions in {(self.limit_ms - away_ms) / 1_000:.1f} s", away_ms, seen)
        else:
            self.look_at_ms = seen.away_since_ms + self.warning_ms

    def _tell(self, consequence: str, away_ms: int, seen: ApplicationSeen) -> None:
        text = f"{self.consumer}: the application has not polled for {away_ms / 1_000:.1f} s and {consequence}"
        self.effects.add(
            Warn(f"{text} (max_poll_interval_ms is {self.limit_ms}); it is processing {in_hand(seen.positions)}"),
            RecordPollLate(self.consumer, away_ms, self.limit_ms, self.is_over),
        )


def in_hand(positions: Mapping[TopicPartition, Position]) -> str:
    """Name the returned records that are not finished."""
    unfinished = [(tp, mark) for tp, mark in sorted(positions.items()) if mark.is_unfinished and mark.finished >= 0]
    named = [f"{topic}/{number} {m.finished}-{m.returned - 1}" for (topic, number), m in unfinished]
    more = len(named) - MAX_NAMED_PARTITIONS
    tail = [f"{more} more partitions"] if more > 0 else []
    return ", ".join(named[:MAX_NAMED_PARTITIONS] + tail) or "no records"
