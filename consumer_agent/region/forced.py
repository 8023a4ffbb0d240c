"""A region of unmodified Kafka clients: every move of a partition resets all members to the last checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Self

import confluent_kafka
from confluent_kafka import Message

from consumer_agent.config import MAX_POLL_RECORDS, ConsumerConfig, integer
from consumer_agent.region.classic_source import ClassicSource
from consumer_agent.region.joining import DEFAULT_RESET_S, checked_every, checked_reset_ms
from consumer_agent.region.own_state import FORCED, Checkpoint, checked_handlers
from consumer_agent.region.rounds import Rounds
from consumer_agent.region.session import RegionSession
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.errors import ConfigurationError
from zkrebalancer.region.documents import Settings
from zkrebalancer.region.limits import least_poll_interval_ms, merge_wait_ms, piece_bytes
from zkrebalancer.runtime.zk import request_limit

DEFAULT_POLL_RECORDS = 500
SESSION_TIMEOUT_MS = 10_000


class ForcedRegion:
    """Keeps the states of the members of a classic group consistent, each with a client of confluent-kafka.

    A coordinator has to run, which orders checkpoints and resets; Kafka assigns the partitions, with an eager assignor.
    The client must not be subscribed yet, nor commit by itself (`enable.auto.commit=False`). A partition of which the
    group has no offset begins with its earliest record; set `auto.offset.reset=earliest`, as Kafka may delete the next.
    """

    def __init__(
        self,
        client: confluent_kafka.Consumer,
        topics: Sequence[str],
        *,
        zookeeper: str,
        group: str,
        name: str,
        member: str,
        on_checkpoint: Callable[[Checkpoint], object],
        on_reset: Callable[[Checkpoint | None], object],
        on_retire: Callable[[Checkpoint], object] | None = None,
        every_s: float = 10.0,
        reset_s: float = DEFAULT_RESET_S,
        max_poll_records: int = DEFAULT_POLL_RECORDS,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
    ) -> None:
        """Make the client a member of the region `name`; `group`: its `group.id`. See `ConsistentRegion`.

        Raises:
            ConfigurationError, InvalidNameError: an argument is not allowed.

        """
        if not isinstance(client, confluent_kafka.Consumer):
            raise ConfigurationError(f"client: a confluent_kafka.Consumer is expected, not {type(client).__name__}")
        handlers = checked_handlers(FORCED, on_checkpoint, on_reset, on_retire)
        if handlers is None:
            raise AssertionError("a forced region has handlers")
        fault = integer(1, MAX_POLL_RECORDS)(max_poll_records)
        if fault is not None:
            raise ConfigurationError(f"max_poll_records: {fault}")
        names = _checked_topics(topics)
        known = ConsumerConfig.from_settings(
            {"zookeeper": zookeeper, "bootstrap": "none:1", "group": group, "session_timeout_ms": session_timeout_ms}
        )
        every_ms, reset_ms = int(1_000 * checked_every(every_s)), checked_reset_ms(reset_s)
        paths.validate_name("member", member)
        settings = Settings(paths.validate_name("region", name), FORCED, every_ms, reset_ms)
        session = RegionSession(
            known.zookeeper,
            known.zookeeper_security,
            known.session_timeout_ms,
            paths.region(group, "order"),
            call_timeout_s=merge_wait_ms(reset_ms, least_poll_interval_ms(reset_ms, reset_ms)) / 1_000,
        )
        limit = piece_bytes(request_limit(known.zookeeper, known.zookeeper_security).max_bytes)
        source = ClassicSource(client, names, max_poll_records)
        self._rounds = Rounds(group, member, settings, source, handlers, session, limit)

    def __iter__(self) -> Iterator[list[Message]]:
        """Return batches of messages, until `stop` or `close`; the next request shows that one is processed."""
        yield from self._rounds.batches()

    def checkpoint(self, timeout_s: float = DEFAULT_RESET_S) -> bytes:
        """See `ConsistentRegion.checkpoint`."""
        return self._rounds.checkpoint(timeout_s)

    def reset(self, data: bytes | None, timeout_s: float = DEFAULT_RESET_S) -> None:
        """See `ConsistentRegion.reset`."""
        self._rounds.reset(data, timeout_s)

    def metrics(self) -> dict[str, float]:
        """Return figures of the region by name."""
        return self._rounds.metrics()

    def stop(self) -> None:
        """See `ConsistentRegion.stop`."""
        self._rounds.stop()

    def close(self) -> None:
        """Leave the group, after a last checkpoint, unless the iteration was left within a batch."""
        self._rounds.close(is_clean=True)

    def __enter__(self) -> Self:
        """Return the region."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; after an exception, without storing the state of the application."""
        self._rounds.close(is_clean=error is None)


def _checked_topics(topics: object) -> list[str]:
    names = [] if isinstance(topics, str) or not isinstance(topics, Iterable) else list(topics)
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigurationError(f"topics must be a list of names, not {topics!r:.80}")
    return names
