"""In which order calls reach the server: no read before a write that was requested before it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, cast
from unittest import mock

import gevent
from hypothesis import example, given
from hypothesis import strategies as st
from kazoo.exceptions import NoNodeError
from kazoo.protocol.serialization import GetData, Transaction

from zkrebalancer.protocol.calls import Get, Multi, ReadEach, Refusal, Refused, Replied, SetContent, ZooKeeperEvent
from zkrebalancer.protocol.zookeeper_security import ZooKeeperSecurity
from zkrebalancer.runtime import zk, zk_reads
from zkrebalancer.runtime.zk import ZkClient
from zkrebalancer.runtime.zk_reads import MultiRead
from zkrebalancer.runtime.zk_wire import INT

TIMEOUT_MS = 30_000
MISSING = Refused(Refusal.NO_NODE)
WRITE, READ, SOME_READS, TURN, ANSWER = "write", "read", "some reads", "turn", "answer"
MAX_STEPS = 30
TURNS = 2 + 3 * 3 * MAX_STEPS  # three reads a step, each has its own answer, and what waited for it
STEPS = st.lists(st.sampled_from([WRITE, WRITE, READ, READ, SOME_READS, TURN, ANSWER]), max_size=MAX_STEPS)


class Line:
    """A client, and the calls that it has sent; the oldest one is answered when a test says so."""

    def __init__(self, *, reads_together: bool) -> None:
        self.events: list[ZooKeeperEvent] = []
        security = ZooKeeperSecurity()
        self.client = ZkClient("nowhere:1", TIMEOUT_MS, self.events.append, security, reads_together=reads_together)
        kazoo = cast("Any", self.client._kazoo)
        kazoo._call = self._take
        kazoo.handler.dispatch_callback = lambda callback: callback.func(*callback.args)
        self.client._usable = True
        self.writes: list[int] = []  # ids of those requested
        self.earlier: dict[int, int] = {}  # id of a read -> the writes requested before it
        self.sent: list[int] = []
        self.overtaken: list[int] = []  # reads that were sent before such a write
        self._unanswered: deque[tuple[object, Any]] = deque()

    @property
    def next_id(self) -> int:
        return len(self.writes) + len(self.earlier)

    def request(self, step: str) -> None:
        if step == WRITE:
            self.writes.append(self.next_id)
            self.client.request(self.writes[-1], Multi((SetContent(f"/n/{self.writes[-1]}", b""),)))
            return
        ids = range(self.next_id, self.next_id + (1 if step == READ else 3))
        self.earlier.update(dict.fromkeys(ids, len(self.writes)))
        if step == READ:
            self.client.request(ids[0], Get(f"/n/{ids[0]}"))
        else:
            self.client.request_each(ids[0], ReadEach(Get, "/n", [*map(str, ids)]))

    def _take(self, request: object, answer: object) -> None:
        ids = ids_in(request)
        self.overtaken += [each for each in ids if not {*self.writes[: self.earlier.get(each, 0)]} <= {*self.sent}]
        self.sent += ids
        self._unanswered.append((request, answer))

    def answer(self) -> bool:
        """Answer the oldest call; return whether there was any."""
        if self._unanswered:
            request, answer = self._unanswered.popleft()
            if isinstance(request, MultiRead):
                answer.set(([MISSING] * len(ids_in(request)), 1))
            else:
                answer.set_exception(NoNodeError())
            return True
        return False


def ids_in(request: object) -> Sequence[int]:
    """Return the ids of the calls that a request makes: they are the names of their nodes."""
    if isinstance(request, MultiRead):
        paths = [path[INT.size :].decode() for _kind, some in request.reads for path in some]
    elif isinstance(request, Transaction):
        paths = [operation.path for operation in request.operations]
    else:
        paths = [cast("GetData", request).path]
    return [int(path.rpartition("/")[2]) for path in paths]


@example(steps=[WRITE, WRITE, SOME_READS], in_flight=1, at_once=1, together=False)
@given(steps=STEPS, in_flight=st.integers(1, 3), at_once=st.integers(1, 2), together=st.booleans())
def test_no_read_overtakes_a_write(steps: list[str], in_flight: int, at_once: int, together: bool) -> None:
    """In `ZkClient._read_together`, add reads at once."""
    few = mock.patch.multiple(zk_reads, MIN_READS=2, MAX_READS=2, MAX_REQUESTS=at_once)
    with few, mock.patch.object(zk, "MAX_IN_FLIGHT", in_flight):
        line = Line(reads_together=together)
        for step in steps:
            if step == TURN:
                gevent.sleep(0)
            elif step == ANSWER:
                line.answer()
            else:
                line.request(step)
        for _ in range(TURNS):  # an answer arrives in the next turn; reads that waited for it go out in the one after
            line.answer()
            gevent.sleep(0)
    assert not line.overtaken
    assert line.client.queued_count == 0
    answered = [event for event in line.events if isinstance(event, Replied)]
    assert sorted(event.call_id for event in answered) == sorted(line.sent) == [*range(line.next_id)]
    assert {event.reply for event in answered} <= {MISSING}
