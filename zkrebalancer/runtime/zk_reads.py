"""Reads that are made at the same time, as few requests: one sets all their watches, one reads all the nodes.

kazoo has neither request. `setWatches`, with which clients in Java set their watches again after a reconnect, sets
ordinary watches on any number of nodes; `multiRead`, of ZooKeeper 3.6, reads any number. A server handles both in the
order in which one session sends them, so every watch is set before its node is read, as by a read with a watch.
"""

from __future__ import annotations

import struct
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gevent
from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, UnimplementedError, ZookeeperError
from kazoo.protocol.states import Callback

from zkrebalancer.protocol.calls import (
    Call,
    Children,
    Content,
    Get,
    ListChildren,
    ReadEach,
    Refusal,
    Refused,
    Replied,
    RepliedInRow,
    Reply,
    RightsCall,
    Stat,
)
from zkrebalancer.protocol.requests import RequestLimit
from zkrebalancer.runtime.zk_answers import refusal_of
from zkrebalancer.runtime.zk_wire import INT, server_path, string

MIN_READS = 4  # fewer are made one by one
MAX_READS = 200  # in one request; more make no read cheaper
MAX_REQUESTS = 4  # of many reads, at the same time
MAX_ANSWER_BYTES = 1 << 20  # of a request, if nodes are as large as the largest ones of the last answers
READ_BYTES = 16  # of a read in a request, besides its path
SHRINK = 0.9  # of the size that nodes are expected to have, with every answer

GET, LIST = 4, 8  # ZooKeeper's numbers of these reads
UNTIL_NOW = (1 << 63) - 1  # an id above those of all transactions: only later changes are reported

_LONG = struct.Struct("!q")
_HEADER = struct.Struct("!iBi")  # kind, 1 after the last one, error
_NODE = struct.Struct("!i5xi")  # the kind in a header, and what follows: the length of content or list, or an error
# Ids of the transactions that created and changed it, two times, three versions (of its content, children and rights),
# the session, its length, how many children it has, and the id of the transaction that changed those last.
_STAT = struct.Struct("!qqq8xii4xq4xi8x")  # what is skipped is not used

NO_NODE = Refused(Refusal.NO_NODE)
LOST = Refused(Refusal.CONNECTION_LOST)
NO_CHILDREN = Children(())
NO_WATCH = b"\0"  # in a read

Read = Get | ListChildren
Wanted = Call | RightsCall | ReadEach
Watch = tuple[str, bool]  # path, and whether of its children


class Asked(NamedTuple):
    """Reads of one kind that are to be made, with the ids `first_id`, `first_id` + 1, and so on."""

    first_id: int
    kind: type[Read]
    paths: Sequence[str]
    server_paths: Sequence[str]  # the same, as the server knows them
    encoded: Sequence[bytes]  # the same, as a request has them
    has_watches: bool

    @property
    def ids(self) -> range:
        """The ids of the calls."""
        return range(self.first_id, self.first_id + len(self.paths))

    @property
    def watches(self) -> list[Watch]:
        """The watches that they set, if they set any."""
        is_list = self.kind is ListChildren
        return [(path, is_list) for path in self.paths]

    def part(self, begin: int, end: int | None) -> Asked:
        """Return some of them."""
        paths, server_paths, encoded = self.paths[begin:end], self.server_paths[begin:end], self.encoded[begin:end]
        return Asked(self.first_id + begin, self.kind, paths, server_paths, encoded, self.has_watches)

    def each(self) -> Iterator[tuple[int, Read]]:
        """Yield the id of each, and the read."""
        for call_id, path in zip(self.ids, self.paths, strict=True):
            yield call_id, self.kind(path, self.has_watches)


@dataclass(frozen=True, slots=True)
class SetWatches:
    """A request in kazoo's form: set watches; the server reports nodes that are missing as deleted at once."""

    of_content: Sequence[bytes]  # paths, as a request has them
    of_children: Sequence[bytes]
    type = 101

    def serialize(self) -> bytes:
        """Return the request's body."""
        lists = (self.of_content, (), self.of_children)
        return _LONG.pack(UNTIL_NOW) + b"".join(INT.pack(len(paths)) + b"".join(paths) for paths in lists)

    @classmethod
    def deserialize(cls, _answer: bytes, _offset: int) -> bool:
        """Return that it is done: the answer is empty."""
        return True


