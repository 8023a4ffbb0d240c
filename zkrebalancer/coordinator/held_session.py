"""One ZooKeeper session of a process that answers one request after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from zkrebalancer.protocol.errors import ZooKeeperUnavailableError
from zkrebalancer.runtime.zk import BlockingZk

SESSION_TIMEOUT_MS = 40_000  # long, because a large group may block the hub, and with it the session
Answer = TypeVar("Answer")


class HeldSession:
    """A session that lasts from the first reading on; one that was lost is opened again, once for a reading."""

    def __init__(self) -> None:
        """Connect at the first reading, not yet."""
        self._zk: BlockingZk | None = None

    def read(self, zookeeper: str, read: Callable[[BlockingZk], Answer]) -> Answer:
        """Return what `read` does; raises what it raises."""
        had_session = self._zk is not None
        try:
            if self._zk is None:
                self._zk = BlockingZk(zookeeper, SESSION_TIMEOUT_MS)
            return read(self._zk)
        except ZooKeeperUnavailableError:
            self.close()
            if not had_session:
                raise
        return self.read(zookeeper, read)

    def close(self) -> None:
        """End the session; the next reading opens another one."""
        zk, self._zk = self._zk, None
        if zk is not None:
            zk.close()
