"""An application in a thread of this process, which can be blocked and whose session can be expired."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from consumer_agent import Consumer
from tests.support.deadlines import WITHIN_S
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.localcluster import faults
from zkrebalancer.protocol.fields import TopicPartition

POLL_TIMEOUT_S = 0.05


class Application:
    """Polls until `end`, except between `block` and `unblock`."""

    def __init__(self, lab: Lab, group: str, name: str, topics: list[str], **settings: Any) -> None:
        """Subscribe with all callbacks and start polling; `settings`: of a consumer."""
        self.name = name
        self.lost: list[list[TopicPartition]] = []
        self.revoked: list[list[TopicPartition]] = []
        self._zookeeper = lab.cluster.zookeeper
        self.consumer = Consumer(
            zookeeper=self._zookeeper,
            bootstrap=lab.cluster.bootstrap,
            group=group,
            client_id=name,
            events_directory=lab.events,
            **{"session_timeout_ms": lab.session_timeout_ms, **settings},
        )
        self.consumer.subscribe(topics, on_revoke=self.revoked.append, on_lost=self.lost.append)
        self._may_poll = threading.Event()
        self._may_poll.set()
        self.is_blocked = threading.Event()
        self._ended = threading.Event()
        self._executor = ThreadPoolExecutor(1, name)
        self._run_ended = self._executor.submit(self._run)

    def block(self) -> None:
        """Stop polling after the current poll; `is_blocked` is set then."""
        self.is_blocked.clear()
        self._may_poll.clear()

    def unblock(self) -> None:
        """Poll again."""
        self._may_poll.set()

    def subscribe(self, topics: list[str]) -> None:
        """Change the subscription, between two polls."""
        self.block()
        assert self.is_blocked.wait(WITHIN_S)
        self.consumer.subscribe(topics, on_revoke=self.revoked.append, on_lost=self.lost.append)
        self.unblock()

    def expire_session(self) -> None:
        """End the consumer's ZooKeeper session as if it had expired."""
        machine_thread = self.consumer._frontend.machine_thread
        assert machine_thread is not None
        assert machine_thread._client is not None
        credentials = machine_thread._client.credentials
        assert credentials is not None
        faults.expire_session(self._zookeeper, *credentials)

    def end(self) -> None:
        """Close the consumer cleanly; raises the error that ended the application's thread."""
        self._ended.set()
        self.unblock()
        self._executor.shutdown(wait=False)
        self._run_ended.result(WITHIN_S)

    def _run(self) -> None:
        with self.consumer:
            while not self._ended.is_set():
                if not self._may_poll.is_set():
                    self.is_blocked.set()
                    self._may_poll.wait()
                self.consumer.poll(POLL_TIMEOUT_S)
