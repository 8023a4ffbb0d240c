"""A member's own ZooKeeper session, in a thread with its own gevent hub: the region's order, and calls for the member.

It is apart from the consumer's session, so that an unmodified Kafka client can be a member as well. While it is fresh,
the leader cannot have noticed that the member is lost: records are returned only then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import gevent
from gevent.event import Event as Flag

from consumer_agent.errors import has_stopped
from consumer_agent.runtime.clock import now_ms
from consumer_agent.runtime.threads import Condition, Thread, new_reentrant_lock, require_descriptors
from zkrebalancer.protocol.calls import (
    Call,
    Connected,
    Content,
    Get,
    Lost,
    Refusal,
    Refused,
    Replied,
    Reply,
    Watched,
    ZooKeeperEvent,
)
from zkrebalancer.protocol.errors import NodeContentError, RebalancerError
from zkrebalancer.protocol.refusals import refused_text
from zkrebalancer.protocol.zookeeper_security import ZooKeeperSecurity
from zkrebalancer.region import documents
from zkrebalancer.region.documents import Order
from zkrebalancer.runtime import logs
from zkrebalancer.runtime.zk import ZkClient

END_TIMEOUT_S = 3.0
CONNECT_TIMEOUT_MS = 10_000  # then a warning says that there is no connection yet
MAX_WAIT_S = 1.0
MAX_COMPLAINTS = 20  # that are remembered
MISSING_ORDER_BEAT_S = 0.2  # how often an order is looked for that does not exist yet
BEATS_PER_SESSION = 3  # reads of the order, which show that the session lives
LOST = Refused(Refusal.CONNECTION_LOST)

_log = logs.named(__name__)


@dataclass(slots=True)
class _Task:
    """Calls of the application's thread, and their replies."""

    calls: Sequence[Call]
    replies: list[Reply | None] = field(default_factory=list)
    missing: int = 0


