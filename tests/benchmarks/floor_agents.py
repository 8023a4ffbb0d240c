"""A member that makes an agent's calls without its decisions, for `floor_group.py`.

It has the agent's three threads, its ZooKeeper session and its Kafka client, and hands over from thread to thread as an
agent does: renewals, commits, polls, a stop (read, `on_revoke` in the application's thread, transaction, unassign) and
a start (read, offsets, transaction, `on_assign`, assign). Its application records what it gets, as in `rebalance.py`.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import gevent
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Message, TopicPartition
from gevent.event import Event as Flag

from consumer_agent.config import ConsumerConfig
from consumer_agent.kafka.client import kafka_settings, store_settings
from consumer_agent.kafka.elsewhere import LookAtKafka
from consumer_agent.kafka.fetcher import MAX_ROUND_RECORDS, PATIENCE_GROWTH, POLL_TIMEOUT_S, REST_POLL_TIMEOUT_S
from consumer_agent.membership.registered_member import RENEWALS_PER_LEASE
from consumer_agent.runtime.threads import Condition, new_reentrant_lock
from tests.benchmarks.floor import RECORD, SESSION_TIMEOUT_MS
from zkrebalancer.experiments.members.program import POLL_TIMEOUT_S as APPLICATION_POLL_S
from zkrebalancer.experiments.members.recorder import Received, Recorder
from zkrebalancer.observe.events import EventLog
from zkrebalancer.protocol import calls
from zkrebalancer.protocol.registration import lease_ms
from zkrebalancer.runtime.zk import ZkClient

GROUP = TOPIC = "floor"
RENEWAL_S = lease_ms(SESSION_TIMEOUT_MS) // RENEWALS_PER_LEASE / 1_000  # as an agent does
COMMIT_S = 5.0
LEAVE_DEADLINE_S = 5.0
Handle = Callable[[Any], None]


class Session:
    """Calls to ZooKeeper, each with what handles its answer."""

    def __init__(self, hosts: str, put: Callable[[calls.ZooKeeperEvent], None]) -> None:
        """Begin to connect."""
        self._numbers = itertools.count()
        self._handlers: dict[int, Handle] = {}
        self.zk = ZkClient(hosts, SESSION_TIMEOUT_MS, put, reads_together=True)
        self.zk.start()

    def request(self, call: calls.Call, handle: Handle = lambda _reply: None) -> None:
        number = next(self._numbers)
        self._handlers[number] = handle
        self.zk.request(number, call)

    def replied(self, event: calls.Replied) -> None:
        self._handlers.pop(event.call_id)(event.reply)


class Member:
    """One member, with the threads of an agent."""

    def __init__(self, hosts: str, bootstrap: str, name: str, log: EventLog) -> None:
        """Prepare; `join` starts the threads."""
        self._hosts, self._name = hosts, name
        self._config = ConsumerConfig(zookeeper=hosts, bootstrap=bootstrap, group=GROUP, client_id=name)
        self._recorder = Recorder(log, GROUP, name)
        self._events: deque[calls.ZooKeeperEvent | Callable[[], None]] = deque()
        self._read: set[str] = set()  # commands that are or were handled
        lock = new_reentrant_lock()
        self._changed, self._fetch = Condition(lock), Condition(lock)
        self._notices: deque[Callable[[], None]] = deque()
        self._records: list[Message] = []
        self._changes: dict[int, int | None] = {}
        self._assigned: set[int] = set()
        self._positions: dict[int, int] = {}
        self._in_client = new_reentrant_lock()
        self._is_leaving = False

    def join(self) -> None:
        """Start the threads."""
        self._kafka = KafkaConsumer(kafka_settings(self._config))
        for target in (self._machine, self._fetcher, self._application):
            threading.Thread(target=target, daemon=True).start()

    def leave(self) -> None:
        """End the session."""
        self._is_leaving, left = True, threading.Event()

        def close() -> None:
            self._session.zk.close()
            left.set()

        self._send(close)
        left.wait(LEAVE_DEADLINE_S)

    # ---- machine thread

    def _machine(self) -> None:
        self._flag = Flag()
        self._wake = gevent.get_hub().loop.async_()
        self._wake.start(self._flag.set)
        LookAtKafka(GROUP, store_settings(self._config), reads_offsets=True).check({}, _fail, lambda: None)
        self._session = Session(self._hosts, self._put)
        renew_s = time.monotonic() + RENEWAL_S
        while True:
            self._flag.clear()
            while self._events:
                self._handle(self._events.popleft())
            if time.monotonic() >= renew_s:
                renew_s += RENEWAL_S
                self._session.request(calls.Multi((calls.Check(f"/owners/{self._name}"),)))
                self._session.request(calls.ListChildren(f"/channel/{self._name}"))
            self._flag.wait(renew_s - time.monotonic())

    def _put(self, event: calls.ZooKeeperEvent) -> None:
        self._events.append(event)
        self._flag.set()

    def _send(self, call: Callable[[], None]) -> None:
        """Let the machine thread do it."""
        self._events.append(call)
        self._wake.send()

    def _handle(self, event: calls.ZooKeeperEvent | Callable[[], None]) -> None:
        match event:
            case calls.Connected():
                self._session.request(calls.ListChildren("/ids"), self._register)
            case calls.Replied():
                self._session.replied(event)
            case calls.Watched(path):
                self._found(path)
            case calls.Lost() if self._is_leaving:
                pass
            case calls.Suspended() | calls.Lost():
                raise ConnectionError(event)
            case _:
                event()

    def _register(self, _listed: calls.Reply) -> None:
        creates = (
            calls.Create(f"/channel/{self._name}"),
            *(calls.Create(f"/{parent}/{self._name}", RECORD, ephemeral=True) for parent in ("ids", "owners")),
        )
        self._session.request(calls.Multi(creates), self._registered)

    def _registered(self, _done: calls.Reply) -> None:
        self._session.request(calls.WatchBelow(f"/channel/{self._name}"))
        self._session.request(calls.ListChildren(f"/channel/{self._name}"), self._listed)

    def _listed(self, commands: calls.Children) -> None:
        for name in commands.names:  # that came before the watch
            self._found(f"/channel/{self._name}/{name}")

    def _found(self, path: str) -> None:
        if path not in self._read:  # otherwise it is its own acknowledgement
            self._read.add(path)
            self._session.request(calls.Get(path), partial(self._command, path))

    def _command(self, path: str, content: calls.Content) -> None:
        command = json.loads(content.content)
        partitions: list[int] = command["partitions"]
        if command["option"] == "stop":
            self._tell(lambda: self._revoke(path, partitions))
            return
        self._begins: dict[int, int] = {}
        for number in partitions:
            self._session.request(calls.Get(f"/offsets/{number}"), partial(self._offset, path, partitions, number))

    def _offset(self, path: str, partitions: list[int], number: int, content: calls.Content) -> None:
        self._begins[number] = int(content.content)
        if len(self._begins) == len(partitions):
            self._acknowledge(path, {}, lambda: self._begin(self._begins))

    def _acknowledge(self, path: str, offsets: dict[int, int], then: Callable[[], None]) -> None:
        operations: list[calls.Operation] = [calls.SetContent(f"/owners/{self._name}", RECORD, -1), calls.Delete(path)]
        operations += _stores(offsets)
        self._session.request(calls.Multi(tuple(operations)), lambda _done: then())

    def _begin(self, begins: dict[int, int]) -> None:
        self._tell(lambda: self._recorder.started(_keys(begins)))
        self._change(begins)

    def _tell(self, notice: Callable[[], None]) -> None:
        with self._changed.lock:
            self._notices.append(notice)
            self._changed.notify()

    def _change(self, changes: dict[int, int] | dict[int, None]) -> None:
        with self._fetch.lock:
            self._changes.update(changes)
            self._fetch.notify()

    def _commit(self, offsets: dict[int, int]) -> None:
        self._session.request(calls.Multi((calls.Check(f"/owners/{self._name}"), *_stores(offsets))))

    # ---- application's thread

    def _application(self) -> None:
        commit_s = time.monotonic() + COMMIT_S
        while True:
            with self._changed.lock:
                changes = self._changed.changes
                notice = self._notices.popleft() if self._notices else None
                records, self._records = self._records, []
            if notice is not None:
                notice()
                continue
            records = records or self._draw()
            if records:
                self._deliver(records)
            else:
                self._changed.wait_for_change(changes, APPLICATION_POLL_S)
            if self._positions and time.monotonic() >= commit_s:
                commit_s = time.monotonic() + COMMIT_S
                positions, self._positions = self._positions, {}
                self._send(partial(self._commit, positions))

    def _draw(self) -> list[Message]:
        if not self._assigned or not self._in_client.acquire(blocking=False):
            return []
        try:
            return self._kafka.consume(MAX_ROUND_RECORDS, timeout=0)
        finally:
            self._in_client.release()

    def _deliver(self, messages: list[Message]) -> None:
        found = [
            Received(TOPIC, message.partition() or 0, message.offset() or 0, message.value())
            for message in messages
            if message.error() is None
        ]
        self._positions.update((record.partition, record.offset + 1) for record in found)
        self._recorder.delivered(found)

    def _revoke(self, path: str, partitions: list[int]) -> None:
        self._recorder.stopped(_keys(partitions), "revoked")
        final = {number: self._positions.pop(number) for number in partitions if number in self._positions}
        self._send(lambda: self._acknowledge(path, final, lambda: self._change(dict.fromkeys(partitions))))

    # ---- fetcher's thread

    def _fetcher(self) -> None:
        self._kafka.list_topics(TOPIC)
        patience_s = POLL_TIMEOUT_S
        while True:
            with self._fetch.lock:
                if not (self._changes or self._assigned):
                    self._fetch.wait()
                changes, self._changes = self._changes, {}
            with self._in_client:
                if changes:
                    patience_s = POLL_TIMEOUT_S
                    self._assign(changes)
                first = self._kafka.poll(patience_s) if self._assigned else None
                messages = [] if first is None else [first, *self._kafka.consume(MAX_ROUND_RECORDS - 1, timeout=0)]
            patience_s = POLL_TIMEOUT_S if messages else min(REST_POLL_TIMEOUT_S, patience_s * PATIENCE_GROWTH)
            if messages:
                with self._changed.lock:
                    self._records += messages
                    self._changed.notify()

    def _assign(self, changes: dict[int, int | None]) -> None:
        leaving = self._assigned.intersection(changes)
        coming = {number: offset for number, offset in changes.items() if offset is not None}
        if leaving:
            self._kafka.incremental_unassign([TopicPartition(TOPIC, number) for number in leaving])
        if coming:
            self._kafka.incremental_assign([TopicPartition(TOPIC, *begin) for begin in coming.items()])
        self._assigned = (self._assigned - leaving) | coming.keys()


def _keys(numbers: Collection[int]) -> list[tuple[str, int]]:
    return [(TOPIC, number) for number in numbers]


def _stores(offsets: dict[int, int]) -> list[calls.SetContent]:
    return [calls.SetContent(f"/offsets/{number}", b"%d" % offset, -1) for number, offset in offsets.items()]


def _fail(error: Exception) -> None:
    raise error


def run_member(name: str, hosts: str, bootstrap: str, events: str) -> None:
    """Wait for a line on standard input, join, and end with the input."""
    member = Member(hosts, bootstrap, name, EventLog(Path(events), name))
    print("ready", flush=True)
    if sys.stdin.readline():
        member.join()
        sys.stdin.read()
        member.leave()
        os._exit(0)  # its threads end with it
