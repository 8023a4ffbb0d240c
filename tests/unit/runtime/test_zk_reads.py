"""Reads that are sent together, beside a server that does what a real one does only rarely."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from gevent.queue import Queue

from tests.support.deadlines import WITHIN_S
from tests.unit.runtime.zk_server import TIMEOUT_MS, Answers, Server, answer
from zkrebalancer.protocol.calls import (
    Connected,
    Content,
    Get,
    ReadEach,
    Refusal,
    Refused,
    Replied,
    RepliedAll,
    RepliedInRow,
    Stat,
    Sync,
    Watched,
    ZooKeeperEvent,
)
from zkrebalancer.protocol.requests import RequestLimit
from zkrebalancer.protocol.zookeeper_security import ZooKeeperSecurity
from zkrebalancer.runtime import zk, zk_reads
from zkrebalancer.runtime.zk import ZkClient
from zkrebalancer.runtime.zk_reads import MIN_READS

EVENT = -1
GET, SYNC, SET_WATCHES, MULTI_READ = 4, 9, 101, 22
NO_NODE, UNIMPLEMENTED = -101, -6
CHANGED, DELETED = 3, 2
STAT = struct.pack(">qqqqiiiqiiq", *range(11))
READS = [Get(f"/n{number}", watch=True) for number in range(MIN_READS)]
CONTENT = Content(b"x", Stat(4, 0, 1, 7, 2, 7))


def changed(path: str, kind: int = CHANGED) -> bytes:
    return struct.pack(">iqi", EVENT, -1, 0) + struct.pack(f">iii{len(path)}s", kind, 3, len(path), path.encode())


def contents(count: int = MIN_READS) -> bytes:
    one = struct.pack(">iBi", GET, 0, 0) + struct.pack(">i1s", 1, b"x") + STAT
    return count * one + struct.pack(">iBi", -1, 1, -1)


def nothing(count: int = MIN_READS) -> bytes:
    return count * struct.pack(">iBii", -1, 0, NO_NODE, NO_NODE) + struct.pack(">iBi", -1, 1, -1)


class Client:
    """A client, and its events."""

    def __init__(self, address: str, *, reads_together: bool = True) -> None:
        self.events: Queue[ZooKeeperEvent | RepliedAll] = Queue()
        self._taken: deque[ZooKeeperEvent] = deque()  # of events with several replies
        put = self.events.put
        self.zk = ZkClient(address, TIMEOUT_MS, put, ZooKeeperSecurity(), reads_together=reads_together, on_replies=put)
        self.zk.start()
        assert isinstance(self.next(), Connected)

    def next(self) -> ZooKeeperEvent:
        """Return the next event; of replies that came together, the next one."""
        if not self._taken:
            event = self.events.get(timeout=WITHIN_S)
            self._taken.extend(event.each() if isinstance(event, RepliedAll) else (event,))
        return self._taken.popleft()

    def read(self) -> None:
        for number, read in enumerate(READS):
            self.zk.request(number, read)

    def replies(self, count: int = MIN_READS) -> list[ZooKeeperEvent]:
        return [self.next() for _ in range(count)]


@contextmanager
def connected(answers: Answers) -> Iterator[tuple[Server, Client]]:
    server = Server(answers)
    client = Client(server.address)
    try:
        yield server, client
    finally:
        client.zk.close()
        server.close()


ALL_READ = [Replied(number, CONTENT) for number in range(MIN_READS)]


def test_a_change_between_the_watch_and_the_read_is_reported_after_the_reply() -> None:
    """In `BulkReads._deliver`, do not report."""

    def answers(kind: int, number: int) -> list[bytes]:
        if kind == SET_WATCHES:
            return [answer(number), changed("/n1")]
        return [answer(number, contents())]

    with connected(answers) as (server, client):
        client.read()
        assert client.replies(MIN_READS + 1) == [*ALL_READ[:2], Watched("/n1", children=False), *ALL_READ[2:]]
        assert server.kinds == [SET_WATCHES, MULTI_READ]


def test_a_watch_lasts_when_a_former_one_fires_before_it_is_set() -> None:
    """In `BulkReads._send_some`, register only when the request is sent."""

    def answers(kind: int, number: int) -> list[bytes]:
        if kind == SET_WATCHES:
            return [changed("/n1"), answer(number)]
        return [answer(number, contents()), changed("/n1")]

    with connected(answers) as (_server, client):
        client.read()
        found = client.replies(MIN_READS + 2)
        assert found[-1] == Watched("/n1", children=False)
        assert found.count(found[-1]) == 2


def test_a_node_that_is_created_after_its_watch_was_refused_is_reported() -> None:
    """In `BulkReads._send_some`, register only when the watches are set: the core would never look again."""

    def answers(kind: int, number: int) -> list[bytes]:
        if kind == SET_WATCHES:
            return [changed("/n3", DELETED), answer(number)]
        return [answer(number, contents())]

    with connected(answers) as (_server, client):
        client.read()
        assert client.replies(MIN_READS + 1) == [*ALL_READ, Watched("/n3", children=False)]


def test_a_missing_node_is_not_reported() -> None:
    """In `BulkReads._deliver`, report whatever was held: the core reads it again, for ever."""

    def answers(kind: int, number: int) -> list[bytes]:
        if kind == SET_WATCHES:
            return [*(changed(read.path, DELETED) for read in READS), answer(number)]
        if kind == MULTI_READ:
            return [answer(number, nothing())]
        return [answer(number, b"x" + STAT)]

    with connected(answers) as (_server, client):
        client.read()
        refused = Refused(Refusal.NO_NODE)
        assert client.replies() == [Replied(number, refused) for number in range(MIN_READS)]
        client.read()  # nothing else was reported meanwhile
        assert client.replies() == [Replied(number, refused) for number in range(MIN_READS)]


@pytest.mark.parametrize(
    ("error", "body"),
    [(UNIMPLEMENTED, b""), (0, b""), (0, contents(MIN_READS - 1))],
    ids=["unimplemented", "another answer", "too short an answer"],
)
def test_a_server_that_does_not_know_the_request_is_asked_for_one_node_after_the_other(error: int, body: bytes) -> None:
    """In `BulkReads._answered`, refuse the reads; in `MultiRead.deserialize`, do not count the replies."""

    def answers(kind: int, number: int) -> list[bytes]:
        if kind == GET:
            return [answer(number, struct.pack(">i1s", 1, b"x") + STAT)]
        return [answer(number, body, error) if kind == MULTI_READ else answer(number)]

    with connected(answers) as (server, client):
        for _ in range(2):
            client.read()
            assert client.replies() == ALL_READ
        assert server.kinds == [SET_WATCHES, MULTI_READ, *[GET] * (2 * MIN_READS)]


def test_reads_on_a_connection_that_breaks_are_lost() -> None:
    """In `BulkReads._deliver`, answer none."""

    def answers(kind: int, number: int) -> list[bytes]:
        return [answer(number)] if kind == SET_WATCHES else []

    with connected(answers) as (_server, client):
        client.read()
        found = [event for event in client.replies(MIN_READS + 1) if isinstance(event, Replied)]
        assert found == [Replied(number, Refused(Refusal.CONNECTION_LOST)) for number in range(MIN_READS)]


def test_reads_that_wait_are_lost_with_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `ZkClient._session_changed`, let them wait for the next connection."""
    monkeypatch.setattr(zk_reads, "MAX_REQUESTS", 1)
    monkeypatch.setattr(zk_reads, "MAX_READS", 1)

    def answers(kind: int, number: int) -> list[bytes]:
        return [answer(number)] if kind == SET_WATCHES else []

    with connected(answers) as (server, client):
        client.read()
        found = [event for event in client.replies(MIN_READS + 1) if isinstance(event, Replied)]
        assert {event.reply for event in found} == {Refused(Refusal.CONNECTION_LOST)}
        assert server.kinds == [SET_WATCHES, MULTI_READ]


