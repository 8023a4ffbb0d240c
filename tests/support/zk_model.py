"""A ZooKeeper in memory: performs `protocol.calls` with versions, ephemerals, sequences, multi and one-shot watches.

Sessions see answers and watches in order, as on one connection. A test decides when each is delivered, and whether a
connection breaks before or after a call was performed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from zkrebalancer.protocol import calls
from zkrebalancer.protocol.calls import (
    Call,
    Check,
    Children,
    Content,
    Create,
    Delete,
    Done,
    Get,
    ListChildren,
    Multi,
    Operation,
    Refusal,
    Refused,
    Reply,
    Stat,
    Sync,
    ZooKeeperEvent,
)


@dataclass(slots=True)
class Node:
    content: bytes
    created_zxid: int
    modified_zxid: int
    version: int = 0
    ephemeral_owner: int = 0
    next_sequence: int = 0


@dataclass(slots=True)
class Session:
    """One client: what was sent and not performed yet, and what was answered and not delivered yet."""

    session_id: int
    timeout_ms: int
    sent: deque[tuple[int, Call]] = field(default_factory=deque)
    inbox: deque[ZooKeeperEvent] = field(default_factory=deque)
    connected: bool = True
    expired: bool = False


class RefusedError(Exception):
    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.value)
        self.refusal = refusal


class ZkModel:
    """The tree and its sessions."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {"/": Node(b"", 0, 0)}
        self.zxid = 0
        self.sessions: dict[int, Session] = {}
        self.transactions: list[tuple[Operation, ...]] = []  # that went through
        self._content_watches: dict[str, list[int]] = {}
        self._child_watches: dict[str, list[int]] = {}

    # Sessions -------------------------------------------------------------------------------------------------------

    def open(self, timeout_ms: int = 6_000) -> Session:
        session = Session(len(self.sessions) + 1, timeout_ms)
        self.sessions[session.session_id] = session
        session.inbox.append(calls.Connected(session.session_id, timeout_ms))
        return session

    def expire(self, session: Session) -> None:
        """End a session at the server; its client learns it as `Lost`."""
        self._end(session)
        if session.connected:
            session.inbox.append(calls.Suspended())
        self._fail_calls(session, Refusal.SESSION_EXPIRED)
        session.inbox.append(calls.Lost())

    def kill(self, session: Session) -> None:
        """End a session whose client is dead."""
        self._end(session)
        session.sent.clear()
        session.inbox.clear()

    def disconnect(self, session: Session) -> None:
        """Break the connection: calls that were sent are lost, answers that were not delivered too."""
        session.connected = False
        lost = [event for event in session.inbox if isinstance(event, calls.Replied)]
        session.inbox.clear()
        session.inbox.append(calls.Suspended())
        for event in lost:
            session.inbox.append(calls.Replied(event.call_id, Refused(Refusal.CONNECTION_LOST)))
        self._fail_calls(session, Refusal.CONNECTION_LOST)
        for watches in (self._content_watches, self._child_watches):
            for path in list(watches):
                watches[path] = [watcher for watcher in watches[path] if watcher != session.session_id]

    def reconnect(self, session: Session) -> None:
        session.connected = True
        session.inbox.append(calls.Connected(session.session_id, session.timeout_ms))

    def _end(self, session: Session) -> None:
        session.expired = True
        self.zxid += 1
        owned = [path for path, node in self.nodes.items() if node.ephemeral_owner == session.session_id]
        for path in owned:
            self._remove(path)

    def _fail_calls(self, session: Session, refusal: Refusal) -> None:
        while session.sent:
            call_id, _call = session.sent.popleft()
            session.inbox.append(calls.Replied(call_id, Refused(refusal)))

    # Calls ----------------------------------------------------------------------------------------------------------

    def send(self, session: Session, call_id: int, call: Call) -> None:
        if session.connected and not session.expired:
            session.sent.append((call_id, call))
        else:
            session.inbox.append(calls.Replied(call_id, Refused(Refusal.CONNECTION_LOST)))

    def perform_next(self, session: Session) -> None:
        """Perform the oldest call of a session; its answer goes to the inbox."""
        call_id, call = session.sent.popleft()
        reply = self.perform(call, session.session_id)
        session.inbox.append(calls.Replied(call_id, reply))

    def perform(self, call: Call, session_id: int = 0) -> Reply:
        if isinstance(call, Sync):
            return Done()
        if isinstance(call, Multi):
            return self._multi(call, session_id)
        node = self.nodes.get(call.path)
        if node is None:
            return Refused(Refusal.NO_NODE)
        watches = self._content_watches if isinstance(call, Get) else self._child_watches
        if call.watch and session_id not in watches.setdefault(call.path, []):
            watches[call.path].append(session_id)
        if isinstance(call, ListChildren):
            return Children(tuple(sorted(self.children(call.path))))
        return Content(
            node.content, Stat(node.version, node.created_zxid, node.modified_zxid, node.ephemeral_owner)
        )

    def children(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        return [name[len(prefix) :] for name in self.nodes if name.startswith(prefix) and "/" not in name[len(prefix) :] and name != "/"]

    def _multi(self, call: Multi, session_id: int) -> Reply:
        before = {path: Node(n.content, n.created_zxid, n.modified_zxid, n.version, n.ephemeral_owner, n.next_sequence) for path, n in self.nodes.items()}
        self.zxid += 1
        results: list[str | int | None] = []
        fired: list[tuple[str, bool]] = []
        for index, operation in enumerate(call.operations):
            try:
                results.append(self._operation(operation, session_id, fired))
            except RefusedError as error:
                self.nodes = before
                return Refused(error.refusal, index)
        self.transactions.append(call.operations)
        for path, is_children in fired:
            self._fire(path, children=is_children)
        return Done(tuple(results))

    def _operation(self, operation: Operation, session_id: int, fired: list[tuple[str, bool]]) -> str | int | None:
        if isinstance(operation, Create):
            return self._create(operation, session_id, fired)
        node = self.nodes.get(operation.path)
        if node is None:
            raise RefusedError(Refusal.NO_NODE)
        if operation.version not in {-1, node.version}:
            raise RefusedError(Refusal.BAD_VERSION)
        if isinstance(operation, Check):
            return None
        if isinstance(operation, Delete):
            if self.children(operation.path):
                raise RefusedError(Refusal.NOT_EMPTY)
            del self.nodes[operation.path]
            fired += [(operation.path, False), (operation.path, True), (parent(operation.path), True)]
            return None
        node.content, node.modified_zxid = operation.content, self.zxid
        node.version += 1
        fired.append((operation.path, False))
        return node.version

    def _create(self, operation: Create, session_id: int, fired: list[tuple[str, bool]]) -> str:
        above = self.nodes.get(parent(operation.path))
        if above is None:
            raise RefusedError(Refusal.NO_NODE)
        path = operation.path
        if operation.sequence:
            path += f"{above.next_sequence:010d}"
        if path in self.nodes:
            raise RefusedError(Refusal.NODE_EXISTS)
        above.next_sequence += 1
        owner = session_id if operation.ephemeral else 0
        self.nodes[path] = Node(operation.content, self.zxid, self.zxid, ephemeral_owner=owner)
        fired += [(path, False), (parent(path), True)]
        return path

    def _remove(self, path: str) -> None:
        del self.nodes[path]
        self._fire(path, children=False)
        self._fire(path, children=True)
        self._fire(parent(path), children=True)

    def _fire(self, path: str, *, children: bool) -> None:
        watches = self._child_watches if children else self._content_watches
        for session_id in watches.pop(path, []):
            session = self.sessions[session_id]
            if session.connected and not session.expired:
                session.inbox.append(calls.Watched(path, children))


def parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"
