"""A consumer's waiting methods, as generators that do not wait themselves.

A generator yields the next step and returns the method's result. `Consumer` performs the steps in its thread,
`AsyncConsumer` in its event loop; what a step raises is thrown into the generator.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from consumer_agent import arguments
from consumer_agent.errors import CommitTimeoutError, ConsumerStateError
from consumer_agent.records import Batch, Record
from consumer_agent.runtime.frontend import Committable, Frontend
from consumer_agent.runtime.moving import stay_at
from consumer_agent.runtime.notices import Notice
from consumer_agent.runtime.record_buffer import Run
from zkrebalancer.protocol.fields import TopicPartition


class Callback(NamedTuple):
    """Call the application; what it returns may have to be awaited."""

    call: Callable[[], object]


class Wait(NamedTuple):
    """Wait until `shared.changed` was notified more often than `changes` times, or until the deadline; inf: none."""

    changes: int
    deadline_s: float


class Block(NamedTuple):
    """Call something that blocks but does not need the application's thread."""

    call: Callable[[], object]


class Turn(NamedTuple):
    """Let other tasks run if polls have kept the thread busy."""


TURN = Turn()

Step = Callback | Wait | Block | Turn
T = TypeVar("T")
Steps = Generator[Step, None, T]


def poll(frontend: Frontend, timeout_s: float | None, max_records: int | None) -> Steps[Batch]:
    """Return records as soon as there are any, or none after the timeout (None: wait without limit)."""
    arguments.check_timeout("poll", timeout_s, may_be_none=True)
    arguments.check_max_records(max_records)
    limit = frontend.config.max_poll_records if max_records is None else max_records
    frontend.require_usable("poll")
    deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    try:
        frontend.begin_poll(is_look=limit == 0)
        if frontend.machine_thread is None:
            yield from _start(frontend)
        changed = frontend.shared.changed
        yield TURN
        frontend.draw(limit)
        while True:
            with changed.lock:
                changes, found = changed.changes, frontend.next(limit)
            is_over = frontend.is_closed or time.monotonic() >= deadline_s
            if isinstance(found, Notice):
                yield from run_notice(frontend, found)
            elif not (found or is_over):
                yield Wait(changes, deadline_s)
                if changed.changes == changes and time.monotonic() >= deadline_s:
                    return found  # nothing has come, or it would have been notified; the fetcher has waited for records
            elif found and frontend.decoder:
                frontend.shared.go()  # a deserializer may hang as the application may
                try:
                    frontend.begin_decoding()
                    batch = Batch((yield from decoded(frontend, found.runs)).batch.runs, frontend.loops)
                finally:
                    frontend.end_decoding()
                frontend.shared.come()
                if batch or is_over:
                    return batch
                frontend.shared.taken = None  # all were skipped
            else:
                return found
            frontend.draw(limit)
    finally:
        frontend.end_poll()


class Decoded(NamedTuple):
    """Records with deserialized keys and values, and by partition, the offset after them and after what was skipped."""

    batch: Batch
    ends: dict[TopicPartition, int]


def decoded(frontend: Frontend, runs: Sequence[Run]) -> Steps[Decoded]:
    """Deserialize records. Skip those that the application wants to skip; any other bad one ends its partition's."""
    kept: list[Run] = []
    ends: dict[TopicPartition, int] = {}
    decoder = frontend.decoder
    for run in runs:
        messages: list[Any] = []
        ends[run.topic, run.partition] = run.messages[-1].offset() + 1
        for message in run.messages:
            error = decoder.decode(run, message)
            if error is None:
                messages.append(message)
            elif decoder.on_error is None:
                ends[error.partition] = error.offset
                stay_at(frontend, error)
                break
            else:
                frontend.shared.count("undecodable_records_total")
                yield Callback(partial(decoder.on_error, error))
        if messages:
            kept.append(run._replace(messages=messages))
    return Decoded(Batch(kept), ends)


def _start(frontend: Frontend) -> Steps[None]:
    """Start the consumer's threads with its first poll."""
    if frontend.starts_slowly:
        yield Block(frontend.start)
    else:
        frontend.start()


def poll_batch(frontend: Frontend, timeout_s: float | None, max_records: int | None = None) -> Steps[Batch | None]:
    """Return records as `poll`, None if there are none after the timeout."""
    batch = yield from poll(frontend, timeout_s, max_records)
    return batch or None  # tested here: an interrupt of the test after the return would lose the batch


def poll_record(frontend: Frontend, timeout_s: float) -> Steps[Record | None]:
    """Return one record, None if there is none after the timeout."""
    batch = yield from poll(frontend, timeout_s, 1)
    return batch[0] if batch else None


