"""A ZooKeeper in memory: performs `protocol.calls` with versions, ephemerals, sequences, multi and watches.

Sessions see answers and watch events in order, as on one connection. A test decides when each call is performed and
each answer delivered, and whether a connection breaks before or after a call is performed.

With `lagging`, each session reads from a server that lags until the session's own write, a `Sync` or `follow` updates
it; watches fire when their server is updated. Without `lagging`, there is one server, which is always up to date.

`denied` replaces access control lists: which identity lacks which right at a node. A session that may not read a node
gets no watch events for it. A request above `max_request_bytes` breaks its sender's connection, as a real server does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from zkrebalancer.protocol import calls
from zkrebalancer.protocol.calls import (
    Check,
    Create,
    Delete,
    Get,
    ListChildren,
    Multi,
    Operation,
    Refusal,
    Refused,
)
from zkrebalancer.protocol.requests import RequestLimit


class Right(Enum):
    """The rights that an access control list grants."""

    READ = "read"
    WRITE = "write"
    CREATE = "create"  # of children
    DELETE = "delete"  # of children


@dataclass(frozen=True, slots=True)
class Node:
    content: bytes
    created_zxid: int
    modified_zxid: int
    version: int = 0
    ephemeral_owner: int = 0


class Change(NamedTuple):
    """One node before and after a transaction; None: no node."""

    path: str
    before: Node | None
    after: Node | None


Observer = Callable[[int, tuple[Operation, ...], tuple[Change, ...]], None]  # session id, its operations, the changes


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

    def copy(self) -> Tree:
        tree = Tree()
        tree.nodes = dict(self.nodes)
        tree._names = {path: set(names) for path, names in self._names.items()}
        return tree


@dataclass(slots=True, eq=False)
class Server:
    """One server of the ensemble: its applied transactions and connected clients."""

    tree: Tree
    applied: int  # transactions
    sessions: list[Session] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Session:
    """One client's session: calls that are not performed yet, and messages that are not delivered yet."""

    session_id: int
    timeout_ms: int
    server: Server
    seen: int  # transactions that its client has seen; servers that have applied fewer refuse it
    notify: Callable[[], None] | None = None  # called after every answer
    sent: deque[tuple[int, calls.Call]] = field(default_factory=deque)
    inbox: deque[tuple[calls.ZooKeeperEvent, int]] = field(default_factory=deque)
    content_watches: set[str] = field(default_factory=set)
    child_watches: set[str] = field(default_factory=set)
    lasting_watches: set[str] = field(default_factory=set)  # of nodes with all below
    connected: bool = True
    expired: bool = False

    def answer(self, event: calls.ZooKeeperEvent) -> None:
        self.inbox.append((event, self.server.applied))
        if self.notify is not None:
            self.notify()

    def take(self) -> calls.ZooKeeperEvent:
        """Deliver the oldest message."""
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
        self.transactions: list[tuple[Operation, ...]] = []  # those of clients that succeeded
        self.sessions: dict[int, Session] = {}
        self.servers: list[Server] = [] if lagging else [Server(self.tree, 0)]
        self.observe: Observer | None = None
        self.max_request_bytes: int | None = None
        self.has_lasting_watches = True  # False: as before ZooKeeper 3.6
        self.identity: Callable[[int], str] = _nameless  # of a session, as access control lists name it
        self.denied: set[tuple[str, str, Right]] = set()  # identity, path, right
        self.withheld = 0  # watch events that were not delivered
        # Identities that could not read a node when it was deleted.
        self._died_denied: set[tuple[str, Node | None]] = set()
        self._creations: dict[str, int] = {}  # children that were ever created: the next sequence number

    @property
    def nodes(self) -> dict[str, Node]:
        return self.tree.nodes

    def children(self, path: str) -> list[str]:
        return self.tree.children(path)

    # Sessions -------------------------------------------------------------------------------------------------------

    def add_server(self, position: int | None = None) -> Server:
        """Start a server that has applied the first `position` transactions, None: all."""
        applied = len(self.log) if position is None else position
        tree = self.tree.copy()
        for changes in reversed(self.log[applied:]):
            for change in reversed(changes):
                tree.put(change.path, change.before)
        self.servers.append(Server(tree, applied))
        return self.servers[-1]

    def open(
        self, timeout_ms: int = 6_000, server: Server | None = None, notify: Callable[[], None] | None = None
    ) -> Session:
        """Open a session on a server; None: on a separate server if `lagging`, else on the only one."""
        server = server or (self.add_server() if self.lagging else self.servers[0])
        session = Session(len(self.sessions) + 1, timeout_ms, server, seen=server.applied, notify=notify)
        self.sessions[session.session_id] = session
        server.sessions.append(session)
        session.answer(calls.Connected(session.session_id, timeout_ms))
        return session

    def expire(self, session: Session) -> None:
        """End a session at the server; its client gets `Lost`."""
        self.end(session)
        if session.connected:
            session.answer(calls.Suspended())
        self._fail_calls(session, Refusal.SESSION_EXPIRED)
        session.answer(calls.Lost())

    def kill(self, session: Session) -> None:
        """End a session whose client is dead."""
        self.end(session)
        session.sent.clear()
        session.inbox.clear()

    def disconnect(self, session: Session) -> None:
        """Break the connection: unperformed calls and undelivered answers are lost."""
        session.connected = False
        lost = [event for event, _position in session.inbox if isinstance(event, calls.Replied)]
        session.inbox.clear()
        session.answer(calls.Suspended())
        for event in lost:
            session.answer(calls.Replied(event.call_id, Refused(Refusal.CONNECTION_LOST)))
        self._fail_calls(session, Refusal.CONNECTION_LOST)
        self.forget_watches(session)

    def forget_watches(self, session: Session) -> None:
        session.content_watches.clear()
        session.child_watches.clear()
        session.lasting_watches.clear()

    def reconnect(self, session: Session, server: Server | None = None) -> None:
        """Connect a session again, to a server that has applied at least the transactions that the client has seen."""
        session.connected = True
        session.server.sessions.remove(session)
        if server is None:
            if self.lagging:
                self.servers.remove(session.server)
            server = self.add_server(session.seen) if self.lagging else self.servers[0]
        session.server = server
        server.sessions.append(session)
        session.answer(calls.Connected(session.session_id, session.timeout_ms))

    def follow(self, session: Session, transactions: int | None = None) -> None:
        """Let the server of a session apply this many more transactions; None: all."""
        self.follow_server(session.server, transactions)

    def follow_server(self, server: Server, transactions: int | None = None) -> None:
        """Let a server apply this many more transactions (None: all); watches of its sessions fire."""
        end = len(self.log) if transactions is None else min(len(self.log), server.applied + transactions)
        while server.applied < end:
            changes = self.log[server.applied]
            server.applied += 1
            for change in changes:
                if server.tree is not self.tree:
                    server.tree.put(change.path, change.after)
                for session in server.sessions:
                    self._fire(session, change)

    def copy_to_another_ensemble(self) -> None:
        """Recreate every node, as a tool that copies the tree does; no session may be open."""
        changes = []
        for path, node in sorted(self.nodes.items())[1:]:
            self.zxid += 1
            anew = replace(node, created_zxid=self.zxid, modified_zxid=self.zxid, version=0)
            changes.append(self._change(path, anew))
        self.log.append(tuple(changes))
        for server in self.servers:
            self.follow_server(server)

    def is_behind(self, session: Session) -> bool:
        return session.connected and not session.expired and session.server.applied < len(self.log)

    def end(self, session: Session) -> None:
        """End a session and delete its ephemeral nodes."""
        if session.expired:
            return
        session.expired = True
        self.zxid += 1
        owned = [path for path, node in self.nodes.items() if node.ephemeral_owner == session.session_id]
        session.server.sessions.remove(session)
        if self.lagging and not session.server.sessions:
            self.servers.remove(session.server)
        self._commit(session.session_id, (), [self._change(path, None) for path in owned])

    def _fail_calls(self, session: Session, refusal: Refusal) -> None:
        while session.sent:
            call_id, _call = session.sent.popleft()
            session.answer(calls.Replied(call_id, Refused(refusal)))

    # Calls ----------------------------------------------------------------------------------------------------------

    def send(self, session: Session, call_id: int, call: calls.Call) -> None:
        if session.connected and not session.expired:
            session.sent.append((call_id, call))
        else:
            session.answer(calls.Replied(call_id, Refused(Refusal.CONNECTION_LOST)))

    def is_too_large(self, call: calls.Call) -> bool:
        """Whether a server would close the connection instead of reading the request."""
        if self.max_request_bytes is None or not isinstance(call, Multi):
            return False
        return not RequestLimit(self.max_request_bytes).fits(call.operations)

    def perform_next(self, session: Session) -> None:
        """Perform the oldest call of a session; its answer goes to the inbox."""
        if self.is_too_large(session.sent[0][1]):
            self.disconnect(session)
            return
        call_id, call = session.sent.popleft()
        if isinstance(call, Get | ListChildren):
            reply = self._read(call, session.server.tree, session.session_id)
            if call.watch and not isinstance(reply, Refused):
                (session.content_watches if isinstance(call, Get) else session.child_watches).add(call.path)
        elif isinstance(call, calls.WatchBelow):
            reply = calls.Done() if self.has_lasting_watches else Refused(Refusal.UNIMPLEMENTED)
            session.lasting_watches |= {call.path} if self.has_lasting_watches else set()
        else:
            reply = self.perform(call, session.session_id)
            if session in session.server.sessions:
                self.follow(session)  # before it answers a write or a sync, a server applies everything earlier
        session.answer(calls.Replied(call_id, reply))

    def perform(self, call: calls.Call, session_id: int = 0) -> calls.Reply:
        """Perform a call at once on the latest state, for a client without simulated messages."""
        if isinstance(call, calls.Sync | calls.WatchBelow):
            return calls.Done()
        if isinstance(call, Multi):
            return self._multi(call, session_id)
        return self._read(call, self.tree, session_id)

    def _lacks(self, session_id: int, path: str, right: Right) -> bool:
        return bool(self.denied) and (self.identity(session_id), path, right) in self.denied

    def _read(self, call: Get | ListChildren, tree: Tree, session_id: int) -> calls.Reply:
        node = tree.nodes.get(call.path)
        if node is None:
            return Refused(Refusal.NO_NODE)
        if self._lacks(session_id, call.path, Right.READ):
            return Refused(Refusal.NO_AUTH)
        if isinstance(call, ListChildren):
            return calls.Children(tuple(tree.children(call.path)))
        created = self._creations.get(call.path, 0) if tree is self.tree else -1  # not known of the past
        zxids = node.created_zxid, node.modified_zxid
        return calls.Content(node.content, calls.Stat(node.version, *zxids, node.ephemeral_owner, 0, created))

    def _multi(self, call: Multi, session_id: int) -> calls.Reply:
        if session_id and self.sessions[session_id].expired:
            return Refused(Refusal.SESSION_EXPIRED)
        self.zxid += 1
        results: list[str | int | None] = []
        changes: list[Change] = []
        for index, operation in enumerate(call.operations):
            try:
                path, node, result = self._operation(operation, session_id)
            except RefusedError as error:
                self._roll_back(changes)
                return Refused(error.refusal, index)
            results.append(result)
            if not isinstance(operation, Check):
                changes.append(self._change(path, node))
        self.transactions.append(call.operations)
        self._commit(session_id, call.operations, changes)
        return calls.Done(tuple(results))

    def _roll_back(self, changes: list[Change]) -> None:
        for change in reversed(changes):
            self.tree.put(change.path, change.before)
            if change.before is None:
                self._creations[parent(change.path)] -= 1

    def _operation(self, operation: Operation, session_id: int) -> tuple[str, Node | None, str | int | None]:
        """Return the path of the operation, the node there afterwards, and the result."""
        if isinstance(operation, Create):
            return self._create(operation, session_id)
        path, node = operation.path, self.nodes.get(operation.path)
        guarded = parent(path) if isinstance(operation, Delete) else path
        if guarded in self.nodes and self._lacks(session_id, guarded, RIGHTS[type(operation)]):
            raise RefusedError(Refusal.NO_AUTH)  # even if the node does not exist
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
        if self._lacks(session_id, above, Right.CREATE):
            raise RefusedError(Refusal.NO_AUTH)
        if self.nodes[above].ephemeral_owner:
            raise RefusedError(Refusal.NOT_ALLOWED)
        if operation.sequence:
            path += f"{self._creations.get(above, 0):010d}"
        if path in self.nodes:
            raise RefusedError(Refusal.NODE_EXISTS)
        owner = session_id if operation.ephemeral else 0
        return path, Node(operation.content, self.zxid, self.zxid, ephemeral_owner=owner), path

    def _change(self, path: str, node: Node | None) -> Change:
        change = Change(path, self.nodes.get(path), node)
        self.tree.put(path, node)
        if change.before is None:
            above = parent(path)
            self._creations[above] = self._creations.get(above, 0) + 1
        return change

    def _commit(self, session_id: int, operations: tuple[Operation, ...], changes: list[Change]) -> None:
        """Report a transaction to servers that never lag, and to `observe`."""
        for change in changes:
            if change.after is None:
                self._creations.pop(change.path, None)
                self._forget_rights(change)
        self.log.append(tuple(changes))
        if self.observe is not None:
            self.observe(session_id, operations, tuple(changes))
        if not self.lagging:
            self.follow_server(self.servers[0])

    def _forget_rights(self, change: Change) -> None:
        """Forget the access control list of a deleted node."""
        gone = {denied for denied in self.denied if denied[1] == change.path}
        self._died_denied |= {(identity, change.before) for identity, _path, right in gone if right is Right.READ}
        self.denied -= gone

    def _tell(self, session: Session, path: str, change: Change, *, children: bool) -> None:
        """Send a session a watch event for a path, unless it may not read the node (CVE-2024-23944)."""
        died = path == change.path and (self.identity(session.session_id), change.before) in self._died_denied
        if died or self._lacks(session.session_id, path, Right.READ):
            self.withheld += 1
        else:
            session.answer(calls.Watched(path, children=children))

    def _fire(self, session: Session, change: Change) -> None:
        path = change.path
        if path in session.content_watches:
            session.content_watches.discard(path)
            self._tell(session, path, change, children=False)
        elif any(f"{path}/".startswith(f"{watched}/") for watched in session.lasting_watches):
            self._tell(session, path, change, children=False)
        if change.before is None or change.after is None:
            listed = (parent(path), path) if change.after is None else (parent(path),)
            for watched in listed:
                if watched in session.child_watches:
                    session.child_watches.discard(watched)
                    self._tell(session, watched, change, children=True)


RIGHTS: dict[type[Operation], Right] = {Check: Right.READ, calls.SetContent: Right.WRITE, Delete: Right.DELETE}


def _nameless(_session_id: int) -> str:
    """Return no name; a module's function, not a lambda, so that a world can be pickled."""
    return ""


def parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"
