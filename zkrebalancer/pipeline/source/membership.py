"""The query's membership in the group: an agent that fetches nothing, but owns partitions, plans ranges and commits.

To the agent, a planned range is like records returned to an application: unfinished until Spark has finished the batch.
So the agent's own rules apply: a *stop* waits for the batch in flight, and lost partitions are not committed. Without
a batch in flight, the agent acknowledges at once, even while Spark does nothing.
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
from zkrebalancer.pipeline.source.short_logs import PATIENCE_S, ShortLogs
from zkrebalancer.protocol.fields import TopicPartition

COMMIT_TIMEOUT_S = 10.0
ASSIGNMENT_TIMEOUT_S = 30.0  # how long an availableNow query waits for partitions
POLL_INTERVAL_S = 0.05
MAX_AWAY_MS = 86_400_000  # a batch may take long; this does not detect a dead driver
STOP_TIMEOUT_MS = 300_000  # the option's default: how long other members wait for the batch in flight

_log = logging.getLogger(__name__)


class Membership:
    """A member of the group from the first `poll` to `close`. Use it from one thread only."""

    def __init__(self, options: Options) -> None:
        """Create the clients; the first `poll` joins the group."""
        self._options = options
        self._logs = Logs(options)
        settings = {**options.agent, "stop_timeout_ms": stop_timeout_ms(options)}
        self._consumer = PlanningConsumer(**settings, enable_auto_commit=False, max_poll_interval_ms=MAX_AWAY_MS)
        self._lost: set[TopicPartition] = set()  # by an eviction, since the last `wait_assigned`
        self._consumer.subscribe(options.topics, on_lost=self._lost.update)
        self._log = _open_event_log(options)
        self._short_logs = ShortLogs()
        self._turn = 0  # number of batches planned
        self.ends: dict[TopicPartition, int] = {}  # of the logs of owned partitions, as last queried

    def poll(self, timeout_s: float = 0.0) -> None:
        """Join the group if needed and release revoked partitions; waits for a positive `timeout_s`.

        Raises:
            RebalancerError: the agent failed.

        """
        self._consumer.poll(timeout_s, max_records=0)

    def wait_assigned(self, *, again: bool = False) -> None:
        """Wait for partitions, at most ASSIGNMENT_TIMEOUT_S: other members may own all of them.

        With `again`, a member without partitions waits only after an eviction, when it has just joined again.
        """
        if again and not self._consumer.assignment():
            self.poll()  # `on_lost` is due before the partitions are gone
            if not self._lost:
                return
        give_up_s = time.monotonic() + ASSIGNMENT_TIMEOUT_S
        while not self._has_positions() and time.monotonic() < give_up_s:
            self.poll(POLL_INTERVAL_S)
        self._lost.clear()
        if not self._consumer.assignment():
            _log.warning(
                "group %s assigned no partition to this query within %g s", self._options.group, ASSIGNMENT_TIMEOUT_S
            )

    def log_ends(self) -> dict[TopicPartition, int]:
        """Return the ends of all logs of the topics; raises KafkaReadError."""
        return self._logs.offsets(self._logs.partitions(self._options.topics), END)

    def plan(self, limit: int, targets: Mapping[TopicPartition, int] | None) -> list[Range]:
        """Return the next ranges of the partitions owned now, at most `limit` offsets in total.

        `targets`: ends that must not be passed, None for none.

        Raises:
            DataLossError: a log ends before its partition's position, and `failOnDataLoss` is set.

        """
        assigned = self._consumer.assignment()
        positions = {tp: at for tp, at in self._consumer.position().items() if tp in assigned}
        self.ends = self._logs.ends(assigned)
        self._check_for_loss(positions, PATIENCE_S if targets is None else 0.0)
        wanted = offsets.limited(offsets.unread(positions, self.ends, targets), limit, self._turn)
        self._turn += 1
        advances = self._consumer.advance(wanted)
        origins = self._consumer.origins()
        ranges = [
            Range(*partition, advance.begin, wanted[partition], advance.generation, *origins[partition])
            for partition, advance in sorted(advances.items())
            if advance.begin < wanted[partition]
        ]
        self._record("batch_planned", ranges)
        return ranges

    def finish(self, ranges: Sequence[Range]) -> None:
        """Commit planned ranges, without partitions that were lost meanwhile."""
        self._consumer.finish({(r.topic, r.partition): r.end for r in ranges})
        self._record("batch_finished", ranges)
        try:
            self._consumer.commit(timeout_s=COMMIT_TIMEOUT_S)
        except (CommitFailedError, CommitTimeoutError) as error:
            _log.warning("%s; the batch may be read again", error)

    def close(self) -> None:
        """Leave the group without committing the batch in flight."""
        self._consumer.close()
        self._logs.close()
        self._log.close()

    def _has_positions(self) -> bool:
        assigned = self._consumer.assignment()
        return bool(assigned) and self._consumer.position().keys() >= set(assigned)

    def _check_for_loss(self, positions: Mapping[TopicPartition, int], patience_s: float) -> None:
        for topic, number, at, end in self._short_logs.overdue(positions, self.ends, time.monotonic(), patience_s):
            text = f"{topic}/{number}: the group is at {at}, and Kafka's log ends at {end}"
            if self._options.fail_on_data_loss:
                raise DataLossError(f"{text}; option failOnDataLoss=false waits for records beyond that")
            _log.warning("%s; nothing is read until it has grown past that", text)

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


def stop_timeout_ms(options: Options) -> int:
    """Return how long other members wait for the batch in flight."""
    return int(options.agent.get("stop_timeout_ms", STOP_TIMEOUT_MS))


def _open_event_log(options: Options) -> EventLog:
    directory = options.agent.get("events_directory")
    if directory is None:
        return EventLog(None, "spark")
    Path(directory).mkdir(parents=True, exist_ok=True)
    return EventLog(Path(directory), f"{options.agent['client_id']}-batches")
