"""A ZooKeeper in memory: performs `protocol.calls` with versions, ephemerals, sequences, multi and one-shot watches.

Sessions see answers and watches in order, as on one connection. A test decides when each call is performed and each
answer delivered, and whether a connection breaks before or after a call was performed.

With `lagging`, every session reads from a server that is behind until its own write, a `Sync` or `follow` brings it
up; its watches fire as its server comes along. Without, all servers are always up to date.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

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


@dataclass(frozen=True, slots=True)
class Node:
    content: bytes
    created_zxid: int
    modified_zxid: int
    version: int = 0
    ephemeral_owner: int = 0


Change = tuple[str, Node | None]  # what stands at a path after a transaction, None: nothing


class Tree:
    """The nodes as one server knows them."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {"/": Node(b"", 0, 0)}
        self._names: dict[str, set[str]] = {}

    def put(self, path: str, node: Node | None) -> None:
        above, _slash, name = path.rpartition("/")
        if node is None:
            del self.nodes[path]
            self._names[above or "/"].discard(name)
        else:
            self.nodes[path] = node
            self._names.setdefault(above or "/", set()).add(name)

    def children(self, path: str) -> list[str]:
        return sorted(self._names.get(path, ()))


@dataclass(slots=True)
class Session:
    """One client: what was sent and not performed yet, and what was answered and not delivered yet."""

    session_id: int
    timeout_ms: int
    tree: Tree  # what its server knows
    applied: int  # transactions that its server has applied
    seen: int  # transactions that its client has seen: no server that is further behind takes it
    sent: deque[tuple[int, Call]] = field(default_factory=deque)
    inbox: deque[tuple[ZooKeeperEvent, int]] = field(default_factory=deque)
    content_watches: set[str] = field(default_factory=set)
    child_watches: set[str] = field(default_factory=set)
    connected: bool = True
    expired: bool = False

    def answer(self, event: ZooKeeperEvent) -> None:
        self.inbox.append((event, self.applied))

    def take(self) -> ZooKeeperEvent:
        """Deliver what came first."""
        event, position = self.inbox.popleft()
        self.seen = max(self.seen, position)
        return event


class RefusedError(Exception):
    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.value)
        self.refusal = refusal


