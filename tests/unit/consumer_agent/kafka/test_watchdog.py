"""A Kafka client that hangs is replaced, and nothing is lost or doubled by that."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol
from unittest import mock

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from consumer_agent.config import ConsumerConfig
from consumer_agent.errors import KafkaUnavailableError
from consumer_agent.kafka import fetcher, offset_queries, watchdog
from consumer_agent.kafka.fetcher import Fetcher
from consumer_agent.kafka.watchdog import NewFetcher, WatchedFetcher
from consumer_agent.records import Batch
from consumer_agent.runtime.record_buffer import RecordBuffer
from consumer_agent.runtime.shared_state import SharedState
from tests.support.deadlines import WITHIN_S
from tests.support.waiting import wait_until
from tests.unit.consumer_agent.admin import Admin, Answers
from tests.unit.consumer_agent.messages import ROOMY, messages

PARTITION = ("orders", 0)
DEADLINE_S = WITHIN_S


def answers(offset: int) -> Answers:
    return lambda _partition, _where: offset


class Client:
    """Stands for librdkafka: `count` records from where it was assigned, then it hangs if it is told to."""

    def __init__(self, count: int, *, hangs: bool) -> None:
        self.assigned_at: list[int] = []
        self.rounds = 0
        self.released = threading.Event()
        self.hung = threading.Event()
        self.is_closed = False
        self._left = count
        self._next = 0
        self._hangs = hangs

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned_at += [partition.offset for partition in partitions]
        self._next = partitions[0].offset

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None: ...

    def poll(self, timeout_s: float) -> Message | None:
        self.rounds += 1
        if self._left:
            self._left -= 1
            self._next += 1
            return messages(PARTITION, [self._next - 1])[0]
        if not self._hangs:
            self.released.wait(timeout_s)
            return None
        self._hang()
        self._hangs = False
        return messages(PARTITION, [self._next])[0]  # too late: another client has read it meanwhile

    def _hang(self) -> None:
        self.hung.set()
        self.released.wait()

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        return partitions  # the application's, which stands still

    def consume(self, *_: int, **__: float) -> list[Message]:
        return []

    def list_topics(self, *_: str, **__: float) -> mock.Mock:
        return mock.Mock(topics={"orders": mock.Mock(partitions={0: mock.Mock(leader=1)}, error=None)})

    def offsets_for_times(self, _asked: list[TopicPartition], **_: float) -> None: ...

    def close(self) -> None:
        self.is_closed = True


class Setting:
    """A watchdog above clients that are given, one after the other; so are the clients for queries."""

    def __init__(self, clients: list[Client], admins: list[Admin]) -> None:
        self.clients = clients
        self.shared = SharedState(RecordBuffer(ROOMY), lambda: 0)
        self.shared.emit_until(1)
        config = ConsumerConfig(zookeeper="z:1", bootstrap="b:1", group="g")
        waiting = iter(clients)
        new_admins = mock.Mock(side_effect=admins)

        self.reporting: list[bool] = []
        made: list[Fetcher] = []

        def new_fetcher(*, reports: bool) -> Fetcher:
            self.reporting.append(reports)
            client = next(waiting)
            if made and not client._hangs:  # on a busy machine, one that works may stand still for a while, too
                watchdog.STUCK_LIMIT_S = DEADLINE_S
            with (
                mock.patch("consumer_agent.kafka.fetcher.KafkaConsumer", return_value=client),
                mock.patch("consumer_agent.kafka.offset_queries.AdminClient", new_admins),
            ):
                made.append(Fetcher(config, ["orders"], self.shared))
            return made[-1]

        self.fetcher = WatchedFetcher(new_fetcher, self.shared)
        self.fetcher.current.start()
        self.offsets: list[int] = []

    def assign(self) -> None:
        self.shared.admit(PARTITION, 1, 0)
        self.fetcher.change(lambda: {PARTITION: 0})

    def look_until(self, holds: Callable[[], bool]) -> None:
        """Do what the machine thread and the application do, until something holds."""
        deadline_s = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < deadline_s
            self.fetcher.look_after()
            self.take()
            time.sleep(0.005)

    def take(self) -> None:
        with self.shared.lock:
            self.shared.await_records()
            self.offsets += [record.offset for record in Batch(self.shared.take(100, lambda *_: None))]

    def close(self) -> None:
        self.fetcher.stop()
        for client in self.clients:
            client.released.set()
        self.fetcher.current.join(DEADLINE_S)


class Begin(Protocol):
    def __call__(self, clients: list[Client], admins: Sequence[Admin] = ()) -> Setting: ...


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    monkeypatch.setattr(watchdog, "STUCK_LIMIT_S", 0.2)
    monkeypatch.setattr(watchdog, "PAUSE_S", 0.0)
    settings: list[Setting] = []

    def begin(clients: list[Client], admins: Sequence[Admin] = ()) -> Setting:
        settings.append(Setting(clients, [*admins] or [Admin(answers(7))]))
        return settings[-1]

    yield begin
    for setting in settings:
        setting.close()


def test_a_client_that_hangs_is_replaced(start: Begin) -> None:
    hangs, works = Client(3, hangs=True), Client(5, hangs=False)
    setting = start([hangs, works])
    setting.assign()
    assert hangs.hung.wait(DEADLINE_S)
    setting.look_until(lambda: len(setting.offsets) == 8)
    assert setting.offsets == list(range(8))
    assert works.assigned_at == [3]
    assert setting.reporting == [False, True]


def test_what_a_replaced_client_still_gets_is_ignored(start: Begin) -> None:
    hangs, works = Client(3, hangs=True), Client(0, hangs=False)
    setting = start([hangs, works])
    stuck = setting.fetcher.current
    setting.assign()
    assert hangs.hung.wait(DEADLINE_S)
    setting.look_until(lambda: works.assigned_at == [3])
    hangs.released.set()
    stuck.join(DEADLINE_S)
    setting.take()
    assert setting.offsets == [0, 1, 2]


def test_a_client_for_questions_that_hangs_is_replaced(start: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its queries count as not answered, so that they are asked again."""
    monkeypatch.setattr(offset_queries, "OVERDUE_S", 0.05)
    hangs, works = Admin(answers(7), holds=True), Admin(answers(7))
    setting = start([Client(0, hangs=False), Client(0, hangs=False)], [hangs, works])
    found: list[dict[tuple[str, int], int | None]] = []
    setting.fetcher.current.resolve(frozenset({PARTITION}), found.append)
    setting.look_until(lambda: bool(found))
    setting.fetcher.current.resolve(frozenset({PARTITION}), found.append)
    hangs.release()
    assert found == [{PARTITION: None}, {PARTITION: 7}]


