"""Every parser of bytes that come from elsewhere, each as a function: it reads them, or refuses by its named error.

Anything else is a finding: another exception, a refusal that is not one short line, or a value that cannot be used.
"""

from __future__ import annotations

import contextlib
import json
import socket
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest import mock

import click
import gevent.socket
import msgpack
from prometheus_client import CollectorRegistry

from consumer_agent.sidecar import settings as agent_settings
from consumer_agent.sidecar.frames import CODECS
from consumer_agent.sidecar.frames import FrameError as SidecarError
from tests.support.groups import world_with
from tests.support.page_site import site_of
from tests.unit.kafka_protocol.random_messages import FORMS
from tests.unit.protocol import test_any_content
from zkrebalancer.assignment.document import InputError, read_problem
from zkrebalancer.cli.configuration import ConfiguredCommand
from zkrebalancer.cli.coordinator import coordinator
from zkrebalancer.coordinator.pages.site import Site
from zkrebalancer.gateway import sasl
from zkrebalancer.gateway.frames import FrameReader
from zkrebalancer.group_protocol import consumer_protocol, stored
from zkrebalancer.kafka_protocol import codec
from zkrebalancer.kafka_protocol.errors import FrameError
from zkrebalancer.observe import checker
from zkrebalancer.observe.reading import NoEventsError
from zkrebalancer.operations import backup_file, offset_file
from zkrebalancer.operations.backup_file import BackupFileError
from zkrebalancer.protocol.errors import PatternError, RebalancerError
from zkrebalancer.protocol.patterns import TopicFilter
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.runtime import http_limits, http_server
from zkrebalancer.runtime.http_server import JSON, Pages
from zkrebalancer.runtime.vitals import Health

MAX_TEXT = 1_200  # of a refusal
MAX_PAGE_BYTES = 50_000  # for a group of two members, whatever was asked
LONG_TOPIC = "a" * 249
MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Target:
    """A parser, and inputs to begin with."""

    read: Callable[[bytes], None]
    seeds: tuple[bytes, ...]


def refused(error: Exception) -> None:
    """Check that a refusal is one short line."""
    text = str(error)
    assert text.isprintable(), f"not one readable line: {text!r}"
    assert len(text) <= MAX_TEXT, f"{len(text)} characters long"


# ---- nodes in ZooKeeper

KINDS = list(test_any_content.READERS)


def nodes(content: bytes) -> None:
    """Read the rest as the kind of node that the first byte chooses."""
    test_any_content.read(KINDS[content[0] % len(KINDS)] if content else KINDS[0], content[1:])


def commands(content: bytes) -> None:
    """Read a command of the coordinator."""
    test_any_content.read("command", content)


def stored_groups(content: bytes) -> None:
    """Read a group as the gateway stores it."""
    try:
        stored.to_bytes(stored.from_bytes(content))
    except stored.StoredGroupError as error:
        refused(error)


# ---- Kafka's protocol


def kafka_messages(content: bytes) -> None:
    """Read the rest as the message that the first two bytes choose."""
    form = FORMS[int.from_bytes(content[:2], "big") % len(FORMS)]
    try:
        codec.decode(*form, content[2:])
    except FrameError as error:
        refused(error)


def kafka_stream(content: bytes) -> None:
    """Read what a client sends: frames, each with a header."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(content[:100_000])
        theirs.close()
        frames = FrameReader(ours)
        with contextlib.suppress(EOFError):
            try:
                while (size := frames.next_size()) is not None:
                    codec.decode_header(frames.take(size))
            except FrameError as error:
                refused(error)


def subscriptions(content: bytes) -> None:
    """Read what consumers embed in their requests."""
    for read in (consumer_protocol.read_subscription, consumer_protocol.read_assignment):
        try:
            read(content)
        except consumer_protocol.SubscriptionError as error:
            refused(error)


def scram(content: bytes) -> None:
    """Read a broker's two messages of a login."""
    first, _, second = content.partition(b"\n")
    exchange = sasl.scram(sasl.Credentials("SCRAM-SHA-256", "u", "p"), "nonce")
    next(exchange)
    with contextlib.suppress(StopIteration):
        try:
            exchange.send(first)
            exchange.send(second)
        except sasl.LoginError as error:
            refused(error)


# ---- the agent's child


def _sidecar(name: str, content: bytes) -> None:
    try:
        for frame in CODECS[name]().feed(content):
            repr(frame)
            for topic in [topic for topic, _ in getattr(frame, "partitions", [getattr(frame, "partition", ("", 0))])]:
                assert isinstance(topic, str), f"a topic that is no text: {topic!r}"
    except SidecarError as error:
        refused(error)


def sidecar_json(content: bytes) -> None:
    """Read lines of a child."""
    _sidecar("json", content)


def sidecar_msgpack(content: bytes) -> None:
    """Read frames of a child."""
    _sidecar("msgpack", content)


