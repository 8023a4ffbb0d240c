"""A consumer's telemetry events: what it fetches, returns and commits."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from consumer_agent.runtime.buffered_partition import Messages
from consumer_agent.runtime.out_of_range import OutOfRange
from consumer_agent.runtime.record_buffer import Run
from zkrebalancer.protocol.fields import TopicPartition

if TYPE_CHECKING:  # takes long to import
    from consumer_agent.membership import effects
    from zkrebalancer.observe.events import EventLog


class Telemetry:
    """Writes one group's events. The machine thread calls it, except for `repositioned` and `delivered`."""

    def __init__(self, event_log: EventLog | None, group: str) -> None:
        """Write to `event_log`, or nowhere."""
        self._log = event_log
        self._group = group
        self.member = ""  # whose reads and seeks are written

    @property
    def event_log(self) -> EventLog | None:
        """Where it writes."""
        return self._log

    def write_to(self, event_log: EventLog) -> None:
        """Write to this file from now on; a start that was interrupted may have left another one open."""
        self.close()
        self._log = event_log

    def delivered(self, runs: Sequence[Run], mono_us: int) -> None:
        """Write that records were returned to the application at `mono_us`: one event per unbroken range of offsets.

        An event that spanned a gap would claim records that were never returned.
        """
        if self._log is None:
            return
        for run in runs:
            for unbroken in _unbroken(run.messages):
                self._write(
                    "delivered",
                    generation=run.generation,
                    member=self.member,
                    topic=run.topic,
                    partition=run.partition,
                    first_offset=unbroken[0].offset(),
                    last_offset=unbroken[-1].offset(),
                    count=len(unbroken),
                    mono_us=mono_us,
                )

    def fetcher(self, effect: effects.RecordFetcher) -> None:
        """Write `fetcher_started` or `fetcher_stopped` for each topic."""
        mono_us = time.monotonic_ns() // 1_000 - effect.late_ms * 1_000
        for topic, positions in _by_topic(effect.positions):
            more: dict[str, Any] = {} if effect.reason is None else {"reason": effect.reason}
            if effect.command_id is not None:
                more["command_id"] = effect.command_id
            self._write(
                effect.kind,
                generation=effect.generation,
                cause_id=effect.cause_id,
                member=effect.member,
                topic=topic,
                partitions=list(positions),
                positions=list(positions.values()),
                mono_us=mono_us,
                **more,
            )

    def repositioned(self, positions: Mapping[TopicPartition, int], reason: str) -> None:
        """Write `repositioned` for each topic; the reason is `seek`, `reset`, `begin` or `interrupt`."""
        for topic, found in _by_topic(positions):
            where = {"topic": topic, "partitions": list(found), "positions": list(found.values())}
            self._write("repositioned", member=self.member, reason=reason, **where)

    def out_of_range(self, found: OutOfRange) -> None:
        """Write `offset_out_of_range`, and the new position if there is one."""
        topic, partition = found.partition
        known = {"offset": found.offset, "earliest": found.earliest, "latest": found.latest}
        self._write("offset_out_of_range", member=self.member, topic=topic, partition=partition, **known)
        if found.goes_on_at is not None:
            self.repositioned({found.partition: found.goes_on_at}, "reset")

    def committed(self, member: str, generation: int, offsets: Mapping[TopicPartition, int]) -> None:
        """Write `committed` for each partition."""
        for (topic, partition), offset in sorted(offsets.items()):
            where = {"topic": topic, "partition": partition, "offset": offset}
            self._write("committed", generation=generation, member=member, **where)

    def poll_late(self, effect: effects.RecordPollLate) -> None:
        """Write `poll_late`."""
        self._write("poll_late", **asdict(effect))

    def quarantined(self, effect: effects.RecordQuarantined) -> None:
        """Write `command_quarantined`."""
        self._write("command_quarantined", **asdict(effect))

    def _write(self, kind: str, **fields: Any) -> None:  # noqa: ANN401  # those of EventLog.write
        if self._log is not None:
            self._log.write(kind, group=self._group, **fields)

    def flush(self) -> None:
        """Wait, not for long, until all events are in the file."""
        if self._log is not None:
            self._log.flush()

    def close(self) -> None:
        """Close the file."""
        if self._log is not None:
            self._log.close()


def _by_topic(positions: Mapping[TopicPartition, int]) -> Iterable[tuple[str, dict[int, int]]]:
    by_topic: dict[str, dict[int, int]] = {}
    for topic, partition in sorted(positions):
        by_topic.setdefault(topic, {})[partition] = positions[topic, partition]
    return by_topic.items()


def _unbroken(messages: Messages) -> Iterator[Messages]:
    """Split a run where offsets are missing: they were compacted away, or are not records."""
    begin = 0
    if messages[-1].offset() - messages[0].offset() >= len(messages):
        for index in range(1, len(messages)):
            if messages[index].offset() != messages[index - 1].offset() + 1:
                yield messages[begin:index]
                begin = index
    yield messages[begin:]