def test_the_fetcher_and_the_machine_thread_note_unreadable_partitions_one_after_the_other(start: Begin) -> None:
    """The set changed while the fetcher went through it, which ended the fetcher and so the consumer."""
    setting = start([Client(0, hangs=False)])
    watched, other = setting.fetcher, ("orders", 1)
    found = mock.Mock(**{"due.return_value": [], "new.side_effect": [[PARTITION], [other]]})
    with mock.patch.object(watched, "_unreadable", found):
        watched._look_after_stuck([PARTITION], 0.0)
        looking = threading.Thread(target=watched._look_after_stuck, args=([other], 0.0))

        class Readable:
            def __contains__(self, partition: object) -> bool:
                if looking.ident is None:
                    looking.start()
                    looking.join(0.05)  # the machine thread runs meanwhile, as far as it may
                return partition == PARTITION

        watched.current._complaints.forget(Readable())
        looking.join(DEADLINE_S)
    assert setting.shared.unreadable == {other}


def test_a_client_that_works_or_waits_is_left_alone(start: Begin) -> None:
    """In `WatchedFetcher.look_after`, do not compare the progress."""
    setting = start([Client(0, hangs=False)])
    watched = setting.fetcher
    for has_work in (False, True):  # before, it waits for something to do
        if has_work:
            setting.assign()
            wait_until(lambda: bool(setting.clients[0].assigned_at), "it is assigned")
        for _ in range(3):
            watched.look_after()
            watched._seen_s -= 2 * watchdog.STUCK_LIMIT_S
            wait_until(lambda: watched.current.progress != watched._seen or watched._seen is None, "a round")
            watched.look_after()
    assert setting.clients[0].assigned_at == [0]
    assert not watched._replaced_at_s


def test_a_process_that_was_frozen_does_not_blame_its_client(start: Begin) -> None:
    hangs, works = Client(0, hangs=True), Client(0, hangs=False)
    setting = start([hangs, works])
    setting.assign()
    assert hangs.hung.wait(DEADLINE_S)
    setting.fetcher.look_after()
    setting.fetcher._looked_s -= 3 * watchdog.LOOK_INTERVAL_S
    setting.fetcher._seen_s -= 3 * watchdog.LOOK_INTERVAL_S
    setting.fetcher.look_after()
    assert works.assigned_at == []