# ---- files


@contextlib.contextmanager
def _file(content: bytes, name: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="zkrebalancer-fuzz-", dir=MEMORY if MEMORY.is_dir() else None) as place:
        file = Path(place) / name
        file.write_bytes(content)
        yield file


def toml(content: bytes) -> None:
    """Read settings of a coordinator and of an agent."""
    with _file(content, "settings.toml") as file:
        assert isinstance(coordinator, ConfiguredCommand)
        try:
            coordinator.make_context("c", ["--zookeeper", "z:1", "--broker-id", "1", "--config", str(file)])
        except (click.ClickException, RebalancerError) as error:
            text = error.format_message() if isinstance(error, click.ClickException) else str(error)
            assert len(text) <= MAX_TEXT, f"{len(text)} characters long"
        agent_settings.find_faults(agent_settings.gather([str(file)], {}, {}))


def events(content: bytes) -> None:
    """Judge a file of events."""
    with _file(content, "a.jsonl") as file:
        try:
            verdict = checker.check(file.parent)
        except NoEventsError:
            return
        for problem in verdict.problems:
            assert len(problem) <= MAX_TEXT, f"{len(problem)} characters long"


def offset_files(content: bytes) -> None:
    """Read offsets to import; what is read can be written and read again."""
    try:
        found = offset_file.read(content.decode(errors="replace"))
    except offset_file.OffsetFileError as error:
        refused(error)
    else:
        assert offset_file.read(offset_file.to_csv(found)) == found


def backups(content: bytes) -> None:
    """Read a backup; with its true end added, so that the nodes count."""
    with _file(content, "b") as file:
        try:
            for node in backup_file.read(file):
                node.path.encode()
        except BackupFileError as error:
            refused(error)


def tail(content: bytes) -> None:
    """Find the whole lines of a growing file, as the pipeline's watcher does."""
    from zkrebalancer.pipeline.tail import whole_lines  # noqa: PLC0415  # imports Spark

    wanted, content = content[0] + 1 if content else 1, content[1:]
    with _file(content, "a.jsonl") as file:
        begin = lines = 0
        while (found := whole_lines(file, begin, wanted, len(content)))[1]:
            begin, lines = begin + found[0], lines + found[1]
    assert (begin, lines) == (content.rfind(b"\n") + 1, content.count(b"\n"))


def assign_input(content: bytes) -> None:
    """Read the input of `zkrebalancer assign`."""
    try:
        read_problem(content)
    except InputError as error:
        refused(error)


# ---- patterns and HTTP


def patterns(content: bytes) -> None:
    """Compile a pattern and match a long topic."""
    try:
        TopicFilter("white_list", content.decode(errors="surrogateescape")).matches(LONG_TOPIC)
    except PatternError as error:
        refused(error)


@cache
def _served() -> int:
    """Serve the pages of a healthy process, on this thread's hub; return the port."""
    health = Health(None, [], leads=True)
    http_limits.MAX_REQUESTS_PER_S = 1_000_000
    return http_server.serve(("127.0.0.1", 0), Pages(lambda: health, CollectorRegistry())).server_port or 0


@cache
def _site() -> Site:
    world = world_with(GroupSettings(), "a", "b")
    return site_of(world, world.leader())


def page_queries(content: bytes) -> None:
    """Ask for a page's data: the first line is its name, the rest the query."""
    name, _newline, query = content.decode("latin-1").partition("\n")
    answer = _site()(f"/page/{name}", query)
    if isinstance(answer, http_server.Answer) and answer.kind == JSON:
        assert isinstance(json.loads(answer.content), dict)
        assert len(answer.content) < MAX_PAGE_BYTES


def http(content: bytes) -> None:
    """Send bytes to the pages of a process, and the end of the stream; nothing is written to its log."""
    with mock.patch("traceback.print_exc") as printed:  # by gevent, for what the handler does not foresee
        _http(content)
    assert not printed.called, content[:200]


def _http(content: bytes) -> None:
    with gevent.socket.create_connection(("127.0.0.1", _served())) as client, contextlib.suppress(ConnectionError):
        client.sendall(content[:100_000])
        client.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: client.recv(65_536), b""))
        status = answer[9:12]
        assert status in {b"", b"200", b"400", b"404", b"405", b"414", b"431"}, answer[:200]
        assert status != b"200" or content.lstrip(b"\r\n").startswith((b"GET ", b"HEAD ")), answer[:200]


# ---- what they begin with


def backup_head() -> bytes:
    """Return the first line of a backup."""
    return _backup().partition(b"\n")[0] + b"\n"


def _backup() -> bytes:
    with _file(b"", "empty") as file:
        backup = file.parent / "backup"
        backup_file.write(backup, [backup_file.Node("/consumers/groups/g/offsets/t/0", b"41")], 0)
        return backup.read_bytes()


