"""Requests to the coordinator of a group in Kafka, each with a time limit.

librdkafka's own limit must stay out of reach. If it ends a request while the coordinator is away, and the coordinator
comes back later, librdkafka uses what it has freed and aborts the process (`eonce->refcnt > 0`, librdkafka#4605, up to
2.16 at least). So librdkafka gets the longest limit that it takes, and at ours the client is closed and another one
made: what a closed client has not sent, it never sends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from consumer_agent.kafka.client import AdminMaker, close_aside, made, signals_unwrapped
from consumer_agent.runtime.threads import Condition, Thread, new_lock, new_reentrant_lock
from zkrebalancer.protocol.complaints import Complaints
from zkrebalancer.runtime import logs
from zkrebalancer.runtime.kafka import UNREACHED_S

_TIMED_OUT, _TRANSPORT = KafkaError._TIMED_OUT, KafkaError._TRANSPORT  # noqa: SLF001  # their public names

_log = logs.named(__name__)
_complaints, _complaints_lock = Complaints(), new_lock()  # of all clients of this process


class GroupAdmin:
    """A client for such requests. Methods may be called from any thread; none waits for Kafka."""

    def __init__(self, settings: Mapping[str, Any], group: str = "") -> None:
        """Prepare; `settings` are librdkafka's. `open` or `open_aside` makes the client.

        `group` names it in the log; without a name, the caller tells of requests that are not answered.
        """
        self.group = group
        self._new_client = partial(made, AdminClient, settings)
        self._maker = AdminMaker(self._new_client, settings)
        self._changed = Condition(new_reentrant_lock())  # its lock protects everything below
        self._client: AdminClient | None = None
        self._end_s: dict[Future[Any], float] = {}  # of each request without an answer
        self._watched_until_s: float | None = None  # the watching thread sleeps until then; None: there is no thread
        self._is_closed = False

    def open(self) -> None:
        """Make the client, even if that takes seconds; raises KafkaException if it cannot be made."""
        self._put(self._new_client())

    def open_aside(self, then: Callable[[], None]) -> None:
        """Make the client, in another thread if that takes seconds, and then call `then`.

        Raises:
            KafkaException: it cannot be made. In another thread, that is logged, and `then` is not called.

        """

        def put(new: AdminClient) -> None:
            self._put(new)
            then()

        self._maker.make(put)

    def ask(
        self, method: str, what: Sequence[object] | TopicCollection, timeout_s: float, **options: object
    ) -> Future[Any]:
        """Send a request about one group or topic, by `method` of AdminClient; after `timeout_s` it is _TIMED_OUT.

        Callbacks of the future run in a thread of librdkafka, of this object, or of the caller, and must not wait.
        After `close` there is no answer.
        """
        answer: Future[Any] = Future()
        try:
            with self._changed.lock:
                if self._is_closed:
                    return answer
                if self._client is None:
                    self._maker.make(self._put)
                if self._client is None:
                    raise _unsent("the client is being made")
                end_s = time.monotonic() + timeout_s
                self._watch(end_s)
                with signals_unwrapped():
                    (sent,) = getattr(self._client, method)(what, request_timeout=UNREACHED_S, **options).values()
                self._end_s[answer] = end_s
        except KafkaException as error:
            answer.set_exception(KafkaException(error.args[0]))  # not this one, whose traceback keeps the client open
        else:
            sent.add_done_callback(partial(self._answered, answer))
        return answer

    def close(self) -> None:
        """Close the connections without waiting; requests under way get no answer."""
        with self._changed.lock:
            self._is_closed = True
            self._end_s.clear()
            before = self._taken()
            self._changed.notify()
        close_aside(before)

    def _answered(self, answer: Future[Any], sent: Future[Any]) -> None:
        with self._changed.lock:
            is_awaited = self._end_s.pop(answer, None) is not None
        if is_awaited:
            error = sent.exception()
            if error is None:
                answer.set_result(sent.result())
            else:
                answer.set_exception(error)

    def _taken(self) -> list[AdminClient]:
        """Take the client away, for `close_aside`."""
        before, self._client = [] if self._client is None else [self._client], None
        return before

    def _put(self, new: AdminClient) -> None:
        with self._changed.lock:
            is_wanted = not self._is_closed and self._client is None
            if is_wanted:
                self._client = new
        if not is_wanted:
            before = [new]
            del new
            close_aside(before)

    # ---- the limit

    def _watch(self, end_s: float) -> None:
        """See to it that a thread is awake at `end_s`; raises KafkaException if none can be started."""
        if self._watched_until_s is not None:
            if end_s < self._watched_until_s:
                self._changed.notify()
            return
        try:
            Thread(self._run, "consumer-agent-group-requests").start()
        except RuntimeError as error:
            raise _unsent(f"nothing would limit its time: {error}") from None
        self._watched_until_s = end_s

    def _run(self) -> None:
        """Wait for the first limit, until no request is under way."""
        with self._changed.lock:
            while self._end_s:
                self._watched_until_s = min(self._end_s.values())
                left_s = self._watched_until_s - time.monotonic()
                if left_s <= 0.0:
                    break
                self._changed.wait(left_s)
            self._watched_until_s = None
            late = list(self._end_s)
            self._end_s.clear()
            before = self._taken() if late else []
        if late:
            self._replace(before, late)

    def _replace(self, before: list[AdminClient], late: list[Future[Any]]) -> None:
        """Close a client that did not answer in time. All of its requests end, and nothing is sent after that."""
        close_aside(before)
        for answer in late:
            answer.set_exception(KafkaException(KafkaError(_TIMED_OUT, "the group's coordinator does not answer")))
        self._complain()  # last: a handler of logs may hang

    def _complain(self) -> None:
        if not self.group:
            return
        reason = "its coordinator in Kafka did not answer in time; the client for it is replaced"
        with _complaints_lock:
            text = _complaints.text(self.group, reason, time.monotonic())
        if text is not None:
            _log.warning("group %s: %s", self.group, text)


def _unsent(why: str) -> KafkaException:
    return KafkaException(KafkaError(_TRANSPORT, why))
