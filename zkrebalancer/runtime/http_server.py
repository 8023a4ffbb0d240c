"""`--http` of a coordinator, a gateway or an agent: probes, metrics, and a site's pages. They only read."""

from __future__ import annotations

import contextlib
import errno
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from http.client import HTTPException
from types import TracebackType
from typing import Any, NamedTuple

import gevent
from gevent.event import Event
from gevent.pywsgi import WSGIHandler, WSGIServer
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from zkrebalancer.protocol.errors import ConfigurationError
from zkrebalancer.runtime.http_limits import Pace, Renderer, Shared
from zkrebalancer.runtime.vitals import Health

MAX_CLIENTS = 20
CLIENT_TIMEOUT_S = 2.0  # then a client is disconnected, because slow ones would delay a probe of /liveness
CROWD_TIMEOUT_S = 0.2  # the same until the request is there, while more than half of MAX_CLIENTS are connected
MAKING_TIMEOUT_S = 10.0  # as long as Prometheus waits by default; with thousands of groups, a busy loop needs seconds
START_TIMEOUT_S = 10.0
END_TIMEOUT_S = 3.0
JSON, OPEN_METRICS = "application/json", "application/openmetrics-text"
LASTS = "zkrebalancer.lasts"  # in a request's environment: what a stream calls
LAG_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5)  # buckets for how late a loop is
OK, NOT_FOUND, NOT_ALLOWED, UNAVAILABLE = (
    "200 OK",
    "404 Not Found",
    "405 Method Not Allowed",
    "503 Service Unavailable",
)


class Answer(NamedTuple):
    """Status, content type, content, further headers."""

    status: str
    kind: str
    content: bytes
    headers: tuple[tuple[str, str], ...] = ()


class Stream(NamedTuple):
    """An answer without an end: content type, pieces, further headers. Its maker limits how long it lasts."""

    kind: str
    pieces: Iterator[bytes]
    headers: tuple[tuple[str, str], ...] = ()


def _document(is_well: bool, document: Mapping[str, Any]) -> Answer:
    return Answer(OK if is_well else UNAVAILABLE, JSON, _json(document))


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document).encode() + b"\n"


Page = Callable[[], tuple[bool, Mapping[str, Any]]]
Site = Callable[[str, str], Answer | Stream | None]  # path, query; None: there is no such path


class Pages:
    """The answers of all paths."""

    def __init__(
        self,
        health: Callable[[], Health],
        registry: CollectorRegistry,
        more: Mapping[str, Page] | None = None,
        site: Site | None = None,
        renderer: Renderer | None = None,
    ) -> None:
        """`more`: path -> function that returns whether all is well, and the document; `site`: pages for people.

        `renderer`: the site's, if it has one, so that metrics and pages are not made at the same time.
        """
        self._health = health
        self._registry = registry
        make = (renderer or Renderer()).make
        self._metrics = {
            kind: Shared(partial(make, partial(self._encode, encode)))
            for encode, kind in map(choose_encoder, ("", f"{OPEN_METRICS}; version=1.0.0"))
        }
        self._more = more or {}
        self._site = site

    def respond(self, path: str, accept: str, query: str) -> Answer | Stream:
        """Answer a request: by the site, or as `answer` does."""
        shown = None if self._site is None else self._site(path, query)
        return self.answer(path, accept) if shown is None else shown

    def answer(self, path: str, accept: str = "") -> Answer:
        """Answer a request; `accept` is its header of this name, which chooses the format of the metrics."""
        if path == "/metrics":
            # The library does not choose by the header itself, because it fails at invalid versions.
            kind = next(kind for kind in self._metrics if (OPEN_METRICS in kind) == (OPEN_METRICS in accept))
            return Answer(OK, kind, self._metrics[kind].get())
        if path in self._more:
            is_well, document = self._more[path]()
            return _document(is_well, document)
        probe = _probe(path, self._health())
        if probe is not None:
            return probe
        known = ["/liveness", "/readiness", "/leader", "/metrics", *self._more, *(["/"] if self._site else [])]
        return Answer(NOT_FOUND, JSON, _json({"error": f"unknown path; there are {', '.join(known)}"}))

    def _encode(self, encode: Callable[[Collector], bytes]) -> Callable[[], bytes]:
        """Collect the metrics on the loop; return how to format them in a thread: thousands of groups take a second."""
        return partial(encode, _Collected(list(self._registry.collect())))


TOO_LATE = Answer(UNAVAILABLE, JSON, _json({"error": f"busy: there is no answer after {MAKING_TIMEOUT_S:g} s"}))


def _probe(path: str, health: Health) -> Answer | None:
    if path == "/liveness":
        is_alive = health.death is None
        faults = [] if health.death is None else [health.death]
        return _document(is_alive, {"alive": is_alive, "faults": faults, **health.facts})
    if path == "/readiness":
        return _document(not health.faults, {"ready": not health.faults, "faults": health.faults, **health.facts})
    if path == "/leader":
        return _document(health.leads, {"leader": health.leads, **health.facts})
    return None