@pytest.mark.parametrize(
    ("limit", "value"), [("MAX_REPLIES", MIN_READS - 1), ("MAX_REPLY_BYTES", (MIN_READS - 2) * (13 + 1 + len(STAT)))]
)
def test_an_event_has_so_many_replies(monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    """In `ZkClient._reply_all`, make one event, or look at the number only."""
    monkeypatch.setattr(zk, limit, value)

    def answers(kind: int, number: int) -> list[bytes]:
        return [answer(number, contents() if kind == MULTI_READ else b"")]

    with connected(answers) as (_server, client):
        client.read()
        events = [client.events.get(timeout=WITHIN_S) for _ in range(2)]
        assert all(isinstance(event, RepliedAll) for event in events)
        assert [[*event.each()] for event in events if isinstance(event, RepliedAll)] == [ALL_READ[:-1], ALL_READ[-1:]]


def test_a_few_reads_are_made_alone() -> None:
    def answers(_kind: int, number: int) -> list[bytes]:
        return [answer(number, struct.pack(">i1s", 1, b"x") + STAT)]

    with connected(answers) as (server, client):
        client.zk.request(1, READS[0])
        assert client.next() == Replied(1, CONTENT)
        assert server.kinds == [GET]


def test_reads_wait_behind_calls_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `ZkClient._read_together`, add them at once: the core would not find what it had asked to be written."""
    monkeypatch.setattr(zk, "MAX_IN_FLIGHT", 2)

    def answers(kind: int, number: int) -> list[bytes]:
        bodies = {SYNC: struct.pack(">i1s", 1, b"/"), MULTI_READ: contents(2 * MIN_READS)}
        return [answer(number, bodies.get(kind, b""))]

    with connected(answers) as (server, client):
        for number in range(3):
            client.zk.request(MIN_READS + number, Sync("/"))
        client.read()
        client.zk.request_each(10, ReadEach(Get, "/a", [f"n{number}" for number in range(MIN_READS)]))
        found = [event for event in client.replies(3 + 2 * MIN_READS) if isinstance(event, Replied)]
        assert [event.call_id for event in found] == [4, 5, 6, *range(MIN_READS), *range(10, 10 + MIN_READS)]
        assert server.kinds == [SYNC, SYNC, SYNC, SET_WATCHES, MULTI_READ]


def test_a_request_is_no_larger_than_servers_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `BulkReads._take`, count no bytes."""

    def answers(kind: int, number: int) -> list[bytes]:
        return [answer(number, contents(2) if kind == MULTI_READ else b"")]

    with connected(answers) as (server, client):
        monkeypatch.setattr(client.zk._reads, "_limit", RequestLimit(2 * (len("/n0") + zk_reads.READ_BYTES)))
        client.read()
        assert client.replies() == ALL_READ
        assert server.kinds == [SET_WATCHES, MULTI_READ] * (MIN_READS // 2)


def test_fewer_large_nodes_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `BulkReads._answered`, do not note how large they are."""
    monkeypatch.setattr(zk_reads, "MAX_ANSWER_BYTES", 1)
    counts = iter([MIN_READS, *[1] * MIN_READS])

    def answers(kind: int, number: int) -> list[bytes]:
        return [answer(number, contents(next(counts)) if kind == MULTI_READ else b"")]

    with connected(answers) as (server, client):
        for _ in range(2):
            client.read()
            assert client.replies() == ALL_READ
        assert server.kinds == [SET_WATCHES, MULTI_READ] * (1 + MIN_READS)


def test_nodes_below_one_are_read_as_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `BulkReads._take`, forget what does not fit into a request; in `Asked.part`, keep the first id."""
    monkeypatch.setattr(zk_reads, "MAX_READS", MIN_READS)
    counts = iter([MIN_READS, 2])

    def answers(kind: int, number: int) -> list[bytes]:
        if kind == SET_WATCHES:
            return [answer(number), changed("/a/n1")]
        return [answer(number, contents(next(counts)))]

    with connected(answers) as (server, client):
        names = [f"n{number}" for number in range(MIN_READS + 2)]
        client.zk.request_each(7, ReadEach(Get, "/a", names, watch=True))
        found = client.replies(MIN_READS + 3)
        assert found.pop(2) == Watched("/a/n1", children=False)
        assert found == [Replied(7 + number, CONTENT) for number in range(MIN_READS + 2)]
        assert server.kinds == [SET_WATCHES, MULTI_READ] * 2


def test_replies_to_calls_with_consecutive_ids_come_in_one_row() -> None:
    """In `BulkReads._deliver`, join any two rows."""

    def answers(kind: int, number: int) -> list[bytes]:
        return [answer(number, contents(7) if kind == MULTI_READ else b"")]

    with connected(answers) as (_server, client):
        client.zk.request_each(1, ReadEach(Get, "/a", ["x", "y"]))
        client.zk.request_each(3, ReadEach(Get, "/b", ["x", "y"]))
        client.zk.request_each(9, ReadEach(Get, "/c", ["x", "y", "z"]))
        event = client.events.get(timeout=WITHIN_S)
        assert event == RepliedAll((RepliedInRow(1, [CONTENT] * 4), RepliedInRow(9, [CONTENT] * 3)))


def test_nodes_below_one_are_read_together_by_a_client_that_reads_others_alone() -> None:
    """In `ZkClient.request_each`, read each alone: a gateway's request for many offsets takes ten times as long."""

    def answers(_kind: int, number: int) -> list[bytes]:
        return [answer(number, contents(MIN_READS))]

    server = Server(answers)
    client = Client(server.address, reads_together=False)
    try:
        client.zk.request_each(0, ReadEach(Get, "/a", [f"n{number}" for number in range(MIN_READS)]))
        assert client.replies() == ALL_READ
        assert server.kinds == [MULTI_READ]
    finally:
        client.zk.close()
        server.close()