@dataclass(frozen=True, slots=True)
class MultiRead:
    """A request in kazoo's form: read nodes; the answer has one reply for each, in order."""

    reads: Sequence[tuple[int, Sequence[bytes]]]  # GET or LIST, and paths as a request has them
    type = 22

    def serialize(self) -> bytes:
        """Return the request's body."""
        headers = {kind: _HEADER.pack(kind, 0, -1) for kind in (GET, LIST)}
        parts = [headers[kind] + (NO_WATCH + headers[kind]).join(some) + NO_WATCH for kind, some in self.reads]
        return b"".join(parts) + _HEADER.pack(-1, 1, -1)

    def deserialize(self, answer: bytes, offset: int) -> tuple[list[Reply], int]:
        """Return the replies, and the size of the largest; raises struct.error or ValueError for another answer."""
        replies: list[Reply] = []
        largest, end = 0, len(answer) - _HEADER.size  # where the header after the last node begins
        node_of, stat_of, node_bytes, stat_bytes = _NODE.unpack_from, _STAT.unpack_from, _NODE.size, _STAT.size
        while offset < end:
            begin = offset
            kind, length = node_of(answer, begin)
            offset += node_bytes
            if kind == GET:
                content_end = offset + length if length > 0 else offset  # a node may have been made without any
                czxid, mzxid, created_ms, version, changes, owner, children = stat_of(answer, content_end)
                created = (changes + children) // 2  # see `zk_answers`
                stat = Stat(version, czxid, mzxid, owner, created_ms, created)
                replies.append(Content(answer[offset:content_end], stat))
                offset = content_end + stat_bytes
            elif kind == LIST:
                names, offset = _names(answer, offset, length)
                replies.append(Children(names) if names else NO_CHILDREN)
            else:
                replies.append(_refused(length))
            largest = max(largest, offset - begin)
        _HEADER.unpack_from(answer, offset)
        if len(replies) != sum(len(some) for _kind, some in self.reads):
            raise ValueError(f"an answer to a read of many nodes has {len(replies)}")
        return replies, largest


