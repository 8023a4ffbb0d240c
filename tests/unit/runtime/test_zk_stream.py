"""What kazoo's connection reads from and waits for."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import gevent
import gevent.socket
import pytest

from tests.support.deadlines import WITHIN_S
from zkrebalancer.runtime.zk_connection import Handler
from zkrebalancer.runtime.zk_stream import READ_BYTES, Bell, Stream


@contextmanager
def connected() -> Iterator[tuple[Stream, gevent.socket.socket]]:
    """A stream, and the socket at its other end."""
    ours, other = gevent.socket.socketpair()
    ours.settimeout(0)
    stream = Stream(ours)
    try:
        yield stream, other
    finally:
        stream.close()
        other.close()


class PartlyEncrypted:
    """A socket whose first readings find too little to decrypt, as TLS may."""

    def __init__(self, socket: gevent.socket.socket, too_little: int) -> None:
        self._socket, self._too_little = socket, too_little
        self.send, self.fileno, self.setblocking = socket.send, socket.fileno, socket.setblocking
        self.close = socket.close

    def recv(self, size: int) -> bytes:
        if self._too_little:
            self._too_little -= 1
            raise ssl.SSLWantReadError
        return bytes(self._socket.recv(size))


def test_one_reading_has_all_that_has_arrived() -> None:
    """In `Stream.has_arrived`, read 4 bytes."""
    with connected() as (stream, other):
        other.send(b"abcdefgh")
        assert stream.has_arrived()
        assert (stream.pending(), stream.recv(4), stream.recv(100), stream.pending()) == (8, b"abcd", b"efgh", 0)
        with pytest.raises(BlockingIOError):
            stream.recv(4)


def test_the_end_is_shown_after_what_was_sent_before_it_and_again() -> None:
    """In `Stream.has_arrived`, forget `_is_at_end`: a closed connection looks like a silent one."""
    with connected() as (stream, other):
        other.send(b"ab")
        other.close()
        found: list[bytes] = []
        for _ in range(3):
            assert Handler(None).select([stream, Bell()], [], [], WITHIN_S)[0] == [stream]
            found.append(stream.recv(2))
        assert found == [b"ab", b"", b""]


def test_more_than_one_portion_is_read() -> None:
    """In `Stream.has_arrived`, ask the kernel for nothing more after a full portion, and never again."""
    with connected() as (stream, other):
        count = 3 * READ_BYTES
        sending = gevent.spawn(other.sendall, bytes(count))
        while count:
            assert Handler(None).select([stream, Bell()], [], [], WITHIN_S)[0] == [stream]
            count -= len(stream.recv(count))
        sending.get(timeout=WITHIN_S)


def test_a_request_and_an_arrival_end_the_wait() -> None:
    """In `Bell.send`, do not switch; in `Stream.wait`, start no watcher."""
    with connected() as (stream, other):
        bell = Bell()
        waiting = gevent.spawn(Handler(None).select, [stream, bell], [], [], WITHIN_S)
        gevent.sleep(0)
        bell.send(b"\0")
        assert waiting.get(timeout=WITHIN_S)[0] == [bell]
        bell.recv(1)
        waiting = gevent.spawn(Handler(None).select, [stream, bell], [], [], WITHIN_S)
        gevent.sleep(0)
        other.send(b"a")
        assert waiting.get(timeout=WITHIN_S)[0] == [stream]


def test_nothing_is_ready_when_the_time_is_over() -> None:
    with connected() as (stream, _other):
        assert Handler(None).select([stream, Bell()], [], [], 0.001) == ([], [], [])


def test_an_arrival_that_cannot_be_decrypted_yet_does_not_end_the_wait() -> None:
    """In `Handler.select`, wait once: kazoo drops a connection on which nothing is ready after its ping."""
    ours, other = gevent.socket.socketpair()
    ours.settimeout(0)
    stream = Stream(PartlyEncrypted(ours, 3))
    other.send(b"a")
    assert Handler(None).select([stream, Bell()], [], [], WITHIN_S)[0] == [stream]
    stream.close()
    other.close()


def test_requests_are_sent_before_the_kernel_is_asked_for_more_replies() -> None:
    """In `_readable`, look at the bell last: many replies delay the requests."""
    with connected() as (stream, other):
        bell = Bell()
        other.send(b"abcd")
        bell.send(b"\0\0")
        assert Handler(None).select([stream, bell], [], [], WITHIN_S)[0] == [bell]
        stream.recv(1)
        assert Handler(None).select([stream, bell], [], [], WITHIN_S)[0] == [stream, bell]


def test_requests_of_one_turn_are_written_together_before_the_wait() -> None:
    """In `Handler.select`, flush while the bell has more, or only after the wait."""
    with connected() as (stream, other):
        bell = Bell()
        bell.send(b"\0\0")
        for request in (b"ab", b"cd"):
            assert Handler(None).select([stream, bell], [], [], WITHIN_S)[0] == [bell]
            assert Handler(None).select([], [stream], [], WITHIN_S)[1] == [stream]
            stream.send(request)
            bell.recv(1)
        other.settimeout(0)
        with pytest.raises(BlockingIOError):
            other.recv(10)
        waiting = gevent.spawn(Handler(None).select, [stream, bell], [], [], WITHIN_S)
        other.settimeout(WITHIN_S)
        assert other.recv(10) == b"abcd"
        other.send(b"e")
        assert waiting.get(timeout=WITHIN_S)[0] == [stream]


def test_a_long_request_is_written_as_the_other_end_reads_it() -> None:
    """In `Handler._flush`, do not wait; in `Stream.flush`, forget what the kernel did not take."""
    with connected() as (stream, other):
        content = bytes(range(256)) * 40_000
        stream.send(content)
        writing = gevent.spawn(Handler(None).select, [], [stream], [], WITHIN_S)
        found = bytearray()
        while len(found) < len(content):
            found += other.recv(len(content))
        assert writing.get(timeout=WITHIN_S)[1] == [stream]
        assert found == content


def test_a_peer_that_reads_nothing_ends_the_write() -> None:
    """In `Handler._flush`, wait without a limit: the session would end while its consumer believes in it."""
    with connected() as (stream, _other):
        stream.send(bytes(10_000_000))
        with pytest.raises(gevent.Timeout):
            Handler(None).select([], [stream], [], 0.01)


def test_reads_that_are_collected_after_a_write_are_sent_with_it() -> None:
    """In `Bell.send`, switch at once: a renewal and its list need two packets."""
    with connected() as (stream, _other):
        bell = Bell()
        waiting = gevent.spawn(Handler(None).select, [stream, bell], [], [], WITHIN_S)
        gevent.sleep(0)
        bell.send(b"\0")
        gevent.get_hub().loop.run_callback(bell.send, b"\0")
        assert waiting.get(timeout=WITHIN_S)[0] == [bell]
        assert bell.count == 2


def test_a_bell_counts_the_requests() -> None:
    """As kazoo takes one ring for each request that it has sent, and may take one for none."""
    bell = Bell()
    assert bell.send(b"\0") == 1
    bell.send(b"\0")
    assert (bell.count, bell.recv(1), bell.recv(1)) == (2, b"\0", b"\0")
    with pytest.raises(BlockingIOError):
        bell.recv(1)
