"""A Kafka client that hangs is replaced, and nothing is lost or doubled by that."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from unittest import mock

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from consumer_agent.config import ConsumerConfig
from consumer_agent.errors import KafkaUnavailableError
from consumer_agent.kafka import fetcher, watchdog
from consumer_agent.kafka.fetcher import Fetcher
from consumer_agent.kafka.watchdog import WatchedFetcher
from consumer_agent.records import Batch
from consumer_agent.runtime.record_buffer import RecordBuffer
from consumer_agent.runtime.shared_state import SharedState
from tests.unit.consumer_agent.messages import ROOMY, messages

PARTITION = ("orders", 0)
DEADLINE_S = 10.0


class Client:
    """Stands for librdkafka: `count` records from where it was assigned, then it hangs if it is told to."""

    def __init__(self, count: int, *, hangs: bool, hangs_asked: bool = False) -> None:
        self.assigned_at: list[int] = []
        self.rounds = 0
        self.released = threading.Event()
        self.hung = threading.Event()
        self._left = count
        self._next = 0
        self._hangs = hangs
        self._hangs_asked = hangs_asked

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

    def consume(self, *_: int, **__: float) -> list[Message]:
        return []

    def list_topics(self, *_: str, **__: float) -> mock.Mock:
        return mock.Mock(topics={"orders": mock.Mock(partitions={0: mock.Mock(leader=1)}, error=None)})

    def offsets_for_times(self, _asked: list[TopicPartition], **_: float) -> list[TopicPartition]:
        if self._hangs_asked:
            self._hang()
        return [TopicPartition("orders", 0, 7)]

    def get_watermark_offsets(self, *_: object, **__: float) -> None: ...

    def close(self) -> None: ...


class Setting:
    """A watchdog above clients that are given, one after the other."""

    def __init__(self, clients: list[Client]) -> None:
        self.clients = clients
        self.shared = SharedState(RecordBuffer(ROOMY), lambda: 0)
        self.shared.emit_until(1)
        config = ConsumerConfig(zookeeper="z:1", bootstrap="b:1", group="g")
        waiting = iter(clients)

        def new_fetcher() -> Fetcher:
            with mock.patch("consumer_agent.kafka.fetcher.KafkaConsumer", return_value=next(waiting)):
                return Fetcher(config, ["orders"], self.shared)

        self.fetcher = WatchedFetcher(new_fetcher, self.shared)
        self.fetcher.start()
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
        self.fetcher.join(DEADLINE_S)


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[list[Client]], Setting]]:
    monkeypatch.setattr(watchdog, "STUCK_LIMIT_S", 0.2)
    settings: list[Setting] = []

    def begin(clients: list[Client]) -> Setting:
        settings.append(Setting(clients))
        return settings[-1]

    yield begin
    for setting in settings:
        setting.close()


def test_a_client_that_hangs_is_replaced(start: Callable[[list[Client]], Setting]) -> None:
    hangs, works = Client(3, hangs=True), Client(5, hangs=False)
    setting = start([hangs, works])
    setting.assign()
    setting.look_until(lambda: len(setting.offsets) == 8)
    assert setting.offsets == list(range(8))
    assert works.assigned_at == [3]


def test_what_a_replaced_client_still_gets_is_ignored(start: Callable[[list[Client]], Setting]) -> None:
    hangs, works = Client(3, hangs=True), Client(0, hangs=False)
    setting = start([hangs, works])
    stuck = setting.fetcher._fetcher
    setting.assign()
    setting.look_until(lambda: works.assigned_at == [3])
    hangs.released.set()
    stuck.join(DEADLINE_S)
    setting.take()
    assert setting.offsets == [0, 1, 2]


def test_a_question_that_was_not_answered_is_asked_again(start: Callable[[list[Client]], Setting]) -> None:
    setting = start([Client(0, hangs=False, hangs_asked=True), Client(0, hangs=False)])
    answers: list[dict[tuple[str, int], int | None]] = []
    setting.fetcher.resolve(frozenset({PARTITION}), answers.append)
    setting.look_until(lambda: bool(answers))
    setting.clients[0].released.set()
    assert answers == [{PARTITION: 7}]


def test_a_client_that_works_or_waits_is_left_alone(start: Callable[[list[Client]], Setting]) -> None:
    setting = start([Client(0, hangs=False)])
    until_s = time.monotonic() + 2 * watchdog.STUCK_LIMIT_S
    setting.look_until(lambda: time.monotonic() > until_s)  # it waits for something to do
    setting.assign()
    setting.look_until(lambda: time.monotonic() > until_s + 2 * watchdog.STUCK_LIMIT_S)
    assert setting.clients[0].assigned_at == [0]


def test_a_process_that_was_frozen_does_not_blame_its_client(start: Callable[[list[Client]], Setting]) -> None:
    hangs, works = Client(0, hangs=True), Client(0, hangs=False)
    setting = start([hangs, works])
    setting.assign()
    assert hangs.hung.wait(DEADLINE_S)
    setting.fetcher.look_after()
    setting.fetcher._looked_s -= 3 * watchdog.LOOK_INTERVAL_S
    setting.fetcher._seen_s -= 3 * watchdog.LOOK_INTERVAL_S
    setting.fetcher.look_after()
    assert works.assigned_at == []


class LostClient(Client):
    """Stands for librdkafka that does not find its broker any more, which other clients find."""

    def offsets_for_times(self, _asked: list[TopicPartition], **_: float) -> list[TopicPartition]:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


@pytest.mark.parametrize("is_away", [False, True])
def test_a_client_that_has_lost_its_broker_is_replaced(
    start: Callable[[list[Client]], Setting], monkeypatch: pytest.MonkeyPatch, is_away: bool
) -> None:
    monkeypatch.setattr(fetcher, "LOOK_INTERVAL_MS", 0)
    lost, probe, works = LostClient(3, hangs=False), SilentClient(0, hangs=False), SilentClient(2, hangs=False)
    setting = start([lost, works])
    asked = LostClient(0, hangs=False) if is_away else probe
    monkeypatch.setattr(setting.fetcher._fetcher, "_new_client", lambda: asked)
    setting.assign()
    rounds = 20
    setting.look_until(lambda: lost.rounds > rounds if is_away else len(setting.offsets) == 5)
    assert works.assigned_at == ([] if is_away else [3])


class BriefBroker(Client):
    """Stands for librdkafka above a broker that goes away as soon as it has described its topics."""

    def list_topics(self, *_: str, **__: float) -> mock.Mock:
        return mock.Mock(topics={"orders": mock.Mock(partitions={0: mock.Mock(leader=1)}, error=None)})

    def get_watermark_offsets(self, *_: object, **__: float) -> None:
        self.released.set()
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))


class SilentClient(Client):
    """Stands for librdkafka that has stopped to fetch: Kafka has 5 records, the client hands over some and no more."""

    def offsets_for_times(self, _asked: list[TopicPartition], **_: float) -> list[TopicPartition]:
        return [TopicPartition("orders", 0, 5)]


def test_a_client_that_fetches_no_more_is_replaced(
    start: Callable[[list[Client]], Setting], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "LOOK_INTERVAL_MS", 0)
    stops, works = SilentClient(3, hangs=False), SilentClient(2, hangs=False)
    setting = start([stops, works])
    setting.assign()
    setting.look_until(lambda: len(setting.offsets) == 5)
    setting.look_until(lambda: not works._left)
    assert setting.offsets == [0, 1, 2, 3, 4]
    assert works.assigned_at == [3]
    rounds = works.rounds
    setting.look_until(lambda: works.rounds > rounds + 10)  # all is read: nobody else is put into its place


def test_a_broker_that_goes_away_at_once_is_waited_for(start: Callable[[list[Client]], Setting]) -> None:
    client = BriefBroker(2, hangs=False)
    setting = start([client])
    setting.assign()
    setting.look_until(lambda: setting.offsets == [0, 1])
    assert client.released.is_set()
    with setting.shared.lock:
        assert setting.shared.take_failure() is None


def test_replacements_have_a_limit(start: Callable[[list[Client]], Setting], monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert str(failures[-1]).startswith("the Kafka client has failed 2 times within 24 h; at last it has not come back")


def test_old_replacements_do_not_count(
    start: Callable[[list[Client]], Setting], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "MAX_REPLACEMENTS", 1)
    hanging = [Client(1, hangs=True) for _ in range(3)]
    setting = start([*hanging, Client(1, hangs=False)])
    setting.assign()
    for client in hanging:
        setting.look_until(client.hung.is_set)
        replaced_at_s = setting.fetcher._replaced_at_s
        replaced_at_s.extend([replaced_at_s.pop() - watchdog.REPLACEMENTS_PERIOD_S] if replaced_at_s else [])
        count = len(setting.fetcher._replaced_at_s)
        setting.look_until(lambda client=client: setting.fetcher._fetcher._consumer is not client)  # type: ignore[misc]
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


@pytest.mark.parametrize(
    "method", ["poll", "consume", "incremental_assign", "list_topics", "get_watermark_offsets", "offsets_for_times"]
)
def test_a_call_that_fails_once_costs_no_record(start: Callable[[list[Client]], Setting], method: str) -> None:
    setting = start([RefusingClient(method), Client(5, hangs=False)])
    setting.assign()
    setting.look_until(lambda: len(setting.offsets) >= 2)
    assert setting.offsets == list(range(len(setting.offsets)))
    assert setting.shared.breakdown is None


@pytest.mark.parametrize("failure", [KafkaException(KafkaError(KafkaError._FAIL)), RuntimeError("no more threads")])
def test_a_replacement_that_cannot_be_made_is_tried_again(
    start: Callable[[list[Client]], Setting], monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    setting = start([Client(1, hangs=True), Client(4, hangs=False)])
    new_fetcher = setting.fetcher._new_fetcher
    monkeypatch.setattr(setting.fetcher, "_new_fetcher", _failing_once(failure, new_fetcher))
    setting.assign()
    setting.look_until(lambda: len(setting.offsets) == 5)
    assert setting.offsets == list(range(5))


def _failing_once(failure: Exception, works: Callable[[], Fetcher]) -> Callable[[], Fetcher]:
    failures = iter([failure])

    def call() -> Fetcher:
        for once in failures:
            raise once
        return works()

    return call


def test_a_replacement_whose_thread_does_not_start_is_replaced(start: Callable[[list[Client]], Setting]) -> None:
    setting = start([Client(1, hangs=True), Client(4, hangs=False), Client(4, hangs=False)])
    setting.assign()
    setting.look_until(setting.clients[0].hung.is_set)
    with mock.patch("threading.Thread.start", side_effect=RuntimeError("can't start new thread")):
        setting.look_until(lambda: setting.fetcher._fetcher.failure is not None)
    setting.look_until(lambda: len(setting.offsets) == 5)
    assert setting.offsets == list(range(5))