class BulkReads:
    """Collects the reads of one turn of the hub, and sends them together.

    One-shot watches are kazoo's: its callbacks are registered when the request is sent and, as an event of a former
    watch may have removed them meanwhile, when the server has set the watches. An event of a node that is being read is
    reported after its reply, as if the read had set the watch; it is dropped if the node is missing.
    """

    def __init__(
        self,
        kazoo: KazooClient,
        limit: RequestLimit,
        callbacks: tuple[Callable[..., None], Callable[..., None]],
        answer: Callable[[Sequence[Replied | RepliedInRow]], None],
        read_alone: Callable[[int, Read], None],
        report: Callable[[Watch], None],
    ) -> None:
        """Collect nothing yet.

        `callbacks`: kazoo's for changes of content and of children; `read_alone(call_id, read)` makes one read, by
        kazoo; `report(watch)` reports an event.
        """
        self._kazoo: Any = kazoo
        self._limit = limit
        self._callbacks = callbacks
        self._answer, self._read_alone, self._report = answer, read_alone, report
        self._waiting: deque[Asked] = deque()
        self._under_way = 0
        self._is_planned = False  # whether the next turn of the hub sends what waits
        self._is_unknown = False  # to the server
        self._node_bytes = 0.0  # that a reply may have
        self._being_set: Counter[Watch] = Counter()
        self._held: set[Watch] = set()

    def __len__(self) -> int:
        """Return how many reads wait."""
        return sum(len(asked.paths) for asked in self._waiting)

    def fitting(self, most: int, max_bytes: int) -> int:
        """Return how many replies fit if all are as large as the largest ones of the last answers, at least one."""
        return most if not self._node_bytes else min(most, int(max_bytes / self._node_bytes) + 1)

    def add(self, call_id: int, read: Read) -> None:
        """Make a read together with others, or alone."""
        self._add(call_id, type(read), [read.path], [server_path(self._kazoo, read.path)], has_watches=read.watch)

    def add_each(self, first_id: int, reads: ReadEach) -> None:
        """Make reads together with others, or alone; their ids begin with `first_id`."""
        server_above = server_path(self._kazoo, reads.above)
        paths = [f"{reads.above}/{name}" for name in reads.names]
        on_server = paths if server_above == reads.above else [f"{server_above}/{name}" for name in reads.names]
        self._add(first_id, reads.kind, paths, on_server, has_watches=reads.watch)

    def _add(
        self, first_id: int, kind: type[Read], paths: list[str], server_paths: list[str], *, has_watches: bool
    ) -> None:
        encoded = [string(path) for path in server_paths]
        self._waiting.append(Asked(first_id, kind, paths, server_paths, encoded, has_watches))
        if self._is_unknown:
            self.send()
        elif not self._is_planned:
            self._is_planned = True
            gevent.get_hub().loop.run_callback(self._planned)

    def _planned(self) -> None:
        self._is_planned = False
        self.send()

    def send(self) -> None:
        """Send what waits, up to MAX_REQUESTS requests at once."""
        if not self._waiting:
            return
        if self._is_unknown or (not self._under_way and len(self) < MIN_READS):
            while self._waiting:
                for one in self._waiting.popleft().each():
                    self._read_alone(*one)
        while self._waiting and self._under_way < MAX_REQUESTS:
            self._send_some()

    def fail(self) -> None:
        """Answer what waits: the connection is lost."""
        lost = [RepliedInRow(asked.first_id, [LOST] * len(asked.paths)) for asked in self._waiting]
        self._waiting.clear()
        self._answer(lost)

    def holds(self, watch: Watch) -> bool:
        """Whether an event has to wait for the reply to the read that sets the watch."""
        if watch in self._being_set:
            self._held.add(watch)
            return True
        return False

    def _take(self) -> list[Asked]:
        """Return as many reads as one request may have, at least one."""
        taken: list[Asked] = []
        waiting, most, room = self._waiting, self.fitting(MAX_READS, MAX_ANSWER_BYTES), self._limit.max_bytes
        while waiting and most:
            count, size = _fitting(waiting[0].encoded, most, room)
            if not (count or taken):
                count = 1
            if count < len(waiting[0].paths):
                if count:
                    taken.append(waiting[0].part(0, count))
                    waiting[0] = waiting[0].part(count, None)
                break
            taken.append(waiting.popleft())
            most, room = most - count, room - size
        return taken

    def _send_some(self) -> None:
        many = self._take()
        self._under_way += 1
        watching = [asked for asked in many if asked.has_watches]
        watches = [watch for asked in watching for watch in asked.watches]
        self._being_set.update(watches)
        if watches:
            self._register(watching)
            setting = SetWatches(*(_all_encoded(watching, kind) for kind in (Get, ListChildren)))
            self._kazoo._call(setting, _WatchesSet(lambda: self._register(watching)))  # noqa: SLF001
        answer = _Answer(self._kazoo.handler, lambda *found: self._answered(many, watches, *found))
        reads = [(GET if asked.kind is Get else LIST, asked.encoded) for asked in many]
        self._kazoo._call(MultiRead(reads), answer)  # noqa: SLF001  # kazoo has no public way, here, above and below

    def _register(self, many: list[Asked]) -> None:
        of_kind = dict(zip((Get, ListChildren), zip(self._watchers(), self._callbacks, strict=True), strict=True))
        for asked in many:
            watchers, callback = of_kind[asked.kind]
            for path in asked.server_paths:
                watchers[path].add(callback)

    def _watchers(self) -> tuple[dict[str, set[Any]], dict[str, set[Any]]]:
        """Return kazoo's callbacks by path, of content and of children; it has new dictionaries on each connection."""
        return self._kazoo._data_watchers, self._kazoo._child_watchers  # noqa: SLF001  # as below

    def _answered(self, many: list[Asked], watches: list[Watch], found: tuple[list[Reply], int] | Exception) -> None:
        self._under_way -= 1
        for watch in watches:
            if self._being_set[watch] == 1:
                del self._being_set[watch]
            else:
                self._being_set[watch] -= 1
        if isinstance(found, UnimplementedError) or (isinstance(found, Exception) and not _is_known(found)):
            self._is_unknown = True
            for asked in many:
                self._held.difference_update(asked.watches)
                for one in asked.each():
                    self._read_alone(*one)
        elif isinstance(found, Exception):
            refused = Refused(refusal_of(found))
            self._deliver(many, [refused] * sum(len(asked.paths) for asked in many))
        else:
            replies, largest = found
            self._node_bytes = max(SHRINK * self._node_bytes, largest)
            self._deliver(many, replies)
        self.send()

    def _deliver(self, many: list[Asked], replies: list[Reply]) -> None:
        found: list[Replied | RepliedInRow] = []
        begin = 0
        for asked in many:
            some = replies[begin : begin + len(asked.paths)]
            begin += len(some)
            if asked.has_watches and (self._held or Refused in map(type, some)):
                found = self._deliver_watched(asked, some, found)
            elif found and found[-1].ids[-1] + 1 == asked.first_id and isinstance(found[-1], RepliedInRow):
                found[-1] = RepliedInRow(found[-1].first_id, [*found[-1].replies, *some])
            else:
                found.append(RepliedInRow(asked.first_id, some))
        self._answer(found)

    def _deliver_watched(
        self, asked: Asked, replies: list[Reply], found: list[Replied | RepliedInRow]
    ) -> list[Replied | RepliedInRow]:
        """Report events that have waited for the replies; return what is not delivered yet."""
        for call_id, watch, path, reply in zip(asked.ids, asked.watches, asked.server_paths, replies, strict=True):
            found.append(Replied(call_id, reply))
            if watch in self._being_set:
                continue
            is_held = watch in self._held
            self._held.discard(watch)
            if reply == NO_NODE:
                self._forget(path, is_list=watch[1])
            elif is_held and not isinstance(reply, Refused):
                self._answer(found)
                found = []
                self._report(watch)
        return found

    def _forget(self, path: str, *, is_list: bool) -> None:
        """Forget the callback for a missing node: otherwise the next report that it is missing would call it."""
        watchers = self._watchers()[is_list]
        if path in watchers:
            watchers[path].discard(self._callbacks[is_list])
            if not watchers[path]:
                del watchers[path]