def test_a_process_that_was_frozen_does_not_blame_its_client_for_questions(start: Begin) -> None:
    """Each such replacement would count, and after twenty within a day the consumer gives up."""
    admin = Admin(answers(7), holds=True)
    setting = start([Client(0, hangs=False)], [admin])
    setting.fetcher.look_after()
    setting.fetcher.current.resolve(frozenset({PARTITION}), lambda _: None)
    frozen_s = offset_queries.OVERDUE_S + 1.0
    setting.fetcher._looked_s -= frozen_s
    for query in setting.fetcher.current.queries._open:
        query.asked_s -= frozen_s
    setting.fetcher.look_after()
    setting.fetcher.look_after()
    assert not setting.fetcher._replaced_at_s
    admin.release()


class BriefBroker(Client):
    """Stands for librdkafka above a broker that goes away as soon as it has described its topics."""

    def list_topics(self, *_: str, **__: float) -> mock.Mock:
        return mock.Mock(topics={"orders": mock.Mock(partitions={0: mock.Mock(leader=1)}, error=None)})

    def offsets_for_times(self, _asked: list[TopicPartition], **_: float) -> None:
        self.released.set()
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))


def test_a_client_that_fetches_no_more_is_replaced(start: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "LOOK_INTERVAL_MS", 0)
    monkeypatch.setattr(watchdog, "STUCK_LIMIT_S", DEADLINE_S)
    stops, works = Client(3, hangs=False), Client(2, hangs=False)
    setting = start([stops, works], [Admin(answers(5)), Admin(answers(5))])
    setting.assign()
    setting.look_until(lambda: len(setting.offsets) == 5)
    setting.look_until(lambda: not works._left)
    assert setting.offsets == [0, 1, 2, 3, 4]
    assert works.assigned_at == [3]
    rounds = works.rounds
    setting.look_until(lambda: works.rounds > rounds + 10)  # all is read: nobody else is put into its place


def test_a_client_that_hangs_while_a_partition_is_unreadable_is_replaced(start: Begin) -> None:
    """In `WatchedFetcher.look_after`, look after stuck partitions first: their list stays while the thread hangs."""
    hangs, works = Client(3, hangs=True), Client(2, hangs=False)
    setting = start([hangs, works])
    setting.assign()
    assert hangs.hung.wait(DEADLINE_S)
    setting.fetcher.current.stuck = [PARTITION]
    setting.fetcher._unreadable.tried({PARTITION: setting.shared.buffer.next_offset(PARTITION)}, time.monotonic())
    setting.look_until(lambda: setting.offsets == [0, 1, 2, 3, 4])
    assert len(setting.fetcher._replaced_at_s) == 1


def test_a_broker_that_goes_away_at_once_is_waited_for(start: Begin) -> None:
    client = BriefBroker(2, hangs=False)
    setting = start([client])
    setting.assign()
    setting.look_until(lambda: setting.offsets == [0, 1])
    assert client.released.is_set()
    with setting.shared.lock:
        assert setting.shared.take_failure() is None


def test_replacements_have_a_limit(start: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "MAX_REPLACEMENTS", 1)
    setting = start([Client(1, hangs=True), Client(1, hangs=True)])
    setting.assign()
    failures: list[object] = []

    def has_failed() -> bool:
        with setting.shared.lock:
            failures.append(setting.shared.take_failure())
        return failures[-1] is not None

    setting.look_until(has_failed)
    assert isinstance(failures[-1], KafkaUnavailableError)
    assert str(failures[-1]).startswith(
        "the Kafka client has failed 2 times within 24 h; the last time it has not returned"
    )


def test_a_client_that_is_given_up_tells_its_last_failure(start: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "MAX_REPLACEMENTS", 0)
    setting = start([RefusingClient("poll")])
    setting.assign()
    setting.look_until(lambda: setting.shared.breakdown is not None)
    assert setting.shared.breakdown is not None
    assert isinstance(setting.shared.breakdown.__cause__, KafkaException)