def _message(name: str, version: int, fields: dict[str, object]) -> bytes:
    return FORMS.index((name, version)).to_bytes(2, "big") + codec.encode(name, version, fields)


def _prefixed(document: object) -> bytes:
    body: bytes = msgpack.packb(document)
    return len(body).to_bytes(4, "big") + body


def _text(document: object) -> bytes:
    return json.dumps(document).encode()


_ACK = {"ack": {"topic": "t", "partition": 0, "offset": 5}}
_RELEASED = {"revoked": {"t": [0, 2]}}
_START = {
    "version": 1,
    "command_id": "i",
    "option": "start-fetcher",
    "coordinator_epoch": 3,
    "generation": 7,
    "cause": {"id": "c", "kind": "member-joined"},
    "ownership_map": {"0": {"t": [[0, 2]]}},
}
_EVENT = {"mono_us": 1, "kind": "delivered", "group": "g", "member": "m", "topic": "t", "partition": 0}
_FETCHER = {"group": "g", "member": "m", "topic": "t", "partitions": [0], "positions": [5]}
TARGETS: dict[str, Target] = {
    "nodes": Target(
        nodes,
        tuple(
            bytes([KINDS.index(kind)]) + _text(document)
            for kind, document in {
                "owners": {"version": 1, "generation": 7, "command_id": None, "threads": {"0": {"t": [[0, 2]]}}},
                "given": {"version": 1, "partitions": {"t": [[0, 2]]}},
                "ids": {"version": 1, "pattern": "static", "subscription": {"t": 2}, "timestamp": "", "client_id": "c"},
                "settings": {"version": 1, "strategy": "sticky", "mode": "eager", "options": {}},
                "topic": {"version": 3, "topic_id": "x", "partitions": {"0": [1]}},
                "weights": {"version": 1, "slot_count": 1, "rates": {"t": [[1.0]]}},
                "security": {"version": 1, "coordinators": ["sasl:c"], "groups": {"g": ["sasl:g"]}},
            }.items()
        ),
    ),
    "commands": Target(commands, (msgpack.packb(_START),)),
    "stored-groups": Target(stored_groups, (zlib.compress(msgpack.packb({"version": 1, "type": "classic"})),)),
    "kafka-messages": Target(
        kafka_messages,
        (
            _message("HeartbeatRequest", 4, {"group_id": "g", "generation_id": 1, "member_id": "m"}),
            _message("OffsetFetchRequest", 7, {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0]}]}),
        ),
    ),
    "kafka-stream": Target(kafka_stream, (b"\0\0\0\x0e\0\x12\0\0\0\0\0\1\0\4abcd",)),
    "subscriptions": Target(
        subscriptions,
        (
            b"\0\1\0\0\0\1\0\1t\xff\xff\xff\xff\0\0\0\1\0\1t\0\0\0\1\0\0\0\0",
            consumer_protocol.write_assignment(0, {"t": (0, 1)}),
        ),
    ),
    "scram": Target(scram, (b"r=nonce1,s=c2FsdA==,i=1\nv=c2FsdA==",)),
    "sidecar-json": Target(sidecar_json, (_text(_ACK) + b"\n" + _text(_RELEASED) + b"\n",)),
    "sidecar-msgpack": Target(sidecar_msgpack, (_prefixed(_ACK), _prefixed(_RELEASED))),
    "toml": Target(toml, (b'http = "h:1"\nsession_timeout_ms = 6000\n[kafka]\n"a.b" = 1\n', b'topics = ["t"]\n')),
    "events": Target(
        events,
        (
            _text({**_EVENT, "first_offset": 0, "last_offset": 4, "count": 5}) + b"\n",
            _text({"mono_us": 1, "kind": "fetcher_started", **_FETCHER}) + b"\n",
        ),
    ),
    "tail": Target(tail, (b"\5ab\ncdefghij\n\nk",)),
    "backups": Target(backups, (_backup(),)),
    "offset-files": Target(
        offset_files,
        (
            offset_file.to_csv({("t", 0): 1, ("u", 12): 1 << 40}).encode(),
            offset_file.to_json("g", {("t", 0): 1}).encode(),
        ),
    ),
    "assign-input": Target(
        assign_input, (_text({"topics": {"t": 2}, "members": {"m": {"topics": ["t"], "owned": {"t": [0]}}}}),)
    ),
    "patterns": Target(patterns, (b"^(pay|or)+[a-z]{2,5}\\d*$",)),
    "page-queries": Target(
        page_queries,
        (
            b"groups\nsearch=g&state=idle&page=2",
            b"group\nname=g&topic=t&lanes=1&member=a&members=1",
            b"live/plan\nname=x",
        ),
    ),
    "http": Target(
        http, (b"GET /liveness HTTP/1.1\r\nHost: h\r\n\r\n", b"POST / HTTP/1.0\r\nContent-Length: 1\r\n\r\nx")
    ),
}
