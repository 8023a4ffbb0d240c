"""The streaming reader: answers Spark's calls from the query's membership in the group.

Spark runs the reader in a Python process beside the driver and calls one method at a time: `latestOffset`; after the
answer is in its checkpoint, `commit` of the batch before and `partitions`; then `read` in executors. Spark never
reports that a batch has finished; but when it calls `latestOffset` with a batch's end as the start, that batch is in
the sink.

Executors and planners get pickled copies of the reader, which never join the group.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from zkrebalancer.pipeline.source import offsets
from zkrebalancer.pipeline.source.columns import range_batch, record_batch
from zkrebalancer.pipeline.source.incarnations import still_there
from zkrebalancer.pipeline.source.kafka import client_settings
from zkrebalancer.pipeline.source.membership import Membership, stop_timeout_ms
from zkrebalancer.pipeline.source.offsets import Document, Range
from zkrebalancer.pipeline.source.options import MAX_OFFSETS, Options
from zkrebalancer.pipeline.source.pace import FIRST_OFFSETS, Pace
from zkrebalancer.pipeline.source.reading import RangeReader
from zkrebalancer.protocol.errors import ConfigurationError
from zkrebalancer.protocol.fields import TopicPartition

IDLE_WAIT_S = 0.025  # Spark calls again at once if there was nothing to read

_log = logging.getLogger(__name__)


class RangesPartition(InputPartition):
    """The ranges that one task reads."""

    def __init__(self, ranges: list[Range]) -> None:
        """Store the ranges."""
        super().__init__(None)
        self.ranges = ranges


class ConsumerGroupStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the partitions that the group assigns to this query."""

    def __init__(self, options: Options) -> None:
        """Store the options; the group is joined when Spark asks for the first batch."""
        self._options = options
        self._member: Membership | None = None
        self._planned: list[Range] = []  # of the batch in flight
        self._targets: dict[TopicPartition, int] | None = None  # the ends of an availableNow query
        limit = options.max_offsets_per_trigger
        self._pace = Pace(stop_timeout_ms(options) / 1_000, FIRST_OFFSETS if limit == MAX_OFFSETS else limit)
        self._is_told = False  # that no size of a batch ends it well within the limit

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # here and below Spark's names
        """Return `maxOffsetsPerTrigger`."""
        return ReadMaxRows(self._options.max_offsets_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Wait for partitions, and set the present ends of the logs as the end of the query."""
        member = self._joined()
        member.wait_assigned()
        self._targets = member.log_ends()

    def initialOffset(self) -> Document:  # noqa: N802
        """Return an empty offset: the begins of partitions are unknown until they are owned."""
        return {}

    def latestOffset(self, start: Document, limit: ReadLimit) -> Document:  # noqa: N802
        """Finish the batch that ended at `start` and plan the next one; return its end, or `start` if there is none.

        Raises:
            ConfigurationError: with this trigger, no batch would ever be committed.
            RebalancerError: the agent failed, or records are lost.

        """
        if not isinstance(limit, ReadMaxRows):
            text = "trigger(once=True) never reports that its batch is done; use trigger(availableNow=True)"
            raise ConfigurationError(f"consumer_group: {text}")
        member = self._joined()
        if self._planned:
            if start != offsets.encode(self._planned):
                return offsets.encode(self._planned)  # Spark has not started it
            self._finish()
        member.poll()
        most = min(limit.max_rows, self._pace.limit())
        self._planned = member.plan(most) if self._targets is None else member.plan_rest(most, self._targets)
        if self._planned:
            self._pace.begin(sum(whole.end - whole.begin for whole in self._planned), time.monotonic())
            return offsets.encode(self._planned)
        if self._targets is None:
            member.poll(IDLE_WAIT_S)
        return start

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the ends of the owned partitions' logs."""
        ends = self._member.ends if self._member is not None else {}
        found: dict[str, Any] = {}
        for (topic, partition), end in sorted(ends.items()):
            found.setdefault(topic, {})[str(partition)] = end
        return found or None

    def partitions(self, start: Document, end: Document) -> list[RangesPartition]:
        """Divide a batch into tasks; a batch planned before a restart is read unchanged, whatever is owned now.

        Raises:
            DataLossError: a topic of such a batch was deleted since, and `failOnDataLoss` is set.

        """
        ranges = offsets.decode(end) if start != end else []
        if ranges and end != offsets.encode(self._planned):
            ranges = still_there(self._options, ranges)
        return tasks(self._options, ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the ranges of one task, in an executor."""
        return read_ranges(self._options, partition)

    def commit(self, end: Document) -> None:
        """Finish the batch that ends here, unless that has been done."""
        if self._planned and end == offsets.encode(self._planned):
            self._finish()

    def stop(self) -> None:
        """Leave the group."""
        member, self._member = self._member, None
        if member is not None:
            member.close()

    def _finish(self) -> None:
        planned, self._planned = self._planned, []
        if self._member is not None:
            self._member.finish(planned)
            self._pace.end(time.monotonic())
            self._note_length()

    def _note_length(self) -> None:
        """Warn once that batches are long whatever their size."""
        if self._pace.is_too_long and not self._is_told:
            self._is_told = True
            _log.warning(
                "a batch takes %.0f s whatever its size, and other members wait %g s for it: a rebalance may evict "
                "this query; shorten the interval of its trigger, or raise stopTimeoutMs",
                self._pace.constant_s,
                stop_timeout_ms(self._options) / 1_000,
            )

    def _joined(self) -> Membership:
        if self._member is None:
            _leave_on_sigterm()
            self._member = Membership(self._options)
            self._member.poll()
        return self._member


def tasks(options: Options, ranges: list[Range]) -> list[RangesPartition]:
    """Divide the ranges of a batch into tasks; with `rows=ranges`, one task names all of them."""
    divided = [ranges] if options.gives_ranges and ranges else offsets.split(ranges, options.task_count)
    return [RangesPartition(task) for task in divided]


def read_ranges(options: Options, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the records of a task's ranges as Arrow batches; with `rows=ranges`, the ranges themselves."""
    if not isinstance(partition, RangesPartition):
        return
    if options.gives_ranges:
        yield range_batch(partition.ranges)
    else:
        reader = RangeReader(client_settings(options), partition.ranges, fail_on_data_loss=options.fail_on_data_loss)
        for whole, messages in reader.read():
            yield record_batch(whole, messages, options.include_headers)


def _leave_on_sigterm() -> None:
    """Make SIGTERM, with which Spark ends this process, exit normally so that Spark's worker calls `stop`."""

    def leave(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(0)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, leave)
