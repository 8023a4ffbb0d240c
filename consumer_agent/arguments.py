"""Checks of the arguments of a consumer's methods; an error names the argument and what is allowed. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping

from consumer_agent.config import ConsumerConfig, max_records_fault, waits
from consumer_agent.records import Record
from consumer_agent.runtime.record_buffer import Finished
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.errors import ConfigurationError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.registration import MAX_THREADS

MAX_OFFSET = 2**63 - 1
MAX_PARTITION = 2**31 - 1
NO_COROUTINES = "may not be a coroutine function, which nothing would await: use AsyncConsumer"
MAX_TIMEOUT_S = 1e9  # thirty years; longer waits overflow some clocks


def check_config(config: object) -> None:
    """Require a configuration, or None."""
    if config is not None and not isinstance(config, ConsumerConfig):
        text = f"a ConsumerConfig is expected, or settings by name (group=…), not {type(config).__name__}"
        raise ConfigurationError(text)


def check_timeout(method: str, timeout_s: object, *, may_be_none: bool = False) -> None:
    """Require a number of seconds, or None where that is allowed."""
    if timeout_s is None and may_be_none:
        return
    is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if not is_number or not 0 <= timeout_s <= MAX_TIMEOUT_S:  # type: ignore[operator]  # it is a number
        limits = f"a number of seconds, 0 to {MAX_TIMEOUT_S:.0f}{', or None' if may_be_none else ''}"
        raise ConfigurationError(f"{method}: timeout_s must be {limits}, not {timeout_s!r:.80}")


def check_finish(finish: object, config: ConsumerConfig) -> None:
    """Require a choice for the last records, or None; only automatic commits store them at the end."""
    if finish is not None and not isinstance(finish, bool):
        raise ConfigurationError(f"close: finish must be True, False or None, not {finish!r:.80}")
    if finish and not config.enable_auto_commit:
        raise ConfigurationError("close: finish=True needs enable_auto_commit; call commit() before close() instead")


def check_max_records(max_records: object) -> None:
    """Require a limit for a poll; None means the configured one, 0 no records."""
    is_zero = type(max_records) is int and max_records == 0
    fault = None if max_records is None or is_zero else max_records_fault(max_records)
    if fault is not None:
        raise ConfigurationError(f"poll: max_records {fault}")


def check_callbacks(method: str, callbacks: Mapping[str, object], *, may_wait: bool) -> None:
    """Require callables, or None; coroutine functions only if they `may_wait`."""
    for name, callback in callbacks.items():
        if callback is not None and not isinstance(callback, Callable):  # type: ignore[arg-type]  # it is a protocol
            raise ConfigurationError(f"{method}: {name} must be callable, not {callback!r:.80}")
        if not may_wait and waits(callback):
            raise ConfigurationError(f"{method}: {name} {NO_COROUTINES}")


def check_run(handler: object, threads: object) -> None:
    """Require a callable and a number of threads."""
    if not isinstance(handler, Callable):  # type: ignore[arg-type]  # it is a protocol
        raise ConfigurationError(f"run: handler must be callable, not {handler!r:.80}")
    if waits(handler):
        raise ConfigurationError(f"run: handler {NO_COROUTINES}")
    if type(threads) is not int or not 1 <= threads <= MAX_THREADS:
        raise ConfigurationError(f"run: threads must be 1 to {MAX_THREADS}, not {threads!r:.80}")


def require_answer(answer: object) -> None:
    """Require that a function of the application has run: calling a coroutine function only returns a coroutine."""
    if inspect.iscoroutine(answer):
        name = answer.__qualname__
        answer.close()  # Python would warn that nothing has awaited it
        raise ConfigurationError(f"{name} {NO_COROUTINES}")


def checked_partitions(method: str, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
    """Require (topic, partition) pairs."""
    if not isinstance(partitions, Iterable):
        raise ConfigurationError(f"{method}: partitions must be a list of (topic, partition), not {partitions!r:.80}")
    checked = set()
    for pair in partitions:
        is_pair = isinstance(pair, tuple) and len(pair) == 2
        if not is_pair or not isinstance(pair[0], str) or type(pair[1]) is not int:
            raise ConfigurationError(f"{method}: a partition must be (topic, partition), not {pair!r:.80}")
        if not (0 <= pair[1] <= MAX_PARTITION and paths.is_legal_topic(pair[0])):
            raise ConfigurationError(f"{method}: Kafka allows no partition {pair!r:.80}")
        checked.add((pair[0], pair[1]))
    return checked


def checked_positions(method: str, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Require (topic, partition) -> offset."""
    if not isinstance(positions, Mapping):
        raise ConfigurationError(f"{method}: positions must map (topic, partition) to an offset, not {positions!r:.80}")
    checked_partitions(method, positions)
    for partition, offset in positions.items():
        if type(offset) is not int or not 0 <= offset <= MAX_OFFSET:
            text = f"the offset of {partition} must be 0 to {MAX_OFFSET}, not {offset!r:.80}"
            raise ConfigurationError(f"{method}: {text}")
    return dict(positions)


def checked_times(method: str, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Require (topic, partition) -> milliseconds since the epoch."""
    if not isinstance(times, Mapping):
        raise ConfigurationError(f"{method}: times must map (topic, partition) to milliseconds, not {times!r:.80}")
    checked_partitions(method, times)
    for partition, at_ms in times.items():
        if type(at_ms) is not int or not 0 <= at_ms <= MAX_OFFSET:
            text = f"the time of {partition} must be in milliseconds since the epoch, not {at_ms!r:.80}"
            raise ConfigurationError(f"{method}: {text}")
    return dict(times)


def check_topic(method: str, topic: object) -> None:
    """Require the name of a topic; InvalidNameError if Kafka allows no such name."""
    if not isinstance(topic, str):
        raise ConfigurationError(f"{method}: a topic must be a string, not {topic!r:.80}")
    paths.validate_name("topic", topic, paths.MAX_TOPIC_LENGTH)


def checked_commit(what: object) -> dict[TopicPartition, Finished] | None:
    """Require a record, or (topic, partition) -> next offset, or None; return it as next offsets."""
    return None if what is None else checked_finished("commit", what)


def checked_finished(method: str, what: object) -> dict[TopicPartition, Finished]:
    """Require a record, or (topic, partition) -> next offset; return it as next offsets."""
    if isinstance(what, Record):
        return {(what.topic, what.partition): Finished(what.offset + 1, what.generation)}
    if not isinstance(what, Mapping):
        wanted = "a record, or a mapping of (topic, partition) to the next offset"
        raise ConfigurationError(f"{method}: {wanted} is expected, not {what!r:.80}")
    return {partition: Finished(offset) for partition, offset in checked_positions(method, what).items()}
