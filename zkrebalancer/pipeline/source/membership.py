"""Spark's part in the group: an agent that reads nothing. It owns partitions, hands out ranges of them, and commits.

A range that was planned is to the agent what records are that an application was given: unfinished until Spark has
finished the batch. So a stop-fetcher waits for the batch in flight, by the agent's own rules, and what a member loses
is committed by nobody. Where nothing is in flight the agent's engine acknowledges by itself, with Spark asleep.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from consumer_agent.spark import CommitFailedError, CommitTimeoutError, PlanningConsumer
from zkrebalancer.observe.events import EventLog
from zkrebalancer.pipeline.source import offsets
from zkrebalancer.pipeline.source.kafka import END, DataLossError, Logs
from zkrebalancer.pipeline.source.offsets import Range
from zkrebalancer.pipeline.source.options import Options
from zkrebalancer.protocol.fields import TopicPartition

COMMIT_TIMEOUT_S = 10.0
ASSIGNMENT_TIMEOUT_S = 30.0  # how long a query that ends by itself waits for partitions
POLL_INTERVAL_S = 0.05
MAX_AWAY_MS = 86_400_000  # a batch may take long; the driver's end is noticed by other means

_log = logging.getLogger(__name__)


class Membership:
    """A member of the group from the first `poll` to `close`. All methods belong to one thread."""

    def __init__(self, options: Options) -> None:
        """Prepare; the group is joined by the first `poll`."""
        self._options = options
        self._logs = Logs(options)
        self._consumer = PlanningConsumer(**options.agent, enable_auto_commit=False, max_poll_interval_ms=MAX_AWAY_MS)
        self._consumer.subscribe(options.topics)
        self._log = _open_event_log(options)
        self._shorter: set[TopicPartition] = set()  # logs that end before the group's offset, and were told of
        self._turn = 0  # how many batches were planned
        self.ends: dict[TopicPartition, int] = {}  # of the logs of owned partitions, when they were asked for last

    def poll(self, timeout_s: float = 0.0) -> None:
        """Join the group if it is not joined, and let go of what is being revoked; takes `timeout_s` if it is positive.

        Raises:
            RebalancerError: what the agent could not do.

        """
        self._consumer.poll(timeout_s, max_records=0)

    def wait_assigned(self) -> None:
        """Wait until there are partitions, at most ASSIGNMENT_TIMEOUT_S: others may have them all."""
        give_up_s = time.monotonic() + ASSIGNMENT_TIMEOUT_S
        while not self._consumer.assignment() and time.monotonic() < give_up_s:
            self.poll(POLL_INTERVAL_S)
        if not self._consumer.assignment():
            _log.warning(
                "group %s has no partition for this query within %g s", self._options.group, ASSIGNMENT_TIMEOUT_S
            )

    def log_ends(self) -> dict[TopicPartition, int]:
        """Return where all logs of the topics end; raises KafkaReadError."""
        return self._logs.offsets(self._logs.partitions(self._options.topics), END)

    def plan(self, limit: int, targets: Mapping[TopicPartition, int] | None) -> list[Range]:
        """Return what to read next of the partitions that are owned at this moment, at most `limit` offsets.

        With targets nothing beyond them.

        Raises:
            DataLossError: a log is shorter than what was read of it, and `failOnDataLoss` is set.

        """
        positions = self._consumer.position()
        self.ends = self._logs.ends(self._consumer.assignment())
        unread: dict[TopicPartition, tuple[int, int]] = {}
        for partition, end in sorted(self.ends.items()):
            begin = positions.get(partition)
            if begin is not None:
                self._look_for_loss(partition, begin, end)
                last = end if targets is None else min(end, targets.get(partition, 0))
                if begin < last:
                    unread[partition] = begin, last
        wanted = offsets.limited(unread, limit, self._turn)
        self._turn += 1
        advances = self._consumer.advance(wanted)
        ranges = [
            Range(*partition, advance.begin, wanted[partition], advance.generation)
            for partition, advance in sorted(advances.items())
            if advance.begin < wanted[partition]
        ]
        self._record("batch_planned", ranges)
        return ranges

    def finish(self, ranges: Sequence[Range]) -> None:
        """Commit what was planned; partitions that were lost meanwhile are passed over."""
        self._consumer.finish({(r.topic, r.partition): r.end for r in ranges})
        self._record("batch_finished", ranges)
        try:
            self._consumer.commit(timeout_s=COMMIT_TIMEOUT_S)
        except (CommitFailedError, CommitTimeoutError) as error:
            _log.warning("%s; the sink decides what of it counts", error)

    def close(self) -> None:
        """Leave the group; what is in flight is not committed."""
        self._consumer.close()
        self._logs.close()
        self._log.close()

    def _look_for_loss(self, partition: TopicPartition, begin: int, end: int) -> None:
        if begin <= end:
            self._shorter.discard(partition)
        elif partition not in self._shorter:
            text = f"{partition[0]}/{partition[1]}: the group is at {begin}, and Kafka's log ends at {end}"
            if self._options.fail_on_data_loss:
                raise DataLossError(f"{text}; option failOnDataLoss=false waits for records behind that")
            self._shorter.add(partition)
            _log.warning("%s; nothing is read until it is longer", text)

    def _record(self, kind: str, ranges: Iterable[Range]) -> None:
        by_topic = groupby(ranges, key=lambda r: (r.topic, r.generation))
        for (topic, generation), grouped in by_topic:
            held = list(grouped)
            self._log.write(
                kind,
                group=self._options.group,
                generation=generation,
                topic=topic,
                partitions=[r.partition for r in held],
                positions=[r.begin for r in held],
                ends=[r.end for r in held],
                lags=[max(0, self.ends.get((r.topic, r.partition), r.end) - r.end) for r in held],
            )


def _open_event_log(options: Options) -> EventLog:
    directory = options.agent.get("events_directory")
    if directory is None:
        return EventLog(None, "spark")
    Path(directory).mkdir(parents=True, exist_ok=True)
    return EventLog(Path(directory), f"{options.agent['client_id']}-batches")
