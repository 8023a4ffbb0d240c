"""Fetches from Kafka into the buffer: one librdkafka consumer without Kafka's group protocol.

confluent-kafka allows one thread at a time in a consumer, and a poll cannot be interrupted. Other threads therefore
queue their requests (`_changes`, `_answered`), and the fetcher handles them when its next round begins. Messages of a
partition with a queued change belong to an earlier start and are dropped. A separate client queries offsets
(`offset_queries.py`), so that no missing answer blocks fetching.

All waiting is done in the fetcher's own thread. But if the buffer is empty, the application's thread fetches what
librdkafka has ready (`draw`): handing each batch from thread to thread would cost as much as fetching it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from consumer_agent.config import ConsumerConfig, parse_offset_reset
from consumer_agent.errors import KafkaUnavailableError, has_stopped
from consumer_agent.kafka import client_events
from consumer_agent.kafka.client import kafka_settings, made, store_settings
from consumer_agent.kafka.complaints import Complaints
from consumer_agent.kafka.cut_logs import kept_offset
from consumer_agent.kafka.messages import by_partition, collector_paused, size_bytes
from consumer_agent.kafka.offset_queries import Answer, OffsetQueries, Offsets, Where
from consumer_agent.kafka.progress import Progress
from consumer_agent.kafka.stall_detector import StallDetector
from consumer_agent.kafka.topics import Topics
from consumer_agent.runtime import failpoints
from consumer_agent.runtime.out_of_range import Ends, OutOfRange, due, place, take_due
from consumer_agent.runtime.shared_state import SharedState
from consumer_agent.runtime.threads import Thread, new_reentrant_lock
from zkrebalancer.protocol import fields

POLL_TIMEOUT_S = 0.02  # of a round while records come; a new partition waits no longer than that
REST_POLL_TIMEOUT_S = 0.2  # the same after some seconds without records, because fifty rounds a second are expensive
PATIENCE_GROWTH = 1.05  # of the timeout with each empty round: it reaches its limit after 47 rounds, or 3.6 s
MAX_ROUND_RECORDS = 500  # more new objects at once trigger Python's garbage collector, which visits all of them
LOOK_INTERVAL_MS = 15_000  # between checks whether Kafka has more records of silent partitions
ALERT_LOOK_INTERVAL_MS = 5_000  # the same for ALERT_MS after a broker error: librdkafka may then forget partitions
ALERT_MS = 60_000
SERVE_INTERVAL_S = 1.0  # between calls of the application's callbacks while nothing is fetched


class Fetcher:
    """Fetches a consumer's partitions. Its methods may be called from any thread; only `join` waits."""

    def __init__(self, config: ConsumerConfig, topics: Collection[str], shared: SharedState) -> None:
        """Prepare; nothing is connected before `start`.

        Raises:
            KafkaException: librdkafka refuses a setting, or there is no token.

        """
        self._bootstrap = config.bootstrap
        self._names = topics
        self._begins_at = parse_offset_reset(config.auto_offset_reset)
        self._shared = shared
        self._complaints = Complaints(config.bootstrap, shared, lambda: self._stopping)
        self.queries = OffsetQueries(store_settings(config))  # first, as either may have to wait for a token
        self._progress = Progress()
        events = client_events.event_settings(config.kafka_config, shared, self._broker_error, self._progress.note)
        self._consumer = self._made({**kafka_settings(config), **events})
        self._has_callbacks = client_events.are_wanted(config.kafka_config)
        self._topics = Topics(self._consumer, config.bootstrap, self._came_back)
        self._in_client = new_reentrant_lock()  # held during a call of the client and until its result is in the buffer
        self._assigned: set[fields.TopicPartition] = set()
        self._topics_seen: set[str] = set()  # from which messages may still come; more than one if there were more
        self._held_back: frozenset[fields.TopicPartition] = frozenset()
        self._changes: dict[fields.TopicPartition, int | None] = {}  # fetch from this offset; None: stop
        self._answered: list[Callable[[], None]] = []  # handlers of answered queries, for the next round
        self._out_of_range: dict[fields.TopicPartition, int | None] = {}  # and where the log was cut; see `due`
        self._stopping = self._is_client_closed = self._is_replacement = False
        self._waiting = self._is_flowing = False  # the latter: the last round was full
        self.is_drawing = False  # the application's thread is in a call of the client
        self._patience_s = POLL_TIMEOUT_S
        self._steps = 0  # calls of librdkafka that returned
        self._stalls = StallDetector()
        self._look_at_ms = shared.now_ms() + LOOK_INTERVAL_MS
        self._is_alert_until_ms = 0
        self.failure: Exception | None = None  # ended the thread; a new client may not meet it
        self.stuck: list[fields.TopicPartition] = []  # partitions that librdkafka no longer fetches
        self.thread = Thread(self._run, "consumer-agent-fetcher")

    def _made(self, settings: dict[str, Any]) -> KafkaConsumer:
        try:
            return made(KafkaConsumer, settings)
        except KafkaException:
            self.queries.close()
            raise

    def start(self) -> None:
        """Connect and begin to fetch. Raises RuntimeError if the operating system starts no more threads."""
        try:
            self.thread.start()
        except RuntimeError as error:
            self.failure = error
            self.discard()
            raise

    def stop(self) -> None:
        """Make the thread end; does not wait."""
        with self._shared.fetcher_wake.lock:
            self._stopping = True
            self._shared.fetcher_wake.notify()

    def discard(self) -> None:
        """Close the client; called in the fetcher's thread, or if that was not started."""
        with self._in_client:
            self._stopping = True  # a closed client must not be drawn from
            if not self._is_client_closed:
                self._is_client_closed = True
                self._consumer.close()
                self.queries.close()

    def join(self, timeout_s: float) -> None:
        """Wait until the thread has closed the connections."""
        self.thread.join(timeout_s)

    def unassign(self, partitions: Collection[fields.TopicPartition]) -> None:
        """Stop fetching these partitions."""
        self.change(lambda: dict.fromkeys(partitions))

    def change(self, decide: Callable[[], Mapping[fields.TopicPartition, int | None]]) -> None:
        """Fetch partitions from the offsets that `decide` returns; None stops fetching.

        `decide` is called with the lock of the shared state held, so that no record is added meanwhile.
        """
        with self._shared.fetcher_wake.lock:
            self._changes.update(decide())
            self._shared.fetcher_wake.notify()

    def resolve(self, partitions: frozenset[fields.TopicPartition], answer: Callable[[Offsets], None]) -> None:
        """Query where `auto_offset_reset` lets partitions begin; `answer` is called in any thread."""
        self.queries.ask(partitions, [self._begins_at], lambda found: answer(found[self._begins_at]))

    def draw(self, max_records: int, *, are_awaited: bool = False) -> Collection[fields.TopicPartition]:
        """Put what librdkafka has ready into the buffer, in the caller's thread; wake the fetcher if more is needed.

        Returns the partitions of these records. With `are_awaited` the caller takes all of them at once. Fetches
        nothing while another thread is in a call of the client, which may hang.
        """
        drawn, is_due = set[fields.TopicPartition](), False
        try:
            if self._in_client.acquire(blocking=False):
                self.is_drawing = True
                with collector_paused() if max_records > MAX_ROUND_RECORDS else nullcontext():
                    is_drained = self._draw_rounds(max_records, drawn, are_awaited)
                is_due = is_drained and self._shared.now_ms() >= self._look_at_ms
                self.is_drawing = False
        except BaseException:  # such as Ctrl-C
            self.is_drawing, self._shared.is_interrupted = False, True  # what the client has handed over may be lost
            self._fetch_again()
            raise
        finally:
            try:  # noqa: SIM105  # no call before this one: an interrupt in it would leave the lock held
                self._in_client.release()
            except RuntimeError:
                ...  # another thread is in the client
        if not self._shared.buffer.record_count or self._out_of_range or is_due:
            with self._shared.lock:
                self._shared.await_records()
        return drawn

    def _draw_rounds(self, max_records: int, drawn: set[fields.TopicPartition], are_awaited: bool) -> bool:
        """Fetch records and add their partitions to `drawn`; return whether librdkafka had no more."""
        buffer, left = self._shared.buffer, max_records
        while left:
            with self._shared.lock:
                room = buffer.room if self._assigned and not self._stopping else 0
            count = min(room, left, MAX_ROUND_RECORDS)
            if not count:
                return False
            messages = self._consumer.consume(count, timeout=0)
            if messages:
                drawn.update(self._take_in(messages, is_drawn=True, are_awaited=are_awaited))
            if len(messages) < count:
                return True
            left -= count
        return False

    def _fetch_again(self) -> None:
        """Fetch every partition again from where the buffer ends."""
        with self._shared.fetcher_wake.lock:
            self._shared.buffer.fetch_again()
            self._shared.fetcher_wake.notify()

    @property
    def progress(self) -> int | None:
        """A number that changes whenever a call of librdkafka returns; None while there is nothing to do."""
        return None if self._waiting and not self.is_drawing else self._steps

    def take_over(self, stuck: Fetcher) -> None:
        """Replace a fetcher that hangs, before `start`; what the old one still fetches is ignored."""
        with self._shared.lock:
            stuck._stopping = True
            self._shared.fetcher_wake.notify()
            self._changes.update(self._shared.buffer.fetched())
        stuck.queries.abandon()
        self._is_replacement = True

    # ---- the fetcher's own thread

    def _run(self) -> None:
        try:
            if not self._is_replacement:
                self._connect()
            while not self._stopping:
                self._wait_for_work()
                with self._in_client:
                    room = self._begin_round()
                    while room and not self._fetch(room) and self._is_at_rest:
                        pass  # the rest of the round would cost an idle agent as much as its polls
        except KafkaException as error:  # a call that usually works was refused; a new client may do better
            self.failure = error
        except BaseException as error:
            if not self._stopping:
                self._shared.break_down(has_stopped("fetcher", error))
            raise
        finally:
            self.discard()

    def _connect(self) -> None:
        """Open connections before the first partition is assigned."""
        try:
            self._topics.connect(self._names)
            self._complaints.connected()
        except KafkaException as error:
            self._consumer.poll(0)  # lets librdkafka report the reason
            text = f"no Kafka broker answered at {self._bootstrap}: {error.args[0].str()}{self._complaints.trouble}"
            self._shared.fail(KafkaUnavailableError(text))

    def _came_back(self) -> None:
        self._steps += 1

    def _wait_for_work(self) -> None:
        """Wait until there is something to fetch, or a request of another thread."""
        with self._shared.fetcher_wake.lock:
            buffer = self._shared.buffer
            is_called = self._changes or self._answered or self._stopping or due(dict(self._out_of_range), buffer)
            idle = not (is_called or buffer.has_again)
            is_awaited = self._shared.is_awaited or buffer.has_shares  # for shares, only this thread pauses partitions
            if idle and not (is_awaited and self._assigned and buffer.room):
                self._waiting = True
                is_served = self._has_callbacks and not self._assigned
                self._shared.fetcher_wake.wait(SERVE_INTERVAL_S if is_served else None)
                self._waiting = False

    def _begin_round(self) -> int:
        """Handle the requests of other threads; return how many records the buffer accepts."""
        with self._shared.lock:
            # What is fetched again is so from where the buffer ends now; a change may be older, and further on.
            changes, self._changes = {**self._changes, **self._shared.buffer.again()}, {}
            answered, self._answered = self._answered, []
        if changes:
            self._patience_s = POLL_TIMEOUT_S
            self._change_assignment(changes)
        for handle in answered:
            handle()
        if self._out_of_range:
            self._ask_for_ends()
        if self._has_callbacks and not self._assigned:
            self._consumer.poll(0)  # calls them; a message could only be of an assignment that is over
        with self._shared.lock:
            held_back = self._shared.buffer.held_back() & self._assigned
            room = self._shared.buffer.room if self._assigned else 0
        if held_back != self._held_back:
            self._change_pauses(held_back)
        return room

    def _change_pauses(self, wanted: frozenset[fields.TopicPartition]) -> None:
        """Pause exactly these partitions in librdkafka."""
        pausing, resuming = wanted - self._held_back, self._held_back - wanted
        self._held_back = wanted
        if pausing:
            self._consumer.pause([TopicPartition(*partition) for partition in pausing])
            self._stalls.unassigned(pausing)
        if resuming:
            self._consumer.resume([TopicPartition(*partition) for partition in resuming])
            with self._shared.lock:
                positions = {partition: self._shared.buffer.next_offset(partition) for partition in resuming}
            self._stalls.assigned({tp: offset for tp, offset in positions.items() if offset is not None})
        self._steps += 1

    def _change_assignment(self, changes: Mapping[fields.TopicPartition, int | None]) -> None:
        leaving = self._assigned.intersection(changes)
        if leaving & self._held_back:  # a pause outlives the assignment
            self._change_pauses(self._held_back - leaving)
        if leaving:
            self._consumer.incremental_unassign([TopicPartition(*partition) for partition in leaving])
            self._stalls.unassigned(leaving)
            self._complaints.forget(leaving)
            self._out_of_range = {tp: kept for tp, kept in self._out_of_range.items() if tp not in leaving}
            self._steps += 1
        coming = {partition: offset for partition, offset in changes.items() if offset is not None}
        if coming:
            self._topics.describe_added(coming)
            self._topics_seen.update({topic for topic, _ in coming} if len(self._topics_seen) <= 1 else ())
            self._consumer.incremental_assign(
                [TopicPartition(topic, number, offset) for (topic, number), offset in coming.items()]
            )
            self._stalls.assigned(coming)
            self._steps += 1
        self._assigned = (self._assigned - leaving) | coming.keys()

    @property
    def _is_at_rest(self) -> bool:
        """Whether a round would only poll. Reads without the lock: a change is noticed after the next poll."""
        is_called = self._changes or self._answered or self._out_of_range or self._stopping
        buffer = self._shared.buffer
        return not (is_called or self._held_back or buffer.record_count or buffer.has_again)

    def _fetch(self, room: int) -> bool:
        """Wait briefly for messages and put at most `room` of them into the buffer; return whether any came."""
        count = min(room, MAX_ROUND_RECORDS)
        # One call while many come: after each, this thread may wait 5 ms for the interpreter's lock.
        messages = self._consumer.consume(count, timeout=0) if self._is_flowing else []
        first = None if messages else self._consumer.poll(self._patience_s)
        self._steps += 1
        if first is not None:
            messages = [first, *(self._consumer.consume(count - 1, timeout=0) if count > 1 else ())]
        self._is_flowing = len(messages) == count
        self._patience_s = POLL_TIMEOUT_S if messages else min(REST_POLL_TIMEOUT_S, self._patience_s * PATIENCE_GROWTH)
        if messages:
            self._take_in(messages)
        if not self._is_flowing:
            self._look_for_stalls()  # no records of a silent partition wait in the client
        if self._out_of_range:
            self._ask_for_ends()
        return bool(messages)

    def _take_in(
        self, messages: list[Message], *, is_drawn: bool = False, are_awaited: bool = False
    ) -> Collection[fields.TopicPartition]:
        """Put the records among these messages into the buffer; return their partitions."""
        self._complaints.connected()
        self._steps += 1
        if any(map(Message.error, messages)):
            messages = self._without_errors(messages)
        if not messages:
            return ()
        sorted_out = by_partition(messages, has_one_topic=len(self._topics_seen) == 1)
        self._put(sorted_out, is_drawn=is_drawn, are_awaited=are_awaited)
        return sorted_out.keys()

    def _without_errors(self, messages: list[Message]) -> list[Message]:
        """Return the records among the messages; handle the others: errors and ends of partitions."""
        records: list[Message] = []
        for message in messages:
            error, partition = message.error(), (message.topic() or "", message.partition() or 0)
            if error is None:
                records.append(message)
                self._stalls.came(partition, (message.offset() or 0) + 1)
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # its public name
                without_records = self._stalls.ended(partition, message.offset() or 0)
                with self._shared.lock:
                    self._shared.ends.note_gap(partition, without_records)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001  # its public name
                self._out_of_range[partition] = kept_offset(error.str())
            else:
                if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    self._stalls.unassigned([partition])  # no stall is looked for until its next record
                self._stalls.failed(partition)
                self._complaints.note_partition(message, error)
        return records

    def _look_for_stalls(self) -> None:
        """Ask Kafka at intervals whether it has more records of silent partitions."""
        now_ms = self._shared.now_ms()
        if now_ms >= self._look_at_ms:
            is_alert = now_ms < self._is_alert_until_ms
            self._look_at_ms = now_ms + (ALERT_LOOK_INTERVAL_MS if is_alert else LOOK_INTERVAL_MS)
            silent = self._stalls.look() - self._out_of_range.keys()  # these wait for the application
            if silent:
                self._ask(silent, ["latest"], lambda found: self._judge(found["latest"]))
            else:
                self._judge({})

    def _judge(self, ends: Offsets) -> None:
        self.stuck = self._stalls.judge(ends, partial(self._progress.of, self._consumer))

    def _ask(self, partitions: Collection[fields.TopicPartition], wheres: Collection[Where], handle: Answer) -> None:
        """Ask Kafka for offsets; the answer is handled in a later round."""

        def answer(found: Mapping[Where, Offsets]) -> None:
            with self._shared.fetcher_wake.lock:
                self._answered.append(partial(handle, found))
                self._shared.fetcher_wake.notify()

        self.queries.ask(partitions, wheres, answer)

    def _put(
        self, sorted_out: Mapping[fields.TopicPartition, list[Message]], *, is_drawn: bool, are_awaited: bool
    ) -> None:
        sizes = {tp: 0 if are_awaited else size_bytes(fetched) for tp, fetched in sorted_out.items()}
        failpoints.reach("before-emit")
        with self._shared.lock:
            for partition, fetched in sorted_out.items():
                if partition not in self._changes and not self._stopping:
                    self._shared.buffer.put(partition, fetched, sizes[partition])
            if not is_drawn:
                if self._is_flowing:  # there are many: from now on the application, which this wakes, draws them
                    self._shared.is_awaited = False
                self._shared.changed.notify()
        self._complaints.forget(sorted_out)
        for partition, fetched in sorted_out.items():
            self._stalls.came(partition, (fetched[-1].offset() or 0) + 1)

    def _ask_for_ends(self) -> None:
        """Query the ends of partitions whose offset is reported missing: the report may belong to an earlier start."""
        with self._shared.lock:
            reported = {} if self._stopping else take_due(self._out_of_range, self._shared.buffer)
            partitions = self._assigned.intersection(reported)
            wanted = {tp: (self._shared.buffer.next_offset(tp), reported[tp]) for tp in partitions}
        if wanted:
            self._ask(partitions, {"earliest", "latest", self._begins_at} - {"none"}, partial(self._reset, wanted))

    def _reset(
        self, wanted: Mapping[fields.TopicPartition, tuple[int | None, int | None]], ends: Mapping[Where, Offsets]
    ) -> None:
        """Continue where `auto_offset_reset` says, for partitions whose wanted offset does not exist."""
        begins = ends.get(self._begins_at)
        restarted, found = dict[fields.TopicPartition, int](), list[OutOfRange]()
        with self._shared.lock:
            if self._stopping:
                return
            for partition in sorted((wanted.keys() & self._assigned) - self._changes.keys()):
                position, (before, kept) = self._shared.buffer.next_offset(partition), wanted[partition]
                if position is None or position != before:
                    continue  # it was stopped, or records have come meanwhile
                goes_on_at = None if begins is None else begins[partition]
                answered = Ends(ends["earliest"][partition], ends["latest"][partition], goes_on_at)
                placed = place(partition, position, answered, kept, begins_anywhere=begins is not None)
                if isinstance(placed, OutOfRange):
                    found.append(placed)
                    self._shared.reset(placed)
                else:
                    restarted[partition] = placed
        self._shared.report(found)
        self._change_assignment(restarted | {one.partition: one.goes_on_at for one in found})

    def _broker_error(self, error: KafkaError) -> None:
        now_ms = self._shared.now_ms()
        self._is_alert_until_ms = now_ms + ALERT_MS
        self._look_at_ms = min(self._look_at_ms, now_ms + ALERT_LOOK_INTERVAL_MS)
        self._complaints.note_broker(error)
