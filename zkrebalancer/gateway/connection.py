"""One client's connection: its requests are relayed to one broker, or answered here, and all answers keep their order.

A second greenlet passes the broker's answers on. A request that is answered here waits until the earlier answers are
sent; brokers, too, handle the requests of a connection one after the other.
"""

from __future__ import annotations

import contextlib
import logging
import struct
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from socket import SHUT_RDWR
from typing import Any, Protocol

import gevent
from gevent.event import AsyncResult, Event
from gevent.socket import socket

from zkrebalancer.gateway import rewriting
from zkrebalancer.gateway.addresses import Addresses, Node
from zkrebalancer.gateway.frames import (
    FIRST_PIECE_BYTES,
    PIECE_BYTES,
    FrameReader,
    framed,
    size_of,
)
from zkrebalancer.gateway.links import CLIENT_ID, KEYS
from zkrebalancer.gateway.metrics import Metrics
from zkrebalancer.gateway.rewriting import (
    DECODED,
    DESCRIBE_CLUSTER,
    FIND_COORDINATOR,
    GROUP_KEY_TYPE,
    HIGHEST_VERSIONS,
    LEFT_OUT,
    LOWEST_VERSIONS,
    METADATA,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from zkrebalancer.gateway.rights import GROUP_AUTHORIZATION_FAILED, Client, Right, Rights
from zkrebalancer.gateway.room import MAX_SMALL_BYTES, Arrived, Room
from zkrebalancer.gateway.turns import let_others_run
from zkrebalancer.kafka_protocol import codec
from zkrebalancer.kafka_protocol.codec import API_VERSIONS, Header
from zkrebalancer.kafka_protocol.errors import FrameError
from zkrebalancer.kafka_protocol.schema import Versions, message
from zkrebalancer.runtime import clock

MAX_DECODED_BYTES = 16 << 20  # of a request that is answered here, and of an answer that is rewritten
MAX_ARRIVAL_S = 60.0  # how long a large request or answer may take to arrive: meanwhile it uses the room of others
PRODUCE_BEGIN_BYTES = FIRST_PIECE_BYTES  # client and transactional ids of some kilobytes fit; `acks` comes after them
# How long a broker may be silent while it owes an answer, or read nothing of what it is sent. The gateway reads nothing
# from the client meanwhile. Without this limit, it would keep the connection of a client that is gone.
MAX_SILENCE_S = 600.0
# How long a client may send nothing, not even the rest of a request, or read nothing that it was sent. Brokers close
# idle connections after 10 minutes; but behind some connections there is no broker.
MAX_IDLE_S = 660.0
MAX_UNANSWERED = 100  # relayed requests of one connection; with more, it is not read until answers come
BEFORE_LOGIN = frozenset({API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE})  # what brokers answer without a login
_BEGIN = struct.Struct(">hhi")
_INT32 = struct.Struct(">i")
_log = logging.getLogger(__name__)


class Desk(Protocol):
    """What a connection needs of its gateway."""

    served: Mapping[int, Versions]
    asks_for_rights: bool  # whether to check a client's rights at the broker where it has logged in
    room: Room
    metrics: Metrics
    api_versions: dict[int, bytes]  # known version of ApiVersions -> the last answer for any client

    def addresses(self) -> Addresses:
        """Return the addresses of brokers and gateways, as clients see them."""

    def learn(self, brokers: list[Node]) -> Addresses:
        """Note the brokers' own addresses, open their ports, and return all addresses as clients see them."""

    def connect(self, broker_id: int | None) -> socket:
        """Connect to a broker, or to any; raises OSError."""

    def note_malformed(self, client_host: str, error: Exception) -> None:
        """Count a connection that was closed because of an invalid frame, and log it, but not too often."""

    def broker_versions(self) -> Mapping[int, tuple[int, int]]:
        """Return API key -> the versions that all brokers support: requests to the gateway itself go to any."""

    def coordinators(self, groups: list[str]) -> dict[str, tuple[int, Node | None]]:
        """Return group -> (error code, the gateway that serves it)."""

    def answer(self, arrived: Arrived, client: Client) -> bytes:
        """Return the answer to a request about groups, without its header; may wait. See `GroupRequests.answer`."""


@dataclass(frozen=True, slots=True)
class _Unanswered:
    """A relayed request."""

    api_key: int
    version: int
    correlation_id: int
    asked: AsyncResult[bytes] | None = None  # of the gateway's own question, whose answer the client does not get


class Connection:
    """Serves one client until one of the two sides ends it."""

    def __init__(self, client: socket, client_host: str, broker_id: int | None, desk: Desk) -> None:
        """Begin; `broker_id` is None on the port of the gateway itself."""
        client.settimeout(MAX_IDLE_S)
        self._client = client
        self._client_host = client_host
        self._broker_id = broker_id
        self._desk = desk
        self._broker: socket | None = None
        self._pump: gevent.Greenlet[..., None] | None = None
        self._unanswered: deque[_Unanswered] = deque()
        self._progress = Event()  # an answer was passed on, or no more will come
        self._is_broken = False  # the broker's side has ended
        self._rights = Rights(self._ask)
        self._has_logged_in = not desk.asks_for_rights  # as far as that is known, if there are logins
        self._reader = FrameReader(client, PIECE_BYTES if self._has_logged_in else FIRST_PIECE_BYTES, desk.room.pieces)
        self._last_question = 0
        self._since_us = 0  # the present request has not arrived before

    def run(self) -> None:
        """Serve the client; returns when the connection has ended."""
        try:
            while (size := self._next_size()) is not None:
                self._handle(size)
        except FrameError as error:
            self._desk.note_malformed(self._client_host, error)
        except (OSError, EOFError) as error:
            _log.debug("the connection of %s has ended: %r", self._client_host, error)
        finally:
            self._end()

    def _next_size(self) -> int | None:
        is_behind = self._reader.has_more  # it may have arrived while an earlier request was handled
        size = self._reader.next_size()
        if not is_behind:
            self._since_us = clock.steady_us()
        return size

    def _note_time(self) -> None:
        """Note that the next request has not arrived yet.

        A client that sends it as soon as it has the answer may be faster than this process, every time.
        """
        if not self._reader.has_more:
            self._since_us = clock.steady_us()

    def _end(self) -> None:
        if self._pump is not None:
            self._pump.kill()
        for side in (self._client, self._broker):
            if side is not None:
                side.close()

    # ---- requests

    def _handle(self, size: int) -> None:
        if size < _BEGIN.size:
            raise FrameError(f"a request of {size} bytes has no header")
        key, version, correlation_id = _BEGIN.unpack_from(self._reader.peek(_BEGIN.size))
        if key == API_VERSIONS and size > FIRST_PIECE_BYTES:  # it is read whole, before any login
            raise FrameError(f"a request for versions of {size} bytes, at most {FIRST_PIECE_BYTES} are allowed")
        if key in self._desk.served or key == FIND_COORDINATOR:
            self._handle_here(key, size)
        elif key == API_VERSIONS and version not in message("ApiVersionsRequest").versions:
            self._reader.take(size)
            self._send(_INT32.pack(correlation_id) + rewriting.unsupported_api_versions())
        elif key == API_VERSIONS and self._broker_id is None and (known := self._desk.api_versions.get(version)):
            self._reader.take(size)  # answered here, so that members can continue while the brokers are away
            answer = rewriting.known_to_all(version, known, self._desk.served, self._desk.broker_versions())
            self._send(_INT32.pack(correlation_id) + answer)
        elif key in LEFT_OUT or not LOWEST_VERSIONS.get(key, version) <= version <= HIGHEST_VERSIONS.get(key, version):
            raise FrameError(f"a request with key {key} in version {version}, which is not offered")
        else:
            self._relay(size, _Unanswered(key, version, correlation_id))

    def _handle_here(self, key: int, size: int) -> None:
        if size > MAX_DECODED_BYTES:
            raise FrameError(f"a request of {size} bytes, at most {MAX_DECODED_BYTES} are allowed")
        self._await_answers(0)  # before it takes room
        self._require_login(size)
        with contextlib.ExitStack() as held:
            arrived = self._arrived(size, held)
            if key == FIND_COORDINATOR:
                self._find_coordinator(arrived)
            else:
                self._answer(arrived)

    def _require_login(self, size: int) -> None:
        """Before a large request is read whole, ask the broker something, which it answers only after a login.

        Raises EOFError if the client has not logged in.
        """
        if size > FIRST_PIECE_BYTES and not self._has_logged_in:
            self._rights.require_login()

    def _arrived(self, size: int, held: contextlib.ExitStack) -> Arrived:
        if size <= MAX_SMALL_BYTES:
            content = self._reader.take(size)
        else:
            held.enter_context(self._desk.room.hold(size, "a request"))
            with gevent.Timeout(MAX_ARRIVAL_S, TimeoutError(f"no whole request within {MAX_ARRIVAL_S:g} s")):
                content = self._reader.take(size)
        header, end = codec.decode_header(content)
        return Arrived(header, content[end:], held)

    def _answer(self, arrived: Arrived) -> None:
        rights = self._rights if self._desk.asks_for_rights else None
        client = Client(self._client_host, self._broker_id is None, self._since_us, rights)
        self._send_answer(arrived.header, self._desk.answer(arrived, client))

    def _find_coordinator(self, arrived: Arrived) -> None:
        header, content = arrived.header, arrived.content
        with self._desk.room.decoded("FindCoordinator", header.version, content, let_others_run) as fields:
            if fields["key_type"] == GROUP_KEY_TYPE:
                groups = [fields["key"]] if header.version < rewriting.BATCHED_FROM else fields["coordinator_keys"]
                self._find_coordinators(header, groups)
                return
        request = codec.encode_header(header) + content
        self._relay_content(request, _Unanswered(header.api_key, header.version, header.correlation_id))

    def _find_coordinators(self, header: Header, groups: list[str]) -> None:
        may = self._rights.groups(Right.DESCRIBE_GROUP, groups) if self._desk.asks_for_rights else set(groups)
        found = self._desk.coordinators([group for group in groups if group in may])
        refused: dict[str, tuple[int, Node | None]] = dict.fromkeys(
            (group for group in groups if group not in may), (int(GROUP_AUTHORIZATION_FAILED), None)
        )
        answer = rewriting.group_coordinators(header.version, found | refused, pause=let_others_run)
        self._send_answer(header, answer)

    def _ask(self, name: str, version: int, fields: dict[str, Any]) -> dict[str, Any]:
        """Send the broker a request over the client's connection.

        Raises EOFError if the broker closes it, and TimeoutError if the broker hangs.
        """
        self._await_answers(0)
        self._last_question += 1
        header = Header(KEYS[name], version, self._last_question, CLIENT_ID)
        asked: AsyncResult[bytes] = AsyncResult()
        request = _Unanswered(header.api_key, version, header.correlation_id, asked)
        content = codec.encode(f"{name}Request", version, fields, pause=let_others_run)
        self._relay_content(codec.encode_header(header) + content, request)
        self._await_answers(0)
        answer = asked.get(block=False) or b""
        content = answer[codec.answer_body(header.api_key, version, answer) :]
        return self._desk.room.decode_answer(name, version, content, let_others_run)

    def _send_answer(self, header: Header, answer: bytes) -> None:
        self._send(codec.answer_header(header.api_key, header.version, header.correlation_id) + answer)

    def _send(self, content: bytes) -> None:
        """Send the gateway's own answer."""
        self._await_answers(0)
        self._note_time()
        self._send_whole(content)

    def _send_whole(self, content: bytes) -> None:
        """Send an answer that is in memory. A small request may have a large one, and a client may not read it."""
        if len(content) <= MAX_SMALL_BYTES:
            self._client.sendall(framed(content))
            return
        late = TimeoutError(f"an answer of {len(content)} bytes was not read within {MAX_ARRIVAL_S:g} s")
        with self._desk.room.hold(len(content), "an answer"), gevent.Timeout(MAX_ARRIVAL_S, late):
            self._client.sendall(framed(content))

    def _await_answers(self, at_most: int) -> None:
        """Wait until no more than `at_most` relayed requests are unanswered.

        Raises EOFError if the broker is gone, and TimeoutError if it is silent for too long.
        """
        while len(self._unanswered) > at_most and not self._is_broken:
            self._progress.clear()
            if not self._progress.wait(MAX_SILENCE_S):
                raise TimeoutError(f"the broker has been silent for {MAX_SILENCE_S:g} s")
        if self._is_broken:
            raise EOFError

    # ---- the relay

    def _relay(self, size: int, request: _Unanswered) -> None:
        broker = self._connected()
        if request.api_key != PRODUCE or self._is_answered(size, request.version):
            self._await_answers(MAX_UNANSWERED - 1)
            self._unanswered.append(request)
        self._reader.pass_on(size, partial(_send_patiently, broker), size_of(size))
        self._desk.metrics.relayed_request_bytes += size

    def _relay_content(self, content: bytes, request: _Unanswered) -> None:
        broker = self._connected()
        self._await_answers(MAX_UNANSWERED - 1)
        self._unanswered.append(request)
        _send_patiently(broker, framed(content))

    def _is_answered(self, size: int, version: int) -> bool:
        """Whether a Produce gets an answer, which is not so with `acks=0`."""
        self._require_login(size)
        begin = self._reader.peek(min(size, PRODUCE_BEGIN_BYTES))
        _header, at = codec.decode_header(begin[:size])
        fields, _end = codec.decode_first("ProduceRequest", version, begin[at:size], "acks")
        return bool(fields["acks"] != 0)

    def _connected(self) -> socket:
        if self._is_broken:
            raise EOFError
        if self._broker is None:
            self._broker = self._desk.connect(self._broker_id)
            self._pump = gevent.spawn(self._pass_answers_on, self._broker)
        return self._broker

    def _pass_answers_on(self, broker: socket) -> None:
        reader = FrameReader(broker, self._reader.piece_bytes, self._desk.room.pieces)
        try:
            while (size := reader.next_size()) is not None:
                self._pass_answer_on(reader, size)
                self._unanswered.popleft()
                self._progress.set()
        except FrameError as error:
            self._desk.note_malformed(self._client_host, error)
        except (OSError, EOFError) as error:
            _log.debug("the broker's side of the connection of %s has ended: %r", self._client_host, error)
        finally:
            self._broker_ended(broker)

    def _broker_ended(self, broker: socket) -> None:
        """Close the client's connection, unless it is one to the gateway itself that waits for no answer.

        If the client had logged in at the broker, it has to do so again, so its connection is closed in any case.
        """
        if self._broker_id is None and not self._unanswered and not self._desk.asks_for_rights:
            self._broker, self._pump = None, None
            broker.close()
            return
        self._is_broken = True
        self._progress.set()
        with contextlib.suppress(OSError):  # the client has closed it before
            socket.shutdown(self._client, SHUT_RDWR)  # even with TLS, whose own shutdown would make a reader fail

    def _pass_answer_on(self, reader: FrameReader, size: int) -> None:
        (correlation_id,) = _INT32.unpack_from(reader.peek(_INT32.size))
        request = self._unanswered[0] if self._unanswered else None
        if request is None or request.correlation_id != correlation_id:
            raise FrameError(f"the broker answers request {correlation_id}, which is not the next one")
        if not self._has_logged_in and request.api_key not in BEFORE_LOGIN:  # otherwise the broker would hang up
            self._has_logged_in = True
            self._reader.piece_bytes = reader.piece_bytes = PIECE_BYTES
        if request.asked is not None:
            request.asked.set(self._taken(reader, size))
        elif request.api_key == METADATA:
            self._pass_metadata_on(reader, size, request)
        elif request.api_key in DECODED:
            with self._desk.room.hold_if_large(size, "an answer"):
                self._send_whole(self._rewritten(request, self._taken(reader, size)))
        else:
            reader.pass_on(size, self._client.sendall, size_of(size))
            self._desk.metrics.relayed_answer_bytes += size

    @staticmethod
    def _taken(reader: FrameReader, size: int) -> bytes:
        if size > MAX_DECODED_BYTES:
            raise FrameError(f"the broker's answer has {size} bytes, at most {MAX_DECODED_BYTES} are expected")
        return reader.take(size)

    def _pass_metadata_on(
        self, reader: FrameReader, size: int, request: _Unanswered, begin_bytes: int = FIRST_PIECE_BYTES
    ) -> None:
        """Replace the brokers, and pass on the topics unchanged. Some hundreds of brokers have a longer beginning."""
        begin = reader.peek(min(size, begin_bytes))[:size]
        try:
            at = codec.answer_body(METADATA, request.version, begin)
            brokers, end = rewriting.metadata(request.version, begin[at:], self._desk.learn)
        except FrameError:
            if begin_bytes == PIECE_BYTES or len(begin) == size:
                raise
            with self._desk.room.hold(PIECE_BYTES, "an answer"):
                self._pass_metadata_on(reader, size, request, PIECE_BYTES)
            return
        reader.take(at + end)
        rest = size - at - end
        self._client.sendall(size_of(at + len(brokers) + rest) + begin[:at] + brokers)
        reader.pass_on(rest, self._client.sendall)

    def _rewritten(self, request: _Unanswered, answer: bytes) -> bytes:
        at = codec.answer_body(request.api_key, request.version, answer)
        content = answer[at:]
        if request.api_key == API_VERSIONS:
            content = rewriting.api_versions(request.version, content, self._desk.served)
            if (lasting := rewriting.lasting_api_versions(request.version, content)) is not None:
                self._desk.api_versions[request.version] = lasting
        elif request.api_key == DESCRIBE_CLUSTER:
            content = rewriting.describe_cluster(request.version, content, self._desk.learn)
        else:
            content = rewriting.find_coordinator(request.version, content, self._desk.addresses())
        return answer[:at] + content


def _send_patiently(broker: socket, content: bytes) -> None:
    """Send a broker a request, or a piece of it; raises TimeoutError if it does not read it for too long."""
    with gevent.Timeout(MAX_SILENCE_S, TimeoutError(f"the broker has not read a piece in {MAX_SILENCE_S:g} s")):
        broker.sendall(content)
