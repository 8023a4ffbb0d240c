"""Checks a group's offsets and members at Kafka's brokers, once, when a consumer starts.

A group of plain Kafka consumers keeps its offsets in Kafka. An agent that stores offsets in ZooKeeper knows nothing of
them, and would read again what they have read. While plain consumers run, both would read every partition.

A partition without an offset in ZooKeeper begins only after Kafka's answer. The others are fetched after the answer, or
once a request has failed: an outage of Kafka must not keep members from acknowledging commands.

The answer is kept. A consumer may live for a year, and Kafka may have forgotten these offsets by then, for example
with their topic. So an answer that is old forbids nothing: Kafka is asked again first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from itertools import islice
from typing import Any, NamedTuple, Protocol

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicCollection

from consumer_agent.errors import ConsumerError, GroupInUseError, KafkaUnavailableError, OffsetsElsewhereError
from consumer_agent.kafka.group_admin import GroupAdmin
from consumer_agent.kafka.offset_store import READ_TIMEOUT_S, error_of
from consumer_agent.runtime.threads import Condition, new_lock, new_reentrant_lock, pause
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime import logs

MAX_NAMES_SHOWN = 3
MAX_PASSED = 100_000  # partitions that were compared; if more come and go, the first are compared again
MIN_PAUSE_S = 5.0  # before Kafka is asked again, if it did not answer and nothing waits for that
MAX_PAUSE_S = 60.0
OVERDUE_S = 30.0  # of an answer: the client could not be made, or hangs
FRESH_S = 5.0  # so long after an answer, it may forbid to begin
RETRY_S = 0.5  # between two looks of `look_once`
OFFSETS_TOPIC = "__consumer_offsets"  # without it, Kafka has no groups
HIDING_ERRORS = frozenset(  # brokers will never say; after any other error, they are asked again
    {
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.INVALID_GROUP_ID,
        KafkaError.UNSUPPORTED_VERSION,
        KafkaError._UNSUPPORTED_FEATURE,  # noqa: SLF001  # its public name
    }
)

_log = logs.named(__name__)

Refuse = Callable[[ConsumerError], None]


class Found(NamedTuple):
    """What Kafka has of the group; `hidden`: what it does not show, and why."""

    members: list[str]  # client ids
    committed: dict[TopicPartition, int]
    hidden: list[tuple[str, str]]


class Silence(NamedTuple):
    """Kafka did not answer."""

    reason: str
    has_groups: bool = True  # False: it does not even have the topic in which it keeps offsets of groups


class Answer(Protocol):
    """Receives the error that forbids partitions to begin, if any, and whether Kafka has answered at all."""

    def __call__(self, error: ConsumerError | None, *, is_known: bool) -> None:
        """Receive the answer."""


class Judge(Protocol):
    """Receives what was found, None without an answer. If it is not `is_fresh`, it forbids nothing."""

    def __call__(self, found: Found | None, *, is_fresh: bool) -> None:
        """Receive it."""


def fault(group: str, found: Found, starting: Mapping[TopicPartition, int | None]) -> ConsumerError | None:
    """Return why partitions may not begin at these offsets in ZooKeeper, or without one (None); None if they may."""
    members, committed = found.members, found.committed
    if members:
        some = ", ".join([*sorted(members)[:MAX_NAMES_SHOWN], *(["…"] if len(members) > MAX_NAMES_SHOWN else [])])
        return GroupInUseError(
            f"group {group} has members of Kafka's own protocol ({some}), which read the same records: stop them first;"
            " Kafka may keep one that was killed, or owned nothing when it closed, until its session expires"
        )
    known = sorted(tp for tp, offset in starting.items() if offset is None and tp in committed)
    if known:
        topic, number = known[0]
        return OffsetsElsewhereError(
            f"group {group} has offsets in Kafka, for example {committed[known[0]]} for {topic}/{number}, and none in"
            " ZooKeeper, where this consumer looks: it would not continue there. Set offsets_storage to dual or kafka;"
            f" or run `zkrebalancer groups offsets import {group} --from kafka`; or, to start over, set"
            " ignore_kafka_offsets to true"
        )
    newer = sorted(tp for tp, offset in starting.items() if offset is not None and committed.get(tp, offset) > offset)
    if newer:
        topic, number = newer[0]
        return OffsetsElsewhereError(
            f"group {group} has newer offsets in Kafka, for example {committed[newer[0]]} for {topic}/{number}, than in"
            f" ZooKeeper ({starting[newer[0]]}), where this consumer looks: it would read these records again. Set"
            f" offsets_storage to dual; or run `zkrebalancer groups offsets import {group} --from kafka`; or, if those"
            " in ZooKeeper are right, import with `--from zookeeper --to kafka`, or set ignore_kafka_offsets to true"
        )
    return None


class LookAtKafka:
    """Keeps what a consumer has found. Callbacks run in librdkafka's thread or in that of the caller."""

    def __init__(self, group: str, settings: Mapping[str, Any], *, reads_offsets: bool) -> None:
        """Prepare; no client exists before the first call. `reads_offsets`: offsets matter, not only members."""
        self._group = group
        self._settings = dict(settings)
        self._reads_offsets = reads_offsets
        self._lock = new_lock()
        self._found: Found | None = None
        self._found_s = 0.0
        self._waiting: list[Judge] = []  # for the answer that is under way
        self._judging_count = 0  # answers whose judges are being called
        self._unchecked: dict[TopicPartition, int] = {}  # offsets in ZooKeeper
        self._passed: dict[TopicPartition, None] = {}  # compared once; comparing them again would show nothing new
        self._is_unchecked = False  # Kafka has not answered since the last check
        self._retry_at_s, self._pause_s = 0.0, MIN_PAUSE_S
        self._asking_until_s = 0.0
        self._silent_since_s: float | None = None
        self._groupless_since_s: float | None = None
        self._reason = ""  # why there is no answer
        self._has_warned = self._has_complained = False
        self._requests: _Requests | None = None  # the last ones
        self._is_closed = False

    def check(self, offsets: Mapping[TopicPartition, int], refuse: Refuse, go_on: Callable[[], None]) -> None:
        """Compare offsets in ZooKeeper with those in Kafka, each partition once, then `refuse` or `go_on`.

        If Kafka does not answer, `go_on` is called, and they are compared once it answers.
        """
        with self._lock:
            self._unchecked.update((tp, offset) for tp, offset in offsets.items() if tp not in self._passed)
            self._is_unchecked = True

        def judge(found: Found | None, *, is_fresh: bool) -> None:
            error = None if found is None else self._fault_of_unchecked(found, is_fresh=is_fresh)
            if error is None:
                go_on()
            elif is_fresh:
                refuse(error)
            else:
                self._when_found(judge, is_anew=True)

        self._when_found(judge)

    def look_after(self, refuse: Refuse) -> None:
        """Ask again if that is due; to be called every few seconds."""
        with self._lock:
            now_s = time.monotonic()
            is_overdue = bool(self._waiting) and now_s >= self._asking_until_s
            is_due = self._is_unchecked and not self._waiting and now_s >= self._retry_at_s
        if is_overdue:
            self._note(Silence("its client hangs, or could not be made"))
        elif is_due:
            self.check({}, refuse, lambda: None)

    def ask(self, starting: Mapping[TopicPartition, int | None], answer: Answer) -> None:
        """Ask whether partitions may begin at these offsets, or without one. If brokers do not answer, ask again."""

        def judge(found: Found | None, *, is_fresh: bool) -> None:
            error = None if found is None else fault(self._group, found, starting)
            if error is not None and not is_fresh:
                self._when_found(judge, is_anew=True)
                return
            self._warn(found)
            answer(error, is_known=found is not None)

        self._when_found(judge)

    @property
    def is_asking(self) -> bool:
        """Whether something waits for Kafka's answer; not once a request has failed: what is stored is read then."""
        is_waiting = bool(self._waiting) and self._silent_since_s is None
        return is_waiting or self._judging_count > 0  # in this order, without a lock: a signal's handler may `close`

    def close(self) -> None:
        """Close the connections without waiting; what waits for an answer gets none."""
        with self._lock:
            self._is_closed, requests, self._requests = True, self._requests, None
        if requests is not None:
            requests.close()

    def _fault_of_unchecked(self, found: Found, *, is_fresh: bool) -> ConsumerError | None:
        with self._lock:
            error = fault(self._group, found, self._unchecked)
            if error is None:
                self._passed.update(dict.fromkeys(self._unchecked))
                self._unchecked = {}
                for partition in list(islice(self._passed, max(0, len(self._passed) - MAX_PASSED))):
                    del self._passed[partition]
            if error is None or is_fresh:  # after a fault, every later check ends in it
                self._is_unchecked = False
        return error

    def _warn(self, found: Found | None) -> None:
        with self._lock:
            hidden: list[tuple[str, str]] = []
            if found is not None:
                hidden, self._has_warned = [] if self._has_warned else found.hidden, True
            since_s, reason = self._silent_since_s, self._reason
            is_long = since_s is not None and time.monotonic() - since_s >= MIN_PAUSE_S
            complains, self._has_complained = is_long and not self._has_complained, is_long
        for what, why in hidden:
            _log.warning(
                "group %s: Kafka does not show its %s there (%s): if plain Kafka consumers used this group, import its"
                " offsets first",
                self._group,
                what,
                why,
            )
        if complains:
            _log.warning(
                "group %s: Kafka does not say whether plain Kafka consumers use this group (%s): partitions wait for"
                " its answer; asking again",
                self._group,
                reason,
            )

    def _when_found(self, judge: Judge, *, is_anew: bool = False) -> None:
        """Call `judge` with what was found, or when Kafka has answered; with `is_anew`, only with a new answer."""
        with self._lock:
            now_s = time.monotonic()
            found = None if is_anew else self._found
            is_fresh = now_s - self._found_s < FRESH_S
            is_asking = now_s < self._asking_until_s
            if found is None:
                self._waiting.append(judge)
                self._asking_until_s = self._asking_until_s if is_asking else now_s + OVERDUE_S
        if found is not None:
            judge(found, is_fresh=is_fresh)
        elif not is_asking:
            self._send()

    def _send(self) -> None:
        requests = _Requests(self._group, self._settings, self._note, reads_offsets=self._reads_offsets)
        with self._lock:
            if self._is_closed:
                return
            before, self._requests = self._requests, requests
        if before is not None:  # it may hang
            before.close()
        try:
            requests.send()
        except KafkaException as error:  # no client can be started now
            self._note(Silence(str(error.args[0].str())))

    def _note(self, answer: Found | Silence) -> None:
        if isinstance(answer, Silence):
            _log.info("group %s: no look at Kafka: %s", self._group, answer.reason)
        with self._lock:
            now_s = time.monotonic()
            self._judging_count += 1  # before nothing waits any more
            found = self._learned(answer, now_s)
            self._asking_until_s = 0.0
            waiting, self._waiting = self._waiting, []
            self._retry_at_s, self._pause_s = now_s + self._pause_s, min(2 * self._pause_s, MAX_PAUSE_S)
        try:
            for judge in waiting:
                judge(found, is_fresh=True)
        finally:
            with self._lock:
                self._judging_count -= 1

    def _learned(self, answer: Found | Silence, now_s: float) -> Found | None:
        """Keep an answer. That Kafka has no groups at all is believed if it stays so: brokers begin with no topics."""
        found = answer if isinstance(answer, Found) else None
        if isinstance(answer, Silence):
            self._reason = answer.reason
            self._silent_since_s = now_s if self._silent_since_s is None else self._silent_since_s
            since_s = now_s if self._groupless_since_s is None else self._groupless_since_s
            self._groupless_since_s = None if answer.has_groups else since_s
            if not answer.has_groups and now_s - since_s >= MIN_PAUSE_S:
                found = Found([], {}, [])
        if found is not None:
            self._found, self._found_s = found, now_s
            self._silent_since_s = self._groupless_since_s = None
        return found


