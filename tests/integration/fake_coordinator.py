"""A scripted coordinator, and an application whose thread the test can block, on real servers."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import gevent
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from consumer_agent import Consumer, Record
from tests.support.deadlines import WITHIN_S
from tests.support.waiting import wait_until
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.protocol import calls, cluster_nodes, command, ownership, paths
from zkrebalancer.protocol.command import Cause, Command, StartFetcher, StopFetcher
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.runtime.zk import BlockingZk

WAIT_S = WITHIN_S
OWN_SESSION_TIMEOUT_MS = 60_000  # a test may keep its thread waiting for another process
SESSION_TIMEOUT_MS = 2_000


def assert_stays(is_true: Callable[[], object], seconds: float) -> None:
    """Check repeatedly that a condition stays true."""
    end_at = time.monotonic() + seconds
    while time.monotonic() < end_at:
        assert is_true()
        gevent.sleep(0.01)


class Stage:
    """A separate topic and group, with a producer and the actions of the fake coordinator."""

    def __init__(self, cluster: LocalCluster, partitions: int = 4) -> None:
        self.cluster = cluster
        self.topic = f"t-{uuid.uuid4().hex[:8]}"
        self.group = f"g-{uuid.uuid4().hex[:8]}"
        self.zk = BlockingZk(cluster.zookeeper, OWN_SESSION_TIMEOUT_MS)
        self.generation = 0
        self.produced: dict[int, int] = {}
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        kept = {"retention.ms": "-1"}  # records of past years too, which the broker would delete at its next look
        admin.create_topics([NewTopic(self.topic, partitions, 1, config=kept)])[self.topic].result(WAIT_S)
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0})

    def close(self) -> None:
        self._producer.close()  # an exception caught by a test keeps the stage, with its open client, for longer
        self.zk.close()

    def produce(self, partitions: Iterable[int], count: int, timestamp_ms: int = 0) -> None:
        """Append `count` numbered records to each partition, with the present or a given time."""
        for partition in partitions:
            first = self.produced.get(partition, 0)
            for number in range(first, first + count):
                self._producer.produce(self.topic, str(number).encode(), partition=partition, timestamp=timestamp_ms)
            self.produced[partition] = first + count
        assert self._producer.flush(WAIT_S) == 0

    def send_values(self, partition: int, *values: bytes | None) -> None:
        """Append records with these values; None is null."""
        for value in values:
            self._producer.produce(self.topic, value, partition=partition)
        assert self._producer.flush(WAIT_S) == 0

    def of(self, *partitions: int) -> frozenset[TopicPartition]:
        return frozenset((self.topic, partition) for partition in partitions)

    # ---- what the coordinator sees

    def members(self) -> tuple[str, ...]:
        return self.children(paths.ids(self.group))

    def children(self, path: str) -> tuple[str, ...]:
        reply = self.zk.perform(calls.ListChildren(path), calls.ABSENT)
        return reply.names if isinstance(reply, calls.Children) else ()

    def content(self, path: str) -> bytes | None:
        reply = self.zk.perform(calls.Get(path), calls.ABSENT)
        return reply.content if isinstance(reply, calls.Content) else None

    def owners(self, consumer: str) -> OwnersRecord | None:
        content = self.content(paths.owners(self.group, consumer))
        return None if content is None else ownership.decode_owners(content)

    def offset(self, partition: int) -> int | None:
        content = self.content(paths.offsets(self.group, self.topic, partition))
        return None if content is None else cluster_nodes.decode_counter("offset", content)

    def wait_member(self, *not_these: str) -> str:
        """Wait for a consumer other than the given ones and return its name."""
        wait_until(lambda: set(self.members()) - set(not_these), "a consumer to register")
        (name,) = set(self.members()) - set(not_these)
        return name

    # ---- what the coordinator does

    def send(self, consumer: str, content: bytes) -> str:
        """Create a command in a consumer's channel and return its path."""
        prefix = f"{paths.channel(self.group, consumer)}/{paths.COMMAND_PREFIX}"
        reply = self.zk.perform(calls.Multi((calls.Create(prefix, content, sequence=True),)))
        assert isinstance(reply, calls.Done)
        return str(reply.results[0])

    def command(self, consumer: str, sent: Command) -> str:
        return self.send(consumer, command.encode(sent))

    def start(self, consumer: str, *partitions: int) -> str:
        """Send a start-fetcher and return the command's path."""
        self.generation += 1
        cause = Cause(f"cause-{self.generation}", "test")
        owned = dict.fromkeys(self.of(*partitions), 0)
        return self.command(consumer, StartFetcher(str(uuid.uuid4()), 1, self.generation, cause, owned))

    def stop(self, consumer: str, *partitions: int) -> str:
        """Send a stop-fetcher (by default for everything) and return the command's path."""
        self.generation += 1
        cause = Cause(f"cause-{self.generation}", "test")
        stopped = self.of(*partitions) if partitions else None
        return self.command(consumer, StopFetcher(str(uuid.uuid4()), 1, self.generation, cause, stopped))

    def wait_ack(self, path: str) -> None:
        wait_until(lambda: self.content(path) is None, f"{path} to be acknowledged")

    def is_pending(self, path: str) -> bool:
        return self.content(path) is not None

    def evict(self, consumer: str) -> None:
        """Delete all nodes of a consumer in one transaction, as the coordinator does."""
        channel = paths.channel(self.group, consumer)
        inside = [calls.Delete(f"{channel}/{name}") for name in self.children(channel)]
        own = [calls.Delete(paths.ids(self.group, consumer)), calls.Delete(paths.owners(self.group, consumer))]
        assert isinstance(self.zk.perform(calls.Multi((*own, *inside, calls.Delete(channel)))), calls.Done)