class _WatchesSet:
    """Waits, in place of kazoo's result, for the server to set watches. kazoo calls it between two answers."""

    def __init__(self, done: Callable[[], None]) -> None:
        self._done = done

    def set(self, _value: object) -> None:
        self._done()

    def set_exception(self, _error: Exception) -> None:
        """Do nothing: the reads that follow on the same connection fail, too."""


class _Answer:
    """Takes the place of kazoo's result; hands it on in the order of watch events, which kazoo's own would overtake."""

    def __init__(self, handler: Any, done: Callable[[Any], None]) -> None:  # noqa: ANN401  # kazoo's handler
        self._handler, self._done = handler, done
        self._is_set = False

    def set(self, value: object) -> None:
        if not self._is_set:  # kazoo may report a call that failed twice
            self._is_set = True
            self._handler.dispatch_callback(Callback("completion", self._done, (value,)))

    def set_exception(self, error: Exception) -> None:
        self.set(error)


def reply_count(call: Wanted) -> int:
    """Return how many replies to a call follow."""
    return len(call.names) if isinstance(call, ReadEach) else 1


def portions(replies: Sequence[Replied | RepliedInRow], most: int) -> Iterator[tuple[Replied | RepliedInRow, ...]]:
    """Yield the replies in portions of at most `most`."""
    portion: list[Replied | RepliedInRow] = []
    room = most
    for row in replies:
        begin, count = 0, len(row.ids)
        while begin < count:
            taken = min(room, count - begin)
            portion.append(row if taken == count else row.part(begin, begin + taken))
            begin, room = begin + taken, room - taken
            if not room:
                yield tuple(portion)
                portion, room = [], most
    if portion:
        yield tuple(portion)


def _fitting(encoded: Sequence[bytes], most: int, room: int) -> tuple[int, int]:
    """Return how many of these paths, in order, fit into `room` bytes of a request, and how many bytes they take."""
    count = min(most, len(encoded))
    size = sum(map(len, encoded[:count])) + count * (READ_BYTES - INT.size)
    while count and size > room:
        count -= 1
        size -= len(encoded[count]) + READ_BYTES - INT.size
    return count, size


def _all_encoded(many: list[Asked], kind: type[Read]) -> list[bytes]:
    return [path for asked in many if asked.kind is kind for path in asked.encoded]


def _is_known(error: Exception) -> bool:
    """Whether ZooKeeper or kazoo has refused a request; otherwise the answer could not be read."""
    return isinstance(error, ZookeeperError | RuntimeError)


def _refused(code: int) -> Refused:
    return Refused(refusal_of(EXCEPTIONS[code]()) if code in EXCEPTIONS else Refusal.NOT_ALLOWED)


def _names(answer: bytes, offset: int, count: int) -> tuple[tuple[str, ...], int]:
    """Return so many names, sorted, and where the next field begins."""
    names = []
    for _ in range(count):
        (length,) = INT.unpack_from(answer, offset)
        begin = offset + INT.size
        offset = begin + length
        names.append(answer[begin:offset].decode())
    return tuple(sorted(names)), offset
