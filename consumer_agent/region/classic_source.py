"""An unmodified client of Kafka as a region sees it: an event thread polls, and a queue leads to the application.

Kafka moves partitions without asking, so every move resets all members of the region. An assignment waits, paused,
until the region has placed it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from consumer_agent.errors import ConsumerError, has_stopped
from consumer_agent.runtime.threads import Condition, Thread, new_reentrant_lock
from zkrebalancer.protocol.errors import ConfigurationError, RebalancerError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.region.documents import UNKNOWN
from zkrebalancer.region.limits import BRAKE_S, queue_limit
from zkrebalancer.runtime import logs

TASK_TIMEOUT_S = 30.0
COMMITTED_TIMEOUT_S = 10.0  # below that
END_TIMEOUT_S = 10.0
MAX_QUEUED_BYTES = 32 << 20  # then nothing is fetched for the queue, as in an agent
MESSAGE_OVERHEAD_BYTES = 500  # of a message without a value, about
STALLS = frozenset(  # what somebody has to mend; the client itself logs temporary errors
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError._AUTO_OFFSET_RESET,  # noqa: SLF001  # its public name
    }
)

_log = logs.named(__name__)


class ClassicSource:
    """Reads a client of confluent-kafka. The application's thread calls all methods but those of the event thread."""

    def __init__(self, client: Consumer, topics: list[str], max_poll_records: int) -> None:
        """Prepare; the client subscribes with the first poll."""
        self._client, self._topics, self._max_poll_records = client, topics, max_poll_records
        self._changed = Condition(new_reentrant_lock())  # a signal's handler may ask for `metrics`
        self._queue: deque[Message] = deque()
        self._queued_bytes = 0
        self._tasks: deque[Callable[[], None]] = deque()
        self._flows = False  # whether the application wants records
        self._is_running = True
        self._is_started = False
        self._failure: RebalancerError | None = None
        self._positions: dict[TopicPartition, int] = {}  # of held partitions: after the last processed record
        self._paused: set[TopicPartition] = set()
        self._told: set[tuple[int, str]] = set()  # stalls of topics, since the last assignment
        self._batch: list[Message] = []
        self.arrived: set[TopicPartition] = set()  # assigned, and not placed by the region yet
        self.has_lost = self.was_revoked = False
        self.rebalances = 0
        self._known = 0  # of these, those that the application has seen: the assignment that it places and seeks
        self._thread = Thread(self._run, "consumer-agent-events")

    # ---- the application's thread

    @property
    def consumer(self) -> str | None:
        """None: Kafka's members are not known to the coordinator."""
        return None

    @property
    def has_given_up(self) -> bool:
        """Whether partitions went away since the flags were last taken back; set before they are missing in `held`."""
        return self.has_lost or self.was_revoked

    def held(self) -> dict[TopicPartition, int]:
        """Return the assigned partitions, with the offsets after their last processed records."""
        with self._changed.lock:
            self._known = self.rebalances
            return dict(self._positions)

    def store(self) -> bool:
        """Do nothing: the next owners begin where the last checkpoint says."""
        return True

    def identity(self, _topic: str) -> str:
        """Return "": unknown."""
        return ""

    def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        """Continue from these offsets; queued records are dropped. After another assignment, that has to be placed."""
        wanted = dict(positions)
        self._require_done(lambda: self._assign_at(wanted) if self._known == self.rebalances else None)
        self._batch = []

    def place(self, positions: Mapping[TopicPartition, int]) -> None:
        """Begin with all assigned partitions: at these offsets, or where the group is; not after another assignment."""
        wanted = dict(positions)

        def begin() -> None:
            if self._known == self.rebalances:
                self.arrived.clear()
                self._assign_at(wanted)

        self._require_done(begin)

    def poll(self, timeout_s: float) -> list[Message]:
        """Return queued records, at most `max_poll_records`."""
        self._start()
        self._flows = True
        self._changed.wait_until(lambda: self._queue or self._failure is not None, timeout_s)
        with self._changed.lock:
            self._known = self.rebalances
            count = min(len(self._queue), self._max_poll_records)
            self._batch = list(islice(self._queue, count))
            for _ in range(count):
                self._queued_bytes -= _size(self._queue.popleft())
        self._raise_failure()
        return self._batch

    def poll_nothing(self, timeout_s: float) -> None:
        """Let the event thread look after the group, without records."""
        self._start()
        self._flows = False
        self._changed.wait_for_change(self._changed.changes, timeout_s)
        self._raise_failure()

    def catch_up(self) -> None:
        """Do nothing: no signal's exception interrupts the event thread, which runs the callbacks."""

    def give_back(self) -> None:
        """Return the last batch again."""
        if self._batch:
            self.seek(self.first_offsets(self._batch))

    def first_offsets(self, batch: list[Message]) -> dict[TopicPartition, int]:
        """Return the first offset of each partition in a batch."""
        first: dict[TopicPartition, int] = {}
        for message in batch:
            first.setdefault(_place(message), _offset(message))
        return first

    def finish(self) -> None:
        """Note the offsets of the last batch, as those of the next records."""
        with self._changed.lock:
            for message in self._batch:
                if _place(message) in self._positions:
                    self._positions[_place(message)] = _offset(message) + 1
        self._batch = []  # last: a signal's handler may raise at any point

    def drained(self) -> None:
        """Commit what was processed, for tools that show lag; a reset never begins there, so a failure is logged."""
        offsets = [confluent_kafka.TopicPartition(*tp, at) for tp, at in self.held().items() if at != UNKNOWN]
        if offsets and not self._do(lambda: self._commit(offsets)):
            _log.warning("the offsets of a checkpoint are not committed yet, so tools show more lag")

    def close(self, *, is_clean: bool) -> None:
        """Leave the group."""
        if is_clean:
            self.finish()
        self._is_running = False
        self._thread.join(END_TIMEOUT_S)
        if not self._thread.has_begun:  # it closes the client
            self._client.close()

    def _start(self) -> None:
        if not self._is_started:
            self._thread.start()
            self._is_started = True

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def _do(self, task: Callable[[], None]) -> bool:
        """Let the event thread do something between two polls; return whether it has done it within a time limit."""
        if not self._is_started:
            return True
        done, cancelled = list[bool](), list[bool]()

        def run() -> None:
            if not cancelled:
                task()
                done.append(True)

        try:
            self._tasks.append(run)
            self._changed.wait_until(lambda: done or self._failure is not None, TASK_TIMEOUT_S)
        except BaseException:  # a signal's: done later, it would move what the application has read by then
            cancelled.append(True)
            raise
        self._raise_failure()
        return bool(done)

    def _require_done(self, task: Callable[[], None]) -> None:
        """Do what positions depend on: without it, records would be skipped, and done later, it would repeat some."""
        if not self._do(task):
            text = f"the client of Kafka has not returned from a call for {TASK_TIMEOUT_S:g} s"
            self._fail(ConsumerError(text))
            self._raise_failure()

    def drop(self) -> None:
        """Let the event thread end. The garbage collector calls this, so it must not acquire a lock."""
        self._is_running = False

    # ---- the event thread

    def _run(self) -> None:
        try:
            self._client.subscribe(self._topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
            while self._is_running:
                self._round()
        except KafkaException as error:
            self._fail(ConsumerError(f"the client of Kafka has failed: {error}"))
        except RebalancerError as error:
            self._fail(error)
        except BaseException as error:
            self._fail(has_stopped("event thread", error))
            raise
        finally:
            self._client.close()

    def _fail(self, error: RebalancerError) -> None:
        with self._changed.lock:
            self._failure = error
            self._changed.notify()

    def _round(self) -> None:
        while self._tasks:
            self._tasks.popleft()()
            with self._changed.lock:
                self._changed.notify()
        has_room = len(self._queue) + self._max_poll_records <= queue_limit(self._max_poll_records)
        has_room = has_room and self._queued_bytes < MAX_QUEUED_BYTES
        if self._flows and has_room and not self.arrived:
            self._resume()
            messages = self._client.consume(self._max_poll_records, BRAKE_S)
            self._enqueue(self._records(messages))
        else:
            self._pause()
            message = self._client.poll(BRAKE_S)
            if message is not None:
                self._enqueue(self._records([message]))

    def _records(self, messages: Sequence[Message]) -> list[Message]:
        """Return the records; raises KafkaException if one of the others says that the client does nothing more."""
        for message in messages:
            error, topic = message.error(), message.topic() or ""
            if error is None:
                continue
            if error.fatal() or error.code() == KafkaError._FATAL:  # noqa: SLF001  # its public name
                raise KafkaException(error)
            if error.code() in STALLS and (error.code(), topic) not in self._told:
                self._told.add((error.code(), topic))
                _log.warning("the client of a forced region gets no records of %s: %s", topic or "any topic", error)
        return [message for message in messages if message.error() is None]

    def _enqueue(self, messages: list[Message]) -> None:
        """Queue records of partitions that are held and placed."""
        with self._changed.lock:
            known = [one for one in messages if _place(one) in self._positions and _place(one) not in self.arrived]
            self._queue.extend(known)
            self._queued_bytes += sum(map(_size, known))
            if known:
                self._changed.notify()

    def _drop_queue(self) -> None:
        self._queue.clear()
        self._queued_bytes = 0

    def _pause(self) -> None:
        new = self._positions.keys() - self._paused
        if new:
            self._client.pause([confluent_kafka.TopicPartition(*tp) for tp in new])
            self._paused |= new

    def _resume(self) -> None:
        if self._paused:
            self._client.resume([confluent_kafka.TopicPartition(*tp) for tp in self._paused])
            self._paused = set()

    def _assign_at(self, positions: Mapping[TopicPartition, int]) -> None:
        """Continue at these offsets, elsewhere after the last processed record, or at the first queued one."""
        with self._changed.lock:
            for message in self._queue:  # without a position, the client would ask Kafka anew where to begin
                if self._positions[_place(message)] == UNKNOWN:
                    self._positions[_place(message)] = _offset(message)
            self._positions.update({tp: at for tp, at in positions.items() if tp in self._positions})
            self.arrived -= positions.keys()
            self._drop_queue()
            now = dict(self._positions)
        begins = self._begins([tp for tp, at in now.items() if at == UNKNOWN])
        wanted = [confluent_kafka.TopicPartition(*tp, begins.get(tp, at)) for tp, at in now.items()]
        self._paused = set()
        self._client.assign(wanted)
        self._pause()

    def _begins(self, unknown: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where partitions begin of which no record was processed: at the group's offsets, else at the earliest.

        The client's own `auto.offset.reset` cannot be read; with `latest`, each assignment would skip new records.
        """
        begins = dict.fromkeys(unknown, confluent_kafka.OFFSET_STORED)
        if not unknown:
            return begins
        try:
            asked = [confluent_kafka.TopicPartition(*tp) for tp in unknown]
            for one in self._client.committed(asked, timeout=COMMITTED_TIMEOUT_S):
                if one.error is None and one.offset < 0:
                    begins[one.topic, one.partition] = confluent_kafka.OFFSET_BEGINNING
        except KafkaException as error:
            _log.warning("a partition without a stored offset begins as the client's auto.offset.reset says: %s", error)
        return begins

    def _commit(self, offsets: list[confluent_kafka.TopicPartition]) -> None:
        try:
            self._client.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            _log.warning("the offsets of a checkpoint are not committed, so tools show more lag: %s", error)

    # ---- the client's callbacks, within its polls

    def _assigned(self, client: Consumer, partitions: list[confluent_kafka.TopicPartition]) -> None:
        """Hold new partitions, paused, until the region has placed them."""
        try:
            client.assign(partitions)
        except KafkaException as error:
            text = "a forced region needs an eager assignor, for example partition.assignment.strategy=range"
            raise ConfigurationError(f"{text} ({error})") from None
        with self._changed.lock:
            self._positions = {(one.topic, one.partition): UNKNOWN for one in partitions}
            self.arrived, self._paused = set(self._positions), set()
            self._drop_queue()
            self.rebalances += 1
            self._changed.notify()
        self._told.clear()
        self._pause()

    def _revoked(self, client: Consumer, _partitions: list[confluent_kafka.TopicPartition]) -> None:
        self._clear(is_lost=False)
        client.unassign()

    def _lost(self, client: Consumer, _partitions: list[confluent_kafka.TopicPartition]) -> None:
        self._clear(is_lost=True)
        client.unassign()

    def _clear(self, *, is_lost: bool) -> None:
        with self._changed.lock:
            self.has_lost, self.was_revoked = self.has_lost or is_lost, self.was_revoked or not is_lost
            self.rebalances += 1
            self._drop_queue()
            self._positions.clear()
            self._paused.clear()
            self.arrived.clear()
            self._changed.notify()


def _place(message: Any) -> TopicPartition:  # noqa: ANN401  # confluent-kafka's types allow None
    return message.topic(), message.partition()


def _size(message: Any) -> int:  # noqa: ANN401  # as above
    return MESSAGE_OVERHEAD_BYTES + len(message)


def _offset(message: Any) -> int:  # noqa: ANN401  # as above
    offset: int = message.offset()
    return offset
