"""The memory of all connections together: anybody may connect, and send requests that use far more than their bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gevent.lock import Semaphore

from zkrebalancer.gateway.frames import FIRST_PIECE_BYTES, Pieces
from zkrebalancer.kafka_protocol import codec
from zkrebalancer.kafka_protocol.codec import Fields, Header
from zkrebalancer.kafka_protocol.errors import FrameError

MAX_SMALL_BYTES = FIRST_PIECE_BYTES  # larger requests that are answered here, and larger answers, need room
TINY_BYTES = 1 << 10  # decoding this many takes a tenth of a millisecond
MAX_LARGE_BYTES = 256 << 20  # of larger ones, of all connections together
MAX_REQUEST_ELEMENTS = 100_000  # of a request that is answered here: decoding this many takes a tenth of a second
FEWER_ELEMENTS = {"JoinGroup": 100}  # its protocols; it waits for other members, with all that it has
ELEMENT_BYTES = 512  # of an element that may have three bytes in the request: its dictionary, and that of the answer
BYTES_PER_TURN = 64 << 10  # of brokers' answers that are decoded between two pauses: about ten milliseconds


class Room:
    """The memory for large requests and answers, for elements of decoded requests, and for pieces."""

    def __init__(self) -> None:
        """Start with nothing in it."""
        self._used = 0
        self.pieces = Pieces()
        self._decoding = Semaphore()
        self._decoded_bytes = 0  # since the last pause

    @property
    def used(self) -> int:
        """Return how much large requests, decoded ones and large answers use."""
        return self._used

    @contextlib.contextmanager
    def hold(self, size: int, what: str) -> Iterator[None]:
        """Use room for `what`; raises FrameError if too little is left."""
        self._take(size, what)
        try:
            yield
        finally:
            self._used -= size

    def hold_if_large(self, size: int, what: str) -> contextlib.AbstractContextManager[None]:
        """Use room for `what`, as `hold` does, unless it is small."""
        return self.hold(size, what) if size > MAX_SMALL_BYTES else contextlib.nullcontext()

    def decode_answer(self, name: str, version: int, content: bytes, pause: Callable[[], None]) -> Fields:
        """Return the fields of a broker's answer to the gateway's own question; raises FrameError.

        Only one that is not tiny is decoded at a time: after a start, all members ask for their rights at once, and the
        answers have all partitions of their topics. Decoding pauses only in one that has many. But a waiting
        request is woken as soon as another one is done, and may wake the next one, before anything else runs.
        """
        if len(content) <= TINY_BYTES:
            return codec.decode(f"{name}Response", version, content)
        with self.hold_if_large(len(content), "an answer"), self._decoding:
            if self._decoded_bytes >= BYTES_PER_TURN:
                self._decoded_bytes = 0
                pause()
            self._decoded_bytes += len(content)
            return codec.decode(f"{name}Response", version, content, pause=pause)

    @contextlib.contextmanager
    def decoded(self, name: str, version: int, content: bytes, pause: codec.Pause) -> Iterator[Fields]:
        """Give a request's fields, which use room until it is answered, unless they are few; raises FrameError."""
        used = wanted = 0

        def take(count: int) -> None:
            nonlocal used, wanted
            wanted += count * ELEMENT_BYTES
            if wanted > MAX_SMALL_BYTES:
                self._take(wanted - used, "a decoded request")
                used = wanted

        limit = FEWER_ELEMENTS.get(name, MAX_REQUEST_ELEMENTS)
        try:
            yield codec.decode(f"{name}Request", version, content, limit, pause=pause, take=take)
        finally:
            self._used -= used

    def _take(self, size: int, what: str) -> None:
        if self._used + size > MAX_LARGE_BYTES:
            raise FrameError(f"no room for {what} of {size} bytes: others use {self._used} of {MAX_LARGE_BYTES}")
        self._used += size


@dataclass(slots=True)
class Arrived:
    """A request that was read whole. It uses room until `held` is closed: when it is answered, or waits for others."""

    header: Header
    content: bytes  # without the header, until it is decoded
    held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def decode(self, room: Room, name: str, pause: codec.Pause) -> Fields:
        """Return the fields; raises FrameError."""
        content, self.content = self.content, b""
        return self.held.enter_context(room.decoded(name, self.header.version, content, pause))
