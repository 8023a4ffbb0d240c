"""Reads the lag of a group a few times, for verdicts about each partition."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from zkrebalancer.observe.inspection import GroupReport
from zkrebalancer.operations.group_lag import PartitionLag
from zkrebalancer.operations.lag_age import first_unread_ms
from zkrebalancer.operations.lag_verdict import MIN_WINDOW_MS, Reading, Verdict, judge
from zkrebalancer.protocol.fields import TopicPartition

DEFAULT_WINDOW_S = 15
MIN_WINDOW_S = MIN_WINDOW_MS // 1_000
READINGS = 3  # in a window, without `--watch`
MAX_READINGS = 100  # of a partition


class LagWatch:
    """The last readings of each partition of one group."""

    def __init__(self, window_s: float) -> None:
        """Start without readings; `window_s`: how far back readings count."""
        self._window_ms = int(window_s * 1_000)
        self._readings: dict[TopicPartition, deque[Reading]] = {}

    def note(self, report: GroupReport, lag: Mapping[TopicPartition, PartitionLag], now_ms: int) -> None:
        """Add a reading of each partition; forget those that are gone, and readings before the window."""
        owned = report.owned()
        before, self._readings = self._readings, {}
        for partition, known in lag.items():
            readings = self._readings[partition] = before.get(partition, deque(maxlen=MAX_READINGS))
            readings.append(Reading(now_ms, known.stored, known.log_end_offset, partition in owned))
            while len(readings) > 1 and readings[1].at_ms <= now_ms - self._window_ms:
                readings.popleft()

    def verdicts(self, kafka: Mapping[str, str]) -> dict[TopicPartition, Verdict | None]:
        """Judge each partition; one without progress is OK if no record waits, or none has waited for the whole window.

        Raises:
            KafkaOffsetsError: records cannot be read.

        """
        found = {partition: judge(tuple(readings)) for partition, readings in self._readings.items()}
        still = {partition: verdict for partition, verdict in found.items() if verdict in {Verdict.STALL, Verdict.STOP}}
        offsets = {partition: self._readings[partition][-1].offset for partition in still}
        asked = {tp: offset for tp, offset in offsets.items() if offset is not None}
        unread = first_unread_ms(kafka, asked) if asked else {}
        for partition, first_ms in unread.items():
            readings = self._readings[partition]
            if first_ms is None:
                found[partition] = judge([replace(reading, has_unread=False) for reading in readings])
            elif abs(readings[-1].at_ms - first_ms) < self._window_ms:  # the producer's clock may be ahead
                found[partition] = Verdict.OK
        return found