def test_old_replacements_do_not_count(start: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "MAX_REPLACEMENTS", 1)
    hanging = [Client(1, hangs=True) for _ in range(3)]
    setting = start([*hanging, Client(1, hangs=False)])
    setting.assign()
    for client in hanging:
        setting.look_until(client.hung.is_set)
        replaced_at_s = setting.fetcher._replaced_at_s
        replaced_at_s.extend([replaced_at_s.pop() - watchdog.REPLACEMENTS_PERIOD_S] if replaced_at_s else [])
        count = len(setting.fetcher._replaced_at_s)
        setting.look_until(lambda client=client: setting.fetcher.current._consumer is not client)  # type: ignore[misc]
        assert len(setting.fetcher._replaced_at_s) == 1 >= count
    setting.look_until(lambda: len(setting.offsets) == 4)
    assert setting.shared.breakdown is None


class RefusingClient(Client):
    """Stands for librdkafka one of whose calls fails once."""

    def __init__(self, method: str) -> None:
        super().__init__(2, hangs=False)
        works = getattr(self, method)
        failures = iter([KafkaException(KafkaError(KafkaError._FAIL, "refused once"))])

        def call(*given: object, **named: object) -> object:
            for failure in failures:
                raise failure
            return works(*given, **named)

        setattr(self, method, call)

    def poll(self, timeout_s: float) -> Message | None:
        return super().poll(timeout_s) if self.assigned_at else None


@pytest.mark.parametrize("method", ["poll", "consume", "incremental_assign", "list_topics", "offsets_for_times"])
def test_a_call_that_fails_once_costs_no_record(start: Begin, method: str) -> None:
    setting = start([RefusingClient(method), Client(5, hangs=False)])
    setting.assign()
    setting.look_until(lambda: len(setting.offsets) >= 2)
    assert setting.offsets == list(range(len(setting.offsets)))
    assert setting.shared.breakdown is None


def test_a_fetcher_that_was_stopped_is_not_replaced(start: Begin) -> None:
    """In `WatchedFetcher._put_in_place`, start the replacement: it would fetch what others own by then."""
    hangs, spare = Client(1, hangs=True), Client(0, hangs=False)
    setting = start([hangs, spare])
    setting.assign()
    setting.look_until(hangs.hung.is_set)
    stuck = setting.fetcher.current
    setting.fetcher.stop()
    setting.look_until(lambda: bool(setting.fetcher._replaced_at_s))
    assert setting.fetcher.current is stuck
    assert spare.is_closed


@pytest.mark.parametrize("failure", [KafkaException(KafkaError(KafkaError._FAIL)), RuntimeError("no more threads")])
def test_a_replacement_that_cannot_be_made_is_tried_again(
    start: Begin, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    setting = start([Client(1, hangs=True), Client(4, hangs=False)])
    new_fetcher = setting.fetcher._new_fetcher
    monkeypatch.setattr(setting.fetcher, "_new_fetcher", _failing_once(failure, new_fetcher))
    setting.assign()
    setting.look_until(lambda: len(setting.offsets) == 5)
    assert setting.offsets == list(range(5))


def _failing_once(failure: Exception, works: NewFetcher) -> NewFetcher:
    failures = iter([failure])

    def call(*, reports: bool) -> Fetcher:
        for once in failures:
            raise once
        return works(reports=reports)

    return call


def test_a_replacement_whose_thread_does_not_start_is_replaced(start: Begin) -> None:
    setting = start([Client(1, hangs=True), Client(4, hangs=False), Client(4, hangs=False)])
    setting.assign()
    setting.look_until(setting.clients[0].hung.is_set)
    with mock.patch("threading.Thread.start", side_effect=RuntimeError("can't start new thread")):
        setting.look_until(lambda: setting.fetcher.current.failure is not None)
    setting.look_until(lambda: len(setting.offsets) == 5)
    assert setting.offsets == list(range(5))


def test_a_shortage_of_some_minutes_ends_no_consumer(start: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `WatchedFetcher._replace`, do not pause: twenty rounds of the machine thread used up the tries of a day."""
    monkeypatch.undo()
    setting = start([Client(0, hangs=False)])
    failure = KafkaException(KafkaError(KafkaError._FAIL, "no descriptors"))
    new_fetcher = mock.Mock(side_effect=failure)
    setting.fetcher._new_fetcher, setting.fetcher.current.failure = new_fetcher, failure
    now_s = time.monotonic()
    tries: list[int] = []
    with mock.patch("time.monotonic", side_effect=lambda: now_s):
        for _ in range(240):  # two minutes
            setting.fetcher.look_after()
            tries.append(new_fetcher.call_count)
            now_s += 0.5
    assert setting.shared.breakdown is None
    assert tries[0] == tries[3] == 1
    assert 2 < tries[-1] < watchdog.MAX_REPLACEMENTS // 2