class ZkModel:
    """The tree, the transactions that made it, and the sessions."""

    def __init__(self, *, lagging: bool = False) -> None:
        self.lagging = lagging
        self.tree = Tree()
        self.zxid = 0
        self.log: list[tuple[Change, ...]] = []
        self.transactions: list[tuple[Operation, ...]] = []  # those of clients that went through
        self.sessions: dict[int, Session] = {}
        self._next_sequence: dict[str, int] = {}

    @property
    def nodes(self) -> dict[str, Node]:
        return self.tree.nodes

    def children(self, path: str) -> list[str]:
        return self.tree.children(path)

    # Sessions -------------------------------------------------------------------------------------------------------

    def open(self, timeout_ms: int = 6_000) -> Session:
        end = len(self.log)
        session = Session(len(self.sessions) + 1, timeout_ms, self._tree_at(end), applied=end, seen=end)
        self.sessions[session.session_id] = session
        session.answer(calls.Connected(session.session_id, timeout_ms))
        return session

    def expire(self, session: Session) -> None:
        """End a session at the server; its client learns it as `Lost`."""
        self._end(session)
        if session.connected:
            session.answer(calls.Suspended())
        self._fail_calls(session, Refusal.SESSION_EXPIRED)
        session.answer(calls.Lost())

    def kill(self, session: Session) -> None:
        """End a session whose client is dead."""
        self._end(session)
        session.sent.clear()
        session.inbox.clear()

    def disconnect(self, session: Session) -> None:
        """Break the connection: calls that were sent are lost, answers that were not delivered too."""
        session.connected = False
        lost = [event for event, _position in session.inbox if isinstance(event, calls.Replied)]
        session.inbox.clear()
        session.answer(calls.Suspended())
        for event in lost:
            session.answer(calls.Replied(event.call_id, Refused(Refusal.CONNECTION_LOST)))
        self._fail_calls(session, Refusal.CONNECTION_LOST)
        session.content_watches.clear()
        session.child_watches.clear()

    def reconnect(self, session: Session) -> None:
        session.connected = True
        session.applied = session.seen if self.lagging else len(self.log)  # the next server may know as little
        session.tree = self._tree_at(session.applied)
        session.answer(calls.Connected(session.session_id, session.timeout_ms))

    def follow(self, session: Session, transactions: int | None = None) -> None:
        """Let the server of a session come along by so many transactions, None: all; what it watches fires."""
        end = len(self.log) if transactions is None else min(len(self.log), session.applied + transactions)
        while session.applied < end:
            changes = self.log[session.applied]
            session.applied += 1
            for path, node in changes:
                existed = path in session.tree.nodes
                session.tree.put(path, node)
                self._fire(session, path, is_listed_anew=node is None or not existed, is_gone=node is None)

    def is_behind(self, session: Session) -> bool:
        return session.connected and not session.expired and session.applied < len(self.log)

    def _tree_at(self, position: int) -> Tree:
        tree = Tree()
        for changes in self.log[:position]:
            for path, node in changes:
                tree.put(path, node)
        return tree

    def _end(self, session: Session) -> None:
        session.expired = True
        self.zxid += 1
        owned = [path for path, node in self.nodes.items() if node.ephemeral_owner == session.session_id]
        self._commit([self._change(path, None) for path in owned])

    def _fail_calls(self, session: Session, refusal: Refusal) -> None:
        while session.sent:
            call_id, _call = session.sent.popleft()
            session.answer(calls.Replied(call_id, Refused(refusal)))

    # Calls ----------------------------------------------------------------------------------------------------------

    def send(self, session: Session, call_id: int, call: Call) -> None:
        if session.connected and not session.expired:
            session.sent.append((call_id, call))
        else:
            session.answer(calls.Replied(call_id, Refused(Refusal.CONNECTION_LOST)))

    def perform_next(self, session: Session) -> None:
        """Perform the oldest call of a session; its answer goes to the inbox."""
        call_id, call = session.sent.popleft()
        if isinstance(call, Get | ListChildren):
            reply = self._read(call, session.tree)
            if call.watch and not isinstance(reply, Refused):
                (session.content_watches if isinstance(call, Get) else session.child_watches).add(call.path)
        else:
            reply = self.perform(call, session.session_id)
            self.follow(session)  # a server answers a write, and a sync, once it has applied all that came before
        session.answer(calls.Replied(call_id, reply))

    def perform(self, call: Call, session_id: int = 0) -> Reply:
        """Perform a call at once on the latest state, as somebody whose messages are of no interest."""
        if isinstance(call, Sync):
            return Done()
        if isinstance(call, Multi):
            return self._multi(call, session_id)
        return self._read(call, self.tree)

    def _read(self, call: Get | ListChildren, tree: Tree) -> Reply:
        node = tree.nodes.get(call.path)
        if node is None:
            return Refused(Refusal.NO_NODE)
        if isinstance(call, ListChildren):
            return Children(tuple(tree.children(call.path)))
        return Content(node.content, Stat(node.version, node.created_zxid, node.modified_zxid, node.ephemeral_owner))

    def _multi(self, call: Multi, session_id: int) -> Reply:
        if session_id and self.sessions[session_id].expired:
            return Refused(Refusal.SESSION_EXPIRED)
        self.zxid += 1
        results: list[str | int | None] = []
        changes: list[Change] = []
        before: list[Change] = []
        for index, operation in enumerate(call.operations):
            try:
                path, node, result = self._operation(operation, session_id)
            except RefusedError as error:
                for change in reversed(before):
                    self.tree.put(*change)
                return Refused(error.refusal, index)
            results.append(result)
            if not isinstance(operation, Check):
                before.append((path, self.nodes.get(path)))
                changes.append(self._change(path, node))
        self.transactions.append(call.operations)
        self._commit(changes)
        return Done(tuple(results))

    def _operation(self, operation: Operation, session_id: int) -> tuple[str, Node | None, str | int | None]:
        """Return the path that is concerned, what stands there afterwards, and the result of the operation."""
        if isinstance(operation, Create):
            return self._create(operation, session_id)
        path, node = operation.path, self.nodes.get(operation.path)
        if node is None:
            raise RefusedError(Refusal.NO_NODE)
        if operation.version not in {-1, node.version}:
            raise RefusedError(Refusal.BAD_VERSION)
        if isinstance(operation, Check):
            return path, node, None
        if isinstance(operation, Delete):
            if self.children(path):
                raise RefusedError(Refusal.NOT_EMPTY)
            return path, None, None
        version = node.version + 1
        return path, replace(node, content=operation.content, modified_zxid=self.zxid, version=version), version

    def _create(self, operation: Create, session_id: int) -> tuple[str, Node, str]:
        path, above = operation.path, parent(operation.path)
        if above not in self.nodes:
            raise RefusedError(Refusal.NO_NODE)
        if self.nodes[above].ephemeral_owner:
            raise RefusedError(Refusal.NOT_ALLOWED)
        if operation.sequence:
            path += f"{self._next_sequence.get(above, 0):010d}"
        if path in self.nodes:
            raise RefusedError(Refusal.NODE_EXISTS)
        self._next_sequence[above] = self._next_sequence.get(above, 0) + 1
        owner = session_id if operation.ephemeral else 0
        return path, Node(operation.content, self.zxid, self.zxid, ephemeral_owner=owner), path

    def _change(self, path: str, node: Node | None) -> Change:
        self.tree.put(path, node)
        return path, node

    def _commit(self, changes: Iterable[Change]) -> None:
        self.log.append(tuple(changes))
        if not self.lagging:
            for session in self.sessions.values():
                if self.is_behind(session):
                    self.follow(session)

    def _fire(self, session: Session, path: str, *, is_listed_anew: bool, is_gone: bool) -> None:
        fired = [(session.content_watches, path, False)]
        if is_listed_anew:
            fired.append((session.child_watches, parent(path), True))
        if is_gone:
            fired.append((session.child_watches, path, True))
        for watches, watched, is_children in fired:
            if watched in watches:
                watches.discard(watched)
                session.answer(calls.Watched(watched, is_children))


def parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"
