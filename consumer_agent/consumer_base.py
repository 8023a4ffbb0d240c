"""What a consumer offers that does not wait: the same for threads and for asyncio."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Unpack

from consumer_agent import arguments
from consumer_agent import config as configuration
from consumer_agent.config import ConsumerConfig, ConsumerSettings
from consumer_agent.runtime.frontend import Callback, CommitCallback, Committable, Frontend, log_failed_commit
from consumer_agent.runtime.shared_state import Tell
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.registration import WHITE_LIST


class ConsumerBase:
    """Subscription, positions and numbers of one consumer."""

    _begins_paused: ClassVar = False  # its partitions: see `consumer_agent.spark`

    def __init__(self, config: ConsumerConfig | None = None, /, **settings: Unpack[ConsumerSettings]) -> None:
        """Check the configuration; nothing is connected before the first poll.

        Raises:
            ConfigurationError: settings are unknown, missing or not allowed; all are named.

        """
        self._frontend = Frontend(config, settings, begins_paused=self._begins_paused)

    # ---- what to read

    def subscribe(
        self,
        topics: Iterable[str] | Mapping[str, int] | None = None,
        *,
        pattern: str | None = None,
        pattern_type: str = WHITE_LIST,
        on_assign: Callback | None = None,
        on_revoke: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Say which topics to read: names, names with numbers of threads, or a pattern.

        Again, also while running, it changes what is read and who is called. What it goes on to read it keeps, and
        records of the rest are returned until it is revoked.

        The callbacks get a sorted list of (topic, partition) and run in this thread, within poll, commit and close:
        `on_assign` before the first record of the partitions (it may seek), `on_revoke` when they are to be given up
        (it may commit), `on_lost` when they are gone already.

        Raises:
            ConfigurationError, InvalidNameError, PatternError: what was asked for is not allowed.
            ConsumerStateError: closed.

        """
        wanted = configuration.subscription(topics, pattern, pattern_type)
        callbacks = {Tell.ASSIGNED: on_assign, Tell.REVOKE: on_revoke, Tell.LOST: on_lost}
        self._frontend.subscribe(wanted, callbacks)

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions whose records are returned at present, paused ones included, sorted."""
        shared = self._frontend.own_state("assignment")
        with shared.lock:
            return shared.buffer.emitting()

    def position(self) -> dict[TopicPartition, int]:
        """Return the next offset that each partition will return; those without a place (`NoOffsetError`) have none."""
        positions = self._frontend.own_state("position").positions()
        return {partition: position.returned for partition, position in positions.items() if position.returned >= 0}

    def generation(self) -> dict[TopicPartition, int]:
        """Return each partition's fencing token: the generation in which it was started, as its records have it."""
        shared = self._frontend.own_state("generation")
        with shared.lock:
            return shared.buffer.generations()

    def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        """Go on from these offsets: `{("orders", 0): 42}`. What was fetched already is dropped, and commits follow.

        Allowed from a partition's `on_assign` on until its `on_revoke` or `on_lost`; all are moved, or none.
        One that was lost since this poll began, or the last one, is passed over: `on_lost` follows.

        Raises:
            ConfigurationError: not a mapping of (topic, partition) to offsets.
            ConsumerStateError: one of the partitions is not assigned to this consumer.

        """
        self._frontend.seek(positions)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return nothing of these partitions until `resume`; they stay this consumer's own, and use no memory.

        A partition that is given up is not paused when it comes again. Errors as with `seek`.
        """
        self._frontend.pause(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Go on with paused partitions where they were. Errors as with `seek`."""
        self._frontend.resume(partitions)

    def paused(self) -> list[TopicPartition]:
        """Return the paused partitions, sorted."""
        shared = self._frontend.own_state("paused")
        with shared.lock:
            return shared.buffer.paused()

    def metrics(self) -> dict[str, float]:
        """Return numbers by name, with their unit last; those that end in `_total` only grow. From any thread."""
        shared = self._frontend.own_state("metrics")
        with shared.lock:
            return shared.metrics()

    def finish(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Count what was returned below these offsets as finished: `{("orders", 0): 42}`. Nothing waits.

        For `enable_auto_finish=False`, where nothing else is finished. What is finished is stored every
        `auto_commit_interval_ms`, when its partition is given up, and at `close`. Partitions that this consumer does
        not have are passed over. From any thread, and from within callbacks.

        Raises:
            ConfigurationError: not a mapping of (topic, partition) to offsets.

        """
        self._frontend.own_state("finish").finish_below(arguments.checked_positions("finish", offsets))

    def finished(self) -> dict[TopicPartition, int]:
        """Return the offset of each partition below which all is finished; those without a place have none."""
        positions = self._frontend.own_state("finished").positions()
        return {partition: position.finished for partition, position in positions.items() if position.finished >= 0}

    def commit_async(self, what: Committable = None, on_commit: CommitCallback | None = None) -> None:
        """Begin the same as `commit`, and do not wait: `on_commit(error)`, None if it is stored, runs in this thread.

        Within poll, commit or close, in the order of the commits. Without it a failure is logged. Commits that are
        begun while one is written are one together, so that it costs little to begin one for every record.

        Raises:
            CommitFailedError, ConfigurationError, ConsumerStateError: as with `commit`, what is known at once.

        """
        arguments.check_callbacks("commit_async", {"on_commit": on_commit})
        self._frontend.begin_commit(what, log_failed_commit if on_commit is None else on_commit)