class Application:
    """A consumer in a separate thread; `hold` stops its polling, like a slow application."""

    def __init__(self, stage: Stage, on_error: type[Exception] | None = None, **settings: Any) -> None:
        defaults: dict[str, Any] = {"client_id": "app", "session_timeout_ms": SESSION_TIMEOUT_MS}
        self.consumer = Consumer(
            zookeeper=stage.cluster.zookeeper,
            bootstrap=stage.cluster.bootstrap,
            group=stage.group,
            **{**defaults, **settings},
        )
        self.records: list[Record] = []
        self.told: list[tuple[str, list[TopicPartition]]] = []
        self.on_revoke: Callable[[], object] | None = None
        self.errors: list[Exception] = []  # of the kind `on_error`, after which it continues
        self._passes = on_error or ()
        self._may_poll = threading.Event()
        self._may_poll.set()
        self.is_held = threading.Event()
        self._ending = False
        self._topic = stage.topic
        self._thread = threading.Thread(target=self._run)

    def start(self, *, ask: bool = False) -> Self:
        """Subscribe (with on_revoke if `ask`) and poll."""
        self.consumer.subscribe(
            [self._topic],
            on_assign=lambda partitions: self.told.append(("assign", partitions)),
            on_revoke=self._revoke if ask else None,
            on_lost=lambda partitions: self.told.append(("lost", partitions)),
        )
        self._thread.start()
        return self

    def hold(self) -> None:
        """Stop polling after the current poll."""
        self._may_poll.clear()
        assert self.is_held.wait(WAIT_S)

    def hold_after_a_batch(self) -> None:
        """Stop polling once a poll has returned records."""
        self.hold()
        count = len(self.records)
        self.is_held.clear()
        self._single = True
        self._may_poll.set()
        wait_until(lambda: len(self.records) > count, "a batch")
        assert self.is_held.wait(WAIT_S)

    def release(self) -> None:
        self._may_poll.set()

    def end(self) -> None:
        """Close the consumer in the application's thread and wait."""
        self._ending = True
        self._may_poll.set()
        if self._thread.ident is not None:
            self._thread.join(WAIT_S)
            assert not self._thread.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()

    def offsets(self, partition: int) -> list[int]:
        return [record.offset for record in list(self.records) if record.partition == partition]

    _single = False

    def _run(self) -> None:
        with self.consumer:
            while not self._ending:
                if not self._may_poll.is_set():
                    self.is_held.set()
                    self._may_poll.wait()
                    self.is_held.clear()
                batch = self._poll()
                self.records += batch
                if batch and self._single:
                    self._single = False
                    self._may_poll.clear()

    def _poll(self) -> Sequence[Record]:
        try:
            return self.consumer.poll(0.05)
        except self._passes as error:
            self.errors.append(error)
            return []

    def _revoke(self, partitions: list[TopicPartition]) -> None:
        self.told.append(("revoke", partitions))
        if self.on_revoke is not None:
            self.on_revoke()