def serve(address: tuple[str, int], pages: Pages) -> Server:
    """Start and return a server on this thread's hub.

    Raises:
        ConfigurationError: it cannot listen at the address.

    """

    def answer(environment: dict[str, Any], start: Callable[..., object]) -> Iterable[bytes]:
        if environment["REQUEST_METHOD"] in {"GET", "HEAD"}:
            accept, query = environment.get("HTTP_ACCEPT", ""), environment.get("QUERY_STRING", "")
            request = environment["PATH_INFO"], accept, query
            found = gevent.with_timeout(MAKING_TIMEOUT_S, pages.respond, *request, timeout_value=TOO_LATE)
        else:
            found = Answer(NOT_ALLOWED, JSON, _json({"error": "these pages can only be read"}))
        if isinstance(found, Stream) and environment["REQUEST_METHOD"] == "HEAD":
            found = Answer(OK, found.kind, b"", found.headers)
        if isinstance(found, Stream):
            environment[LASTS]()
            start(OK, [("Content-Type", found.kind), *found.headers])
            return found.pieces
        start(found.status, [("Content-Type", found.kind), ("Content-Length", str(len(found.content))), *found.headers])
        return [found.content]

    server = Server(address, answer, log=None, error_log=None, spawn=MAX_CLIENTS, handler_class=_Handler)
    try:
        server.start()
    except OSError as error:
        raise ConfigurationError(f"--http: {address[0]}:{address[1]} cannot be served: {error.strerror}") from None
    return server


@contextlib.contextmanager
def serving_in_a_thread(address: tuple[str, int], pages: Pages) -> Iterator[int]:
    """Serve from a thread of its own inside the `with` block; yield the port, which the system chooses if it is 0.

    For a program whose main thread belongs to an application. Raises ConfigurationError as `serve` does, and if no
    server can work, for example because no descriptors are left.
    """
    started, is_given_up = threading.Event(), threading.Event()
    found: list[Server] = []
    refused: list[ConfigurationError] = []
    wakers: list[Any] = []

    def run() -> None:
        try:
            end = Event()
            waker = gevent.get_hub().loop.async_()
            waker.start(end.set)
            wakers.append(waker)
            found.append(serve(address, pages))
            if is_given_up.is_set():
                end.set()
        except ConfigurationError as error:
            refused.append(error)
            return
        except (OSError, RuntimeError, SystemError, MemoryError) as error:
            refused.append(ConfigurationError(f"--http: no server can work: {error}"))
            return
        finally:
            started.set()
        end.wait()
        found[0].stop(timeout=0)

    thread = threading.Thread(target=run, name="http", daemon=True)
    thread.start()
    if not started.wait(START_TIMEOUT_S):
        is_given_up.set()
        raise ConfigurationError(f"--http: the server did not begin to work within {START_TIMEOUT_S:g} s")
    if refused:
        raise refused[0]
    try:
        yield found[0].server_port or 0
    finally:
        wakers[0].send()
        thread.join(END_TIMEOUT_S)


class _Collected(Collector):
    """Metrics that were read already."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        """Return them."""
        return self._metrics


class Server(WSGIServer):
    """A server whose requests begin at a bounded rate, and whose clients have a limited time."""

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401  # gevent's
        super().__init__(*arguments, **options)
        self.pace = Pace()
        self.start_limit: Callable[[float], gevent.Timeout] = gevent.Timeout.start_new


class _Handler(WSGIHandler):
    """Serves one client, for a limited time; a stream for longer, unless its client does not read.

    What clients do wrong is not logged: they would fill the log.
    """

    server: Server

    def handle(self) -> None:
        self._lasts = False
        self._began_s = time.monotonic()
        self._begin_limit(self._patience_s())
        try:
            super().handle()
        except gevent.Timeout as limit:
            if limit is not self._limit:
                raise
        finally:
            self._limit.close()

    def handle_one_request(self) -> Any:  # noqa: ANN401  # as gevent declares it
        self._limit.close()  # it is not the client's fault that there are many
        self.server.pace.wait()
        left_s = self._patience_s()
        if not left_s:
            return None  # the end: what the client has sent already needs no waiting, which the limit would end
        self._begin_limit(left_s)
        return super().handle_one_request()

    def _patience_s(self) -> float:
        """Return how long to wait for a request."""
        pool = self.server.pool
        is_crowded = pool is not None and pool.free_count() < MAX_CLIENTS // 2
        left_s = max(0.0, CLIENT_TIMEOUT_S - (time.monotonic() - self._began_s))
        return min(left_s, CROWD_TIMEOUT_S) if is_crowded else left_s

    def _begin_limit(self, left_s: float) -> None:
        self._limit = self.server.start_limit(left_s)

    def run_application(self) -> None:
        self._left_s = CLIENT_TIMEOUT_S - (time.monotonic() - self._began_s)
        self._limit.close()  # it is not the client's fault how long its answer takes to make
        super().run_application()

    def process_result(self) -> None:
        if not self._lasts:
            self._begin_limit(max(0.0, self._left_s))
        super().process_result()
        if not self._lasts:
            self._limit.close()
            self._begin_limit(self._patience_s())

    def get_environ(self) -> dict[str, Any]:
        return {**super().get_environ(), LASTS: self._last}

    def _last(self) -> None:
        self._lasts = self.close_connection = True

    def write(self, data: bytes) -> None:
        if not self._lasts:
            super().write(data)
            return
        with gevent.Timeout(CLIENT_TIMEOUT_S, ConnectionResetError(errno.EPIPE, "the client does not read")):
            super().write(data)

    def read_request(self, raw_requestline: str) -> Any:  # noqa: ANN401  # a type of gevent's own
        line = raw_requestline.rstrip("\r\n")
        if not (line.isascii() and line.isprintable()):  # gevent splits it also at other spaces than HTTP knows
            raise ValueError("not printable")
        try:
            return super().read_request(raw_requestline)
        except (HTTPException, LookupError) as error:  # gevent writes a traceback of any error but ValueError
            raise ValueError(str(error)) from None

    def handle_error(
        self, t: type[BaseException] | None, v: BaseException | None, tb: TracebackType | None
    ) -> None:  # gevent's names
        if isinstance(v, gevent.Timeout):
            self.close_connection = True  # without an answer, for which the client might not make room either
        else:
            super().handle_error(t, v, tb)