def look_once(
    group: str, settings: Mapping[str, Any], starting: Mapping[TopicPartition, int | None], timeout_s: float
) -> None:
    """Look for consumers that read from these offsets without joining the group, and wait for the answer.

    Raises:
        GroupInUseError, OffsetsElsewhereError: see `fault`.
        KafkaUnavailableError: there is no answer after `timeout_s` seconds.

    """
    look, changed = LookAtKafka(group, settings, reads_offsets=True), Condition(new_reentrant_lock())
    answers: list[tuple[ConsumerError | None, bool]] = []

    def answer(error: ConsumerError | None, *, is_known: bool) -> None:
        with changed.lock:
            answers.append((error, is_known))
            changed.notify()

    give_up_s = time.monotonic() + timeout_s
    try:
        while True:
            look.ask(starting, answer)
            changed.wait_until(lambda: answers, give_up_s - time.monotonic())
            error, is_known = answers.pop() if answers else (None, False)
            if error is not None:
                raise error
            if is_known:
                return
            if time.monotonic() >= give_up_s:
                raise KafkaUnavailableError(f"group {group}: Kafka does not say whether plain Kafka consumers use it")
            pause(RETRY_S)
    finally:
        look.close()


class _Requests:
    """Requests for members and for offsets, with clients of their own; `done` gets what was found."""

    def __init__(
        self, group: str, settings: Mapping[str, Any], done: Callable[[Found | Silence], None], *, reads_offsets: bool
    ) -> None:
        self._group = group
        self._reads_offsets = reads_offsets
        self._done = done
        self._settings = settings
        self._admin = GroupAdmin(settings)
        self._is_closed = False
        self._members: list[str] = []
        self._hidden: list[tuple[str, str]] = []

    def send(self) -> None:
        """Ask for the members, then for offsets; raises KafkaException if no client can be made."""
        self._admin.open_aside(lambda: self._ask("describe_consumer_groups", [self._group], self._described))

    def close(self) -> None:
        """Close the connections without waiting; `done` is not called any more."""
        self._is_closed = True
        self._admin.close()

    def _described(self, future: Future[Any]) -> None:
        error = error_of(future)
        if error is None:
            self._members = [member.client_id for member in future.result().members]
        elif not self._is_known_to_be_nothing(error, "members"):
            self._no_answer(error)
            return
        if not self._reads_offsets:
            self._end(Found(self._members, {}, self._hidden))
            return
        request = [ConsumerGroupTopicPartitions(self._group)]
        self._ask("list_consumer_group_offsets", request, self._listed)

    def _listed(self, future: Future[Any]) -> None:
        error = error_of(future)
        committed: dict[TopicPartition, int] = {}
        if error is None:
            listed = future.result().topic_partitions
            committed = {(tp.topic, tp.partition): tp.offset for tp in listed if tp.offset >= 0}
        elif not self._is_known_to_be_nothing(error, "offsets"):
            self._no_answer(error)
            return
        self._end(Found(self._members, committed, self._hidden))

    def _is_known_to_be_nothing(self, error: KafkaError, what: str) -> bool:
        """Whether to go on as if there were nothing: the group is unknown, or brokers will never say."""
        if error.code() in HIDING_ERRORS:
            self._hidden.append((what, error.str()))
        return error.code() in HIDING_ERRORS or error.code() == KafkaError.GROUP_ID_NOT_FOUND

    def _no_answer(self, error: KafkaError) -> None:
        """Ask whether Kafka has groups at all: it may have too few brokers for the topic of their offsets.

        A client that did not answer in time is gone, and the next one may take seconds to make: so this takes another.
        """

        def described(future: Future[Any]) -> None:
            missing = error_of(future)
            has_groups = missing is None or missing.code() != KafkaError.UNKNOWN_TOPIC_OR_PART
            self._end(Silence(error.str(), has_groups))

        self._admin.close()
        self._admin = GroupAdmin(self._settings)
        if self._is_closed:
            return
        try:
            self._admin.open_aside(lambda: self._ask("describe_topics", TopicCollection([OFFSETS_TOPIC]), described))
        except KafkaException:  # no client can be started now
            self._end(Silence(error.str()))

    def _ask(
        self, method: str, what: Sequence[object] | TopicCollection, answered: Callable[[Future[Any]], None]
    ) -> None:
        self._admin.ask(method, what, READ_TIMEOUT_S).add_done_callback(answered)

    def _end(self, answer: Found | Silence) -> None:
        self._admin.close()
        self._done(answer)