def commit(frontend: Frontend, what: Committable, timeout_s: float) -> Steps[None]:
    """Commit finished records, and wait for the outcome."""
    arguments.check_timeout("commit", timeout_s)
    token = frontend.begin_commit(what)
    shared = frontend.shared
    try:
        is_over = yield from until(frontend, lambda: shared.has_commit(token), time.monotonic() + timeout_s)
        if not frontend.in_callback:
            frontend.may_work = True
            yield from _run_notices(frontend, in_batch=True)
    finally:
        error = shared.take_commit(token)
    if not is_over:
        raise CommitTimeoutError(f"the commit is not confirmed after {timeout_s:g} s")
    if error is not None:
        raise error


def committed(
    frontend: Frontend, partitions: Iterable[TopicPartition] | None, timeout_s: float
) -> Steps[dict[TopicPartition, int | None]]:
    """Return the stored offsets."""
    arguments.check_timeout("committed", timeout_s)
    shared, token = frontend.shared, frontend.begin_to_ask(partitions)
    try:
        is_over = yield from until(frontend, lambda: shared.has_stored(token), time.monotonic() + timeout_s)
    finally:
        offsets, error = shared.take_stored(token)
    if not is_over:
        raise CommitTimeoutError(f"the stored offsets are not known after {timeout_s:g} s")
    if error is not None:
        raise ConsumerStateError(f"committed: {error}")
    return dict(offsets)


def unsubscribe(frontend: Frontend, timeout_s: float) -> Steps[None]:
    """Leave the group so that `subscribe` may follow."""
    arguments.check_timeout("unsubscribe", timeout_s)
    frontend.require_usable("unsubscribe")
    try:
        if frontend.machine_thread is not None:
            yield from _leave(frontend, time.monotonic() + timeout_s, finish=None)
    finally:
        frontend.unsubscribe()


def close(frontend: Frontend, timeout_s: float, *, finish: bool | None = None) -> Steps[None]:
    """Leave the group for good."""
    arguments.check_timeout("close", timeout_s)
    arguments.check_finish(finish, frontend.config)
    if frontend.begin_closing():
        deadline_s = time.monotonic() + timeout_s
        try:
            yield from until(frontend, lambda: not frontend.in_callback, deadline_s)  # of another thread or task
            yield from _leave(frontend, deadline_s, finish=finish)
        finally:
            frontend.end_leaving()


def run_notice(frontend: Frontend, notice: Notice) -> Steps[None]:
    """Run the callback of a notice."""
    callback = frontend.callback(notice)
    try:
        if callback is not None:
            frontend.in_callback = notice.is_begun = True
            frontend.begin_calling()
            yield Callback(callback)
    except BaseException:
        _end_callback(frontend, notice)
        raise
    _end_callback(frontend, notice)


def _end_callback(frontend: Frontend, notice: Notice) -> None:
    frontend.end_calling()
    frontend.in_callback = False
    frontend.called_back(notice)


def _leave(frontend: Frontend, deadline_s: float, *, finish: bool | None) -> Steps[None]:
    frontend.begin_leaving(finish=finish)
    end = Block(lambda: frontend.end(deadline_s))
    try:
        yield from _run_last_notices(frontend, deadline_s)
    except GeneratorExit:
        raise  # an interrupt between two steps has dropped this generator, which may yield no more: close again
    except BaseException:
        yield end
        raise
    yield end
    yield from _run_notices(frontend)  # of commits that could not be stored


def _run_last_notices(frontend: Frontend, deadline_s: float) -> Steps[None]:
    """Run callbacks until the group is left; if one raises, raise that after all others have run."""
    shared = frontend.shared
    try:
        while not shared.is_closed and time.monotonic() < deadline_s:
            yield from _run_notices(frontend)
            yield from until(frontend, lambda: shared.is_closed or shared.has_notice, deadline_s)
        yield from _run_notices(frontend)
    except Exception as first:
        try:
            yield from _run_last_notices(frontend, deadline_s)
        except Exception as second:
            second.__context__ = first  # a generator does not chain what is thrown into it
            raise
        raise


def _run_notices(frontend: Frontend, *, in_batch: bool = False) -> Steps[None]:
    """Run the callbacks that are due; `in_batch`: no `on_revoke` of partitions whose returned records are not finished.

    The application may work on these: once that has run, others get the partitions.
    """
    shared = frontend.shared
    while True:
        with shared.lock:
            revoking = shared.revoking if in_batch else set()
            marks = shared.buffer.positions() if revoking else {}
            is_early = any(mark.is_unfinished for tp, mark in marks.items() if tp in revoking)
            notice = None if is_early else shared.next_notice()
        if notice is None:
            return
        yield from run_notice(frontend, notice)


def until(frontend: Frontend, is_so: Callable[[], bool], deadline_s: float) -> Steps[bool]:
    """Wait until `is_so` holds, at most until the deadline; return whether it does."""
    changed = frontend.shared.changed
    while True:
        with changed.lock:
            if is_so():
                return True
            changes = changed.changes
        if time.monotonic() >= deadline_s:
            return False
        yield Wait(changes, deadline_s)
