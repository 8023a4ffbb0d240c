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
from zkrebalancer.pipeline.source.kafka import END, DataLossError, KafkaReadError, Logs
from zkrebalancer.pipeline.source.offsets import Range
from zkrebalancer.pipeline.source.options import Options
from zkrebalancer.pipeline.source.short_logs import PATIENCE_S, ShortLogs
from zkrebalancer.protocol.errors import ZooKeeperUnavailableError
from zkrebalancer.protocol.fields import TopicPartition

COMMIT_TIMEOUT_S = 10.0
ASSIGNMENT_TIMEOUT_S = 30.0  # how long an availableNow query waits for partitions
POLL_INTERVAL_S = 0.05
ENDS_TIMEOUT_S = 2.0  # above that of one request, so that other brokers' answers are known
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
        self._had_partitions = False  # after that
        self._is_refused = False  # whether nothing could be reserved of what the last plan wanted
        self._is_silent = False  # whether Kafka did not report the end of some log
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

    def wait_assigned(self, targets: Mapping[TopicPartition, int] | None = None) -> None:
        """Wait until there are partitions that can be read, at most ASSIGNMENT_TIMEOUT_S: others may own all of them.

        With `targets`, the ends that are to be read to, a member without partitions waits only if it has just lost
        them: an eviction, or a rebalance that stops all partitions, may give some back.

        Raises:
            RebalancerError: the agent failed.
            ZooKeeperUnavailableError: there is no lease, so nobody knows what is left to others.
            KafkaReadError: it is not known where a partition begins.

        """
        if targets is not None and not self._consumer.assignment():
            self.poll()  # `on_lost` is due before the partitions are gone
            if not self._lost and not self._had_partitions:
                return
        give_up_s = time.monotonic() + ASSIGNMENT_TIMEOUT_S
        while not (is_ready := self._is_ready(targets)) and time.monotonic() < give_up_s:
            self.poll(POLL_INTERVAL_S)
        self._lost.clear()
        self._had_partitions = bool(self._consumer.assignment())
        if not is_ready:
            self._note_wait_in_vain(targets)

    def log_ends(self) -> dict[TopicPartition, int]:
        """Return the ends of all logs of the topics; raises KafkaReadError."""
        return self._logs.offsets(self._logs.partitions(self._options.topics), END)

    def plan(self, limit: int, targets: Mapping[TopicPartition, int] | None = None) -> list[Range]:
        """Return the next ranges of the partitions owned now, at most `limit` offsets in total.

        `targets`: ends that must not be passed, None for none.

        Raises:
            DataLossError: a log ends before its partition's position, and `failOnDataLoss` is set.

        """
        generations, assigned = self._consumer.generation(), self._consumer.assignment()  # in this order
        positions = {tp: at for tp, at in self._consumer.position().items() if tp in assigned}
        self.ends = self._consumer.ends(assigned, ENDS_TIMEOUT_S)
        self._note_silence(assigned)
        self._check_for_loss(positions, PATIENCE_S if targets is None else 0.0)
        wanted = offsets.limited(offsets.unread(positions, self.ends, targets), limit, self._turn)
        self._turn += 1
        advances = self._consumer.advance(wanted, generations)
        origins = self._consumer.origins()
        ranges = [
            Range(*partition, advance.begin, wanted[partition], advance.generation, *origins[partition])
            for partition, advance in sorted(advances.items())
            if advance.begin < wanted[partition]
        ]
        self._is_refused = bool(wanted) and not ranges
        self._record("batch_planned", ranges)
        return ranges

    def _note_silence(self, assigned: Sequence[TopicPartition]) -> None:
        """Warn that Kafka does not report the ends of logs, of which only what `targets` demand is read; once."""
        silent = [partition for partition in assigned if partition not in self.ends]
        if silent and not self._is_silent:
            _log.warning(
                "Kafka at %s does not report the ends of %s partitions, such as %s/%s: only targets are read",
                self._options.bootstrap,
                len(silent),
                *silent[0],
            )
        self._is_silent = bool(silent)

    def plan_rest(self, limit: int, targets: Mapping[TopicPartition, int]) -> list[Range]:
        """Return the next ranges up to `targets`; none only if nothing is left, or others own all partitions.

        Raises:
            RebalancerError: see `wait_assigned` and `plan`.
            KafkaReadError: Kafka does not say who else uses the group, or partitions move all the time.

        """
        give_up_s, is_last = time.monotonic() + ASSIGNMENT_TIMEOUT_S, False
        while True:
            self.wait_assigned(targets)
            ranges = self.plan(limit, targets)
            is_gone = self._had_partitions and not self._consumer.assignment()
            if ranges or not (self._is_refused or is_gone):
                return ranges
            if is_last:
                text = f"Kafka at {self._options.bootstrap} does not say who else uses group {self._options.group}"
                raise KafkaReadError(f"nothing could be planned: {text}, or its partitions move all the time")
            is_last = time.monotonic() >= give_up_s
            self.poll(POLL_INTERVAL_S)  # the lease ended, or partitions are stopped, since the wait; or Kafka is asked

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

    def _is_ready(self, targets: Mapping[TopicPartition, int] | None) -> bool:
        return bool(self._consumer.assignment()) and self._consumer.has_lease() and not self._unplaced(targets)

    def _unplaced(self, targets: Mapping[TopicPartition, int] | None) -> list[TopicPartition]:
        """Return the partitions with something to read whose beginnings are not known."""
        wanted = [tp for tp in self._consumer.assignment() if targets is None or targets.get(tp, 0) > 0]
        positions = self._consumer.position()
        return [partition for partition in wanted if partition not in positions]

    def _note_wait_in_vain(self, targets: Mapping[TopicPartition, int] | None) -> None:
        """Raise if the query would end with records left; it may end if others own all partitions."""
        group, waited_s = self._options.group, ASSIGNMENT_TIMEOUT_S
        if not self._consumer.has_lease():
            raise ZooKeeperUnavailableError(f"the query has had no lease in group {group} for {waited_s:g} s")
        for topic, number in self._unplaced(targets)[:1]:
            text = f"where it begins is not known after {waited_s:g} s; the log says what Kafka or ZooKeeper refuses"
            raise KafkaReadError(f"{topic}/{number}: {text}")
        if not self._had_partitions:
            _log.warning("group %s assigned no partition to this query within %g s", group, waited_s)

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