class RegionSession:
    """One session after the other, until `close`."""

    def __init__(
        self,
        hosts: str,
        security: ZooKeeperSecurity | None,
        timeout_ms: int,
        order_path: str,
        *,
        call_timeout_s: float,
    ) -> None:
        """Prepare; nothing is connected before `start`."""
        self._call_timeout_s = call_timeout_s
        self._hosts, self._security, self._timeout_ms = hosts, security, timeout_ms
        self._order_path = order_path
        self.changed = Condition(new_reentrant_lock())  # for signals' handlers
        self.order: Order | None = None
        self.order_ms = 0  # when it was received
        self.failure: Exception | None = None  # why there will be no session any more
        self.ends = 0  # of sessions: a registration belongs to one of them
        self._fresh_until_ms = 0
        self._session_id: int | None = None
        self._tasks: deque[_Task] = deque()
        self._waiting: dict[int, tuple[_Task, int]] = {}
        self._beats: dict[int, int] = {}  # call -> when it was made
        self._last_id = 0
        self._beat_at_ms = 0
        self._is_running = True
        self._client: ZkClient | None = None
        self._complaints: deque[str] = deque(maxlen=MAX_COMPLAINTS)  # that were logged
        self._was_connected = False
        self._complain_at_ms = 0
        self._thread = Thread(self._run, "consumer-agent-region")

    # ---- the application's thread

    def start(self) -> None:
        """Start the thread; raises RuntimeError if the operating system starts no more. It may be called again."""
        self._thread.start()

    @property
    def is_fresh(self) -> bool:
        """Whether the session is surely alive."""
        return now_ms() < self._fresh_until_ms

    @property
    def session_id(self) -> int | None:
        """The id of the present session, None between two."""
        return self._session_id

    def wait(self, timeout_s: float) -> None:
        """Wait for a change of the order or of the session."""
        self.changed.wait_for_change(self.changed.changes, timeout_s)

    def perform(self, calls: Sequence[Call]) -> list[Reply]:
        """Perform calls, pipelined; replies that do not come are those of a broken connection."""
        task = _Task(calls, [None] * len(calls), len(calls))
        with self.changed.lock:
            self._tasks.append(task)
            self._wake()
        self.changed.wait_until(lambda: not (task.missing and self._is_running), self._call_timeout_s)
        return [reply or LOST for reply in task.replies]

    def close(self) -> None:
        """End the session and the thread, if it was started. After an interrupt, call it again."""
        with self.changed.lock:
            self._is_running = False
            self._wake()
        self._thread.join(END_TIMEOUT_S)

    def drop(self) -> bool:
        """Let the thread end within MAX_WAIT_S; return whether it runs. The garbage collector calls it: no locks."""
        self._is_running = False
        return self._thread.is_alive

    def _wake(self) -> None:
        if self._client is not None:
            self._async.send()

    # ---- the session's own thread

    def _run(self) -> None:
        try:
            require_descriptors()
            self._flag = Flag()
            self._async = gevent.get_hub().loop.async_()
            self._async.start(self._flag.set)
            try:
                self._serve()
            finally:
                with self.changed.lock:
                    self._client, self._fresh_until_ms = None, 0
                self._async.close()
                gevent.get_hub().destroy(destroy_loop=True)
        except (RebalancerError, OSError) as error:
            self.failure = error
        except BaseException as error:
            self.failure = has_stopped("session for its region", error)
            raise
        finally:
            with self.changed.lock:
                self._is_running = False
                self.changed.notify()

    def _serve(self) -> None:
        client = ZkClient(self._hosts, self._timeout_ms, self._handle, self._security)
        self._complain_at_ms = now_ms() + CONNECT_TIMEOUT_MS
        client.start()
        with self.changed.lock:
            self._client = client
        try:
            while self._is_running:
                self._round(client)
        finally:
            client.close()

    def _round(self, client: ZkClient) -> None:
        self._flag.clear()
        while self._tasks:
            task = self._tasks.popleft()
            for index, call in enumerate(task.calls):
                self._last_id += 1
                self._waiting[self._last_id] = task, index
                client.request(self._last_id, call)
        now = now_ms()
        if self._session_id is not None and now >= self._beat_at_ms:
            self._beat(client)
        if not self._was_connected and now >= self._complain_at_ms:
            self.complain(
                f"no ZooKeeper answered at {self._hosts} within {CONNECT_TIMEOUT_MS / 1_000:g} s; still trying"
            )
        left_s = MAX_WAIT_S if self._session_id is None else (self._beat_at_ms - now) / 1_000
        self._flag.wait(max(0.001, min(left_s, MAX_WAIT_S)))

    def complain(self, text: str) -> None:
        """Log what is wrong, once."""
        if text not in self._complaints:
            self._complaints.append(text)
            _log.warning("%s", text)

    def _beat(self, client: ZkClient) -> None:
        self._last_id += 1
        self._beats[self._last_id] = now_ms()
        is_missing = self.order is None
        pause_ms = 1_000 * MISSING_ORDER_BEAT_S if is_missing else self._timeout_ms / BEATS_PER_SESSION
        self._beat_at_ms = now_ms() + int(pause_ms)
        client.request(self._last_id, Get(self._order_path, watch=True))

    def _handle(self, event: ZooKeeperEvent) -> None:
        match event:
            case Connected(session_id, timeout_ms):
                self._session_id, self._timeout_ms, self._beat_at_ms = session_id, timeout_ms, 0
                self._was_connected = True
                self._flag.set()
            case Watched():
                self._beat_at_ms = 0
                self._flag.set()
            case Lost():
                with self.changed.lock:
                    self._session_id, self._fresh_until_ms, self.order = None, 0, None
                    self.ends += 1
                    self.changed.notify()
            case Replied(call_id, reply):
                self._replied(call_id, reply)

    def _replied(self, call_id: int, reply: Reply) -> None:
        sent_ms = self._beats.pop(call_id, None)
        if sent_ms is not None:
            self._order_read(sent_ms, reply)
            return
        task, index = self._waiting.pop(call_id)
        with self.changed.lock:
            task.replies[index] = reply
            task.missing -= 1
            if not task.missing:
                self.changed.notify()

    def _order_read(self, sent_ms: int, reply: Reply) -> None:
        if isinstance(reply, Refused) and reply.outcome_unknown:
            return
        order: Order | None = None
        if isinstance(reply, Content):
            try:
                order = documents.decode_order(reply.content)
            except NodeContentError as error:
                self.complain(f"{self._order_path}: {error}; the leader makes it anew")
        elif isinstance(reply, Refused) and reply.refusal is not Refusal.NO_NODE:
            self.complain(f"{refused_text(Get(self._order_path), reply)}; this member waits for it")
        with self.changed.lock:
            self._fresh_until_ms = max(self._fresh_until_ms, sent_ms + self._timeout_ms * 2 // 3)
            if order != self.order:
                self.order, self.order_ms = order, now_ms()
                self.changed.notify()
