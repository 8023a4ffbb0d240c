"""An application in a thread of this process: it can be made to block, and its session is at hand."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from consumer_agent import Consumer
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.localcluster import faults
from zkrebalancer.protocol.fields import TopicPartition

POLL_TIMEOUT_S = 0.05
END_TIMEOUT_S = 30.0


class Application:
    """Polls until `end`; between `block` and `unblock` it does not."""

    def __init__(self, lab: Lab, group: str, name: str, topics: list[str], **settings: Any) -> None:
        """Subscribe with all callbacks and begin to poll; `settings` are those of a consumer."""
        self.name = name
        self.lost: list[list[TopicPartition]] = []
        self.revoked: list[list[TopicPartition]] = []
        self._zookeeper = lab.cluster.zookeeper
        self.consumer = Consumer(
            zookeeper=self._zookeeper,
            bootstrap=lab.cluster.bootstrap,
            group=group,
            client_id=name,
            session_timeout_ms=lab.session_timeout_ms,
            events_directory=lab.events,
            **settings,
        )
        self.consumer.subscribe(topics, on_revoke=self.revoked.append, on_lost=self.lost.append)
        self._may_poll = threading.Event()
        self._may_poll.set()
        self.is_blocked = threading.Event()
        self._ended = threading.Event()
        self._executor = ThreadPoolExecutor(1, name)
        self._run_ended = self._executor.submit(self._run)

    def block(self) -> None:
        """Keep it from polling, after the poll that is under way; `is_blocked` tells when."""
        self.is_blocked.clear()
        self._may_poll.clear()

    def unblock(self) -> None:
        """Let it poll again."""
        self._may_poll.set()

    def subscribe(self, topics: list[str]) -> None:
        """Ask for other topics, between two polls."""
        self.block()
        assert self.is_blocked.wait(END_TIMEOUT_S)
        self.consumer.subscribe(topics, on_revoke=self.revoked.append, on_lost=self.lost.append)
        self.unblock()

    def expire_session(self) -> None:
        """End its ZooKeeper session as if it had expired."""
        machine_thread = self.consumer._frontend.machine_thread
        assert machine_thread is not None
        assert machine_thread._client is not None
        credentials = machine_thread._client.credentials
        assert credentials is not None
        faults.expire_session(self._zookeeper, *credentials)

    def end(self) -> None:
        """Close the consumer in good order; raises what the application's thread has died of."""
        self._ended.set()
        self.unblock()
        self._executor.shutdown(wait=False)
        self._run_ended.result(END_TIMEOUT_S)

    def _run(self) -> None:
        with self.consumer:
            while not self._ended.is_set():
                if not self._may_poll.is_set():
                    self.is_blocked.set()
                    self._may_poll.wait()
                self.consumer.poll(POLL_TIMEOUT_S)
