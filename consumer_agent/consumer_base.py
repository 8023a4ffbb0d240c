"""The methods of a consumer that do not wait: the same for threads and for asyncio."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, NoReturn, Unpack

from consumer_agent import arguments
from consumer_agent import config as configuration
from consumer_agent.config import ConsumerConfig, ConsumerSettings
from consumer_agent.errors import CommitFailedError, ConsumerStateError
from consumer_agent.membership.duties import NO_DUTIES, Duties
from consumer_agent.records import Record
from consumer_agent.runtime import moving, threads
from consumer_agent.runtime.frontend import Callback, CommitCallback, Committable, Frontend
from consumer_agent.runtime.notices import Tell
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.registration import WHITE_LIST
from zkrebalancer.runtime import logs

_log = logs.named(__name__)


class ConsumerBase:
    """Subscription, positions and metrics of one consumer."""

    _begins_paused: ClassVar = False  # its partitions: see `consumer_agent.spark`
    _duties: ClassVar = NO_DUTIES
    _awaits_callbacks: ClassVar = False

    def __init__(self, config: ConsumerConfig | None = None, /, **settings: Unpack[ConsumerSettings]) -> None:
        """Check the configuration; nothing is connected before the first poll.

        Raises:
            ConfigurationError: settings are unknown, missing or not allowed; all are named.

        """
        self._frontend = Frontend(config, settings, self._who, begins_paused=self._begins_paused)
        self._frontend.duties = self._duties
        self._subscribed: tuple[configuration.Subscription, dict[Tell, Callback | None]] | None = None
        self._hooks: Mapping[Tell, Callback] = {}  # of a region, called before the application's callbacks

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        """Refuse copies, which would share threads and connections, and pickling for another process."""
        raise TypeError(f"{type(self).__name__} cannot be pickled or copied: make one in each process")

    def _join_region(self, config: ConsumerConfig, hooks: Mapping[Tell, Callback]) -> None:
        """Become a part of a `ConsistentRegion`, with another configuration, before the first poll."""
        if self._hooks or self._frontend.machine_thread is not None:
            raise ConsumerStateError("a region needs a consumer that has not polled, and is in no region")
        keeps_copies = not config.enable_auto_commit  # else offsets need none
        duties = Duties(tells_origins=True, in_region=True, keeps_copies=keeps_copies)
        self._frontend.config, self._hooks, self._frontend.duties = config, hooks, duties
        if self._subscribed is not None:
            self._subscribe(*self._subscribed)

    def _subscribe(self, wanted: configuration.Subscription, callbacks: dict[Tell, Callback | None]) -> None:
        both = {tell: _one_after_the_other(self._hooks.get(tell), callback) for tell, callback in callbacks.items()}
        self._frontend.subscribe(wanted, both)
        self._subscribed = wanted, callbacks

    _who = staticmethod(threads.current_greenlet)  # what uses the consumer now

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
        """Set the topics to read: names, names with numbers of threads, or a pattern.

        A later call changes topics and callbacks, even of a running consumer. It keeps the partitions of topics that
        stay; records of the others are returned until they are revoked. Within `run`, topics without a number get
        its threads.

        The callbacks get a sorted list of (topic, partition) and run in this thread, within poll, commit and close:
        `on_assign` before the first record of the partitions (it may seek), `on_revoke` before they are given up (it
        may commit), `on_lost` after they were lost.

        Raises:
            ConfigurationError, InvalidNameError, PatternError: an argument is not allowed.
            ConsumerStateError: closed.

        """
        wanted = configuration.subscription(topics, pattern, pattern_type, self._frontend.run_threads)
        callbacks = {Tell.ASSIGNED: on_assign, Tell.REVOKE: on_revoke, Tell.LOST: on_lost}
        named = {f"on_{tell.value}": callback for tell, callback in callbacks.items()}
        arguments.check_callbacks("subscribe", named, may_wait=self._awaits_callbacks)
        self._subscribe(wanted, callbacks)

    def assignment(self) -> list[TopicPartition]:
        """Return the assigned partitions, paused ones included, sorted."""
        return self._frontend.assigned()

    def position(self) -> dict[TopicPartition, int]:
        """Return the next offset of each partition; partitions without a position (`NoOffsetError`) are left out."""
        marks = self._frontend.marks("position")
        return {partition: mark.returned for partition, mark in marks.items() if mark.returned >= 0}

    def generation(self) -> dict[TopicPartition, int]:
        """Return each partition's fencing token: the generation in which it was started, as in its records."""
        shared = self._frontend.own_state("generation")
        with shared.lock:
            return shared.buffer.generations()

    def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        """Continue from these offsets: `{("orders", 0): 42}`. Records fetched so far are dropped, and commits follow.

        A partition allows this from its `on_assign` until its `on_revoke` or `on_lost`. All partitions are moved, or
        none; a partition that was lost since the last poll began is skipped, and `on_lost` follows. So is one of the
        `assignment` whose `on_assign` is to come.

        Raises:
            ConfigurationError: not a mapping of (topic, partition) to offsets.
            ConsumerStateError: one of the partitions is not assigned to this consumer.

        """
        moving.seek(self._frontend, positions)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these partitions until `resume`; they stay assigned, and fetched records are kept.

        A partition that is given up and started again is not paused; one whose stop is cancelled still is. One of the
        `assignment` whose `on_assign` is to come is skipped, as with `seek`: pause it there. Errors as with `seek`.
        """
        checked, buffer = arguments.checked_partitions("pause", partitions), self._frontend.shared.buffer
        self._frontend.change("pause", checked, buffer.pause)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Continue with paused partitions from their positions. Errors as with `seek`."""
        checked, buffer = arguments.checked_partitions("resume", partitions), self._frontend.shared.buffer
        self._frontend.change("resume", checked, buffer.unpause)

    def paused(self) -> list[TopicPartition]:
        """Return the paused partitions, sorted."""
        known, shared = self._frontend.marks("paused"), self._frontend.shared
        with shared.lock:
            return [partition for partition in shared.buffer.paused() if partition in known]

    def metrics(self) -> dict[str, float]:
        """Return metrics by name, with the unit last; those with `_total` only grow. Any thread may call this."""
        shared = self._frontend.own_state("metrics")
        with shared.lock:
            return shared.metrics()

    def known_lag(self) -> dict[TopicPartition, int]:
        """Return how many records each assigned partition is behind, without waiting. Any thread may call this.

        Partitions whose end is not known are left out, as in `metrics`; `lag` asks Kafka instead. Offsets at the end of
        a partition that have no record, such as transactions' markers, do not count once the fetcher has reached them.
        """
        shared = self._frontend.own_state("known_lag")
        with shared.lock:
            return shared.ends.each(shared.buffer.emitting_positions(), shared.now_ms())

    def finish(self, what: Record | Mapping[TopicPartition, int]) -> None:
        """Mark returned records as finished: up to this record, or below these offsets: `{("orders", 0): 42}`.

        For `enable_auto_finish=False`, where nothing else marks records as finished. Finished offsets are stored every
        `auto_commit_interval_ms`, when a partition is given up, and at `close`. Partitions that are not assigned are
        skipped. So is a record of an earlier assignment of its partition, which an offset does not tell. Any thread may
        call this, and callbacks may. It does not wait.

        Raises:
            ConfigurationError: neither a record nor a mapping of (topic, partition) to offsets.

        """
        self._frontend.own_state("finish").finish_below(arguments.checked_finished("finish", what))

    def finished(self) -> dict[TopicPartition, int]:
        """Return the offset below which each partition is finished; partitions without a position are left out."""
        marks = self._frontend.marks("finished")
        return {partition: mark.finished for partition, mark in marks.items() if mark.finished >= 0}

    def commit_async(self, what: Committable = None, on_commit: CommitCallback | None = None) -> None:
        """Commit without waiting; `on_commit(error)` runs in this thread, with None if the offsets are stored.

        It runs within poll, commit or close, in the order of the commits. Without it, a failure is logged. Commits that
        start while one is being written are merged, so a commit for every record costs little.

        Raises:
            CommitFailedError, ConfigurationError, ConsumerStateError: as with `commit`, if known immediately.
            TooManyCommitsError: 10,000 commits are waiting; nothing was changed.

        """
        arguments.check_callbacks("commit_async", {"on_commit": on_commit}, may_wait=self._awaits_callbacks)
        self._frontend.begin_commit(what, _log_failed_commit if on_commit is None else on_commit)


def _log_failed_commit(error: CommitFailedError | None) -> None:
    """Log a failed commit: the default `on_commit`."""
    if error is not None:
        _log.warning("%s", error)


def _one_after_the_other(first: Callback | None, then: Callback | None) -> Callback | None:
    """Return one callback for both."""
    if first is None or then is None:
        return first or then

    def both(partitions: list[TopicPartition]) -> object:
        first(partitions)
        return then(partitions)

    return both
