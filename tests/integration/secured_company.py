"""A coordinator, agents and a gateway as processes in a secured tree; rogues; a port that falls silent."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Collection, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError, NotEmptyError
from kazoo.security import ACL, Id, Permissions

from tests.integration.commands import Result, begin, end, run
from tests.integration.gateway_process import PORTS
from tests.integration.kafka_clients import Reader, produce
from tests.support.deadlines import WITHIN_S
from tests.support.secured_zookeeper import (
    CA,
    PASSWORDS,
    security_of,
)
from tests.support.waiting import wait_until
from zkrebalancer.cli import main
from zkrebalancer.localcluster.ports import HOST, free_block
from zkrebalancer.operations import backup_file
from zkrebalancer.protocol import ownership, paths
from zkrebalancer.protocol.calls import (
    ABSENT,
    Children,
    Content,
    Create,
    Delete,
    Done,
    Get,
    ListChildren,
    Multi,
)
from zkrebalancer.protocol.zookeeper_security import ZooKeeperSecurity
from zkrebalancer.runtime.zk import BlockingZk

WRONG = "not-the-word"
AGENT = ("--bootstrap", "127.0.0.1:1", "--group", "g", "--topic", "t")
ARGUMENTS = {
    "group": ["g"],
    "topic": ["t"],
    "partition": ["0"],
    "partitions": ["0"],
    "consumer": ["c"],
    "count": ["1"],
    "pairs": ["strategy=sticky"],
    "--broker-id": ["--broker-id", "1"],
    "--bootstrap": ["--bootstrap", "127.0.0.1:1"],
    "--upstream": ["--upstream", "127.0.0.1:1"],
    "--listen": ["--listen", "127.0.0.1:1"],
}
MORE = {
    "reset-offsets": ["--to-offset", "0"],
    "delete": ["--yes"],
    "evict": ["--yes"],
    "set": ["--yes"],
    "drain": ["--host", "h", "--yes"],
    "undrain": ["--host", "h", "--yes"],
    "import": ["--from", "old-consumers"],
}
GROUP = TOPIC = "orders"
PARTITIONS = 4
OPEN = [ACL(Permissions.ALL, Id("world", "anyone"))]
PATIENT_MS = 60_000  # a session of the test, which a call of a rogue may keep from its heartbeats
CREATES_BELOW = {"ids", "owners", "channel", "quarantine", "members", "requests", "initial"}  # as any consumer may
SETS = {"region"}  # the first member does
Attempt = Callable[[KazooClient, str], object]
ATTEMPTS: dict[str, Attempt] = {
    "set_acls": lambda client, path: client.set_acls(path, OPEN),
    "create": lambda client, path: client.create(f"{path}/by-a-rogue"),
    "set": lambda client, path: client.set(path, b""),
    "delete": lambda client, path: client.delete(path),
}
ANSWER_S = 3.0  # a handshake is tried for longer
CLIENT = "rdkafka"  # what librdkafka calls itself
CHUNK_BYTES = 65_536
T = TypeVar("T")


def commands_at(place: list[str], folder: Path, names: Collection[str] | None = None) -> list[tuple[object, ...]]:
    """Return every command that connects to ZooKeeper, or those of these names, with the arguments that it needs."""
    backup = folder / "a.backup"
    if not backup.exists():
        backup_file.write(backup, [], 0)
    files = {"backup": ["file"], "restore": [str(backup)]}
    found: list[tuple[object, ...]] = [("consumer-agent", "run", *place, *AGENT)]
    for path, command in leaves(main.zkrebalancer, ()):
        name = path[-1]
        is_wanted = name != "identity" if names is None else name in names
        if is_wanted and any(one.name == "zookeeper" and one.required for one in command.params):
            needed = [
                one.opts[0] if isinstance(one, click.Option) else str(one.name)
                for one in command.params
                if one.required or (name in files and isinstance(one, click.Argument))
            ]
            words = [
                word
                for one in needed
                if one != "--zookeeper"
                for word in (files | ARGUMENTS).get(one, files.get(name, []))
            ]
            found.append(("zkrebalancer", *path, *words, *MORE.get(name, []), *place))
    return found


def leaves(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield the commands that are no groups."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from leaves(below, (*path, name))
    else:
        yield path, command


def lines(result: Result) -> list[str]:
    text = result.stdout + result.stderr
    assert WRONG not in text
    assert not [word for word in PASSWORDS.values() if word in text]
    return text.splitlines()


@dataclass
class Company:
    """A coordinator and agents, as processes with logins; everything that they print and write is kept."""

    zookeeper: str
    bootstrap: str
    folder: Path
    zk: BlockingZk  # logged in as a coordinator
    topic: str = TOPIC
    ca: str = CA
    http: str = ""  # of the coordinator, if it serves any
    passwords: dict[str, str] = field(default_factory=lambda: dict(PASSWORDS))
    running: list[subprocess.Popen[str]] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)

    def login(self, user: str) -> list[str]:
        word = self.folder / f"{user}.password"
        word.write_text(self.passwords[user])
        place = ["--zookeeper", self.zookeeper, "--zookeeper-tls-ca", self.ca]
        return [*place, "--zookeeper-user", user, "--zookeeper-password-file", str(word)]

    def new_login(self) -> ZooKeeperSecurity:
        """Return the login of a coordinator as it is now."""
        return ZooKeeperSecurity(tls_ca=self.ca, user="coordinator", password=self.passwords["coordinator"])

    def begin(self, program: str, *arguments: object, events: bool = True) -> subprocess.Popen[str]:
        common = ("--log-level", "debug", *(("--events", self.folder / "events") if events else ()))
        self.running.append(begin(program, *arguments, *common))
        return self.running[-1]

    def begin_agent(self, name: str, *more: object) -> subprocess.Popen[str]:
        options = ("--bootstrap", self.bootstrap, "--group", GROUP, "--topic", self.topic, "--client-id", name)
        return self.begin("consumer-agent", "run", *self.login(GROUP), *options, *more)

    def begin_gateway(self, *more: object) -> str:
        """Begin a gateway that keeps offsets in ZooKeeper; return where it listens."""
        listen = f"{HOST}:{free_block(PORTS)}"
        options = ("--listen", listen, "--upstream", self.bootstrap, "--offsets", "zookeeper", *more)
        self.begin("zkrebalancer", "group-coordinator", *self.login("gateway"), *options)
        return listen

    def security(self, user: str, *arguments: str) -> tuple[int, dict[str, Any]]:
        result = run("zkrebalancer", "security", *arguments, *self.login(user), "--json")
        self.printed += [result.stdout, result.stderr]
        assert result.stdout, result.stderr
        return result.returncode, json.loads(result.stdout)

    def stop(self, process: subprocess.Popen[str]) -> None:
        process.terminate()
        result = end(process)
        self.running.remove(process)
        self.printed += [result.stdout, result.stderr]
        assert result.returncode == 0, result.stderr

    def children(self, path: str) -> tuple[str, ...]:
        reply = self.zk.perform(ListChildren(path), ABSENT)
        return reply.names if isinstance(reply, Children) else ()

    def owned(self) -> dict[str, list[int]]:
        """Return which partitions each consumer of the group owns."""
        found = {}
        for name in self.children(paths.owners(GROUP)):
            node = self.zk.perform(Get(paths.owners(GROUP, name)), ABSENT)
            if isinstance(node, Content):
                record = ownership.decode_owners(node.content)
                found[name.partition("-")[0]] = sorted(number for _, number in record.partitions)
        return found

    def wait_for(self, *agents: str) -> None:
        """Wait until these agents own all partitions, each some."""

        def is_shared() -> bool:
            owned = self.owned()
            numbers = sorted(itertools.chain(*owned.values()))
            return {*owned} == {*agents} and all(owned.values()) and numbers == [*range(PARTITIONS)]

        wait_until(is_shared, f"the partitions to be shared by {agents}")

    def nodes(self, path: str = paths.CONSUMERS) -> list[str]:
        return [path, *itertools.chain(*(self.nodes(f"{path}/{name}") for name in self.children(path)))]

    def departures(self) -> list[str]:
        """Return why members left, by the coordinator's events."""
        lines = [line for file in (self.folder / "events").glob("*.jsonl") for line in file.read_text().splitlines()]
        events = map(json.loads, lines)
        return [event["reason"] for event in events if event["kind"] == "member_left" and "member" in event]


@contextlib.contextmanager
def begun(
    zookeeper: str, bootstrap: str, folder: Path, topic: str, *options: object, ca: str = CA
) -> Iterator[Company]:
    """Start a coordinator in an open tree with one topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(60)
    node = json.dumps({"version": 3, "partitions": {str(number): [1] for number in range(PARTITIONS)}}).encode()
    brokers = (Create("/brokers"), Create("/brokers/topics"), Create("/brokers/ids"), Create(paths.topic(topic), node))
    with BlockingZk(zookeeper, PATIENT_MS, security_of("coordinator", tls=True)) as connected:
        assert isinstance(connected.perform(Multi(brokers)), Done)
        one = Company(zookeeper, bootstrap, folder, connected, topic, ca)
        one.begin("zkrebalancer", "coordinator", *one.login("coordinator"), "--broker-id", 1, *options)
        try:
            yield one
        finally:
            for process in one.running:
                process.kill()
                process.communicate()
            admin.delete_topics([topic])[topic].result(60)


def require_no_secret(company: Company) -> None:
    texts = [*company.printed, *(file.read_text() for file in (company.folder / "events").iterdir())]
    assert any("orders" in text for text in texts)
    for text in texts:
        assert not [word for word in (*PASSWORDS.values(), *company.passwords.values()) if word in text]
        assert re.search("member:[0-9a-f]{40}", text) is None


def attempts(company: Company, user: str | None, zookeeper: str) -> set[tuple[str, str]]:
    """Try everything at every node; return what succeeded, as the attempt and the last part of the node's path."""
    options = {"mechanism": "DIGEST-MD5", "username": user, "password": PASSWORDS[user]} if user is not None else None
    client = KazooClient(zookeeper, sasl_options=options)
    client.start()
    client.add_auth("digest", "member:of-a-rogue")
    succeeded = set()
    try:
        for path in company.nodes():
            if path.startswith(paths.group("payments")) or (user == GROUP and "/offsets" in path):
                continue  # nobody's victims; and offsets are trusted to the group
            for name, attempt in ATTEMPTS.items():
                try:
                    attempt(client, path)
                except (NoAuthError, NoNodeError, NotEmptyError):  # gone: the coordinator has removed it
                    continue
                succeeded.add((name, path.rpartition("/")[2]))
                if name == "create":
                    company.zk.perform(Multi((Delete(f"{path}/by-a-rogue"),)), ABSENT)  # a leader may have
    finally:
        client.stop()
        client.close()
    return succeeded


class Forwarder:
    """A port in front of a server; while it is silent, it accepts connections and says nothing; it may be slow.

    It has a thread of its own, because the test's loop waits in calls of kazoo.
    """

    def __init__(self, server: str, host: str = HOST) -> None:
        self._server = server
        self._open: list[asyncio.StreamWriter] = []
        self.is_silent = False
        self.held = 0  # connections that were accepted in silence
        self.slow_s = 0.0  # for which it keeps what it passes on
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._listener = self._do(asyncio.start_server(self._serve, host))
        self.port = int(self._listener.sockets[0].getsockname()[1])

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WITHIN_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.append(writer)
        if self.is_silent:
            self.held += 1
            while await reader.read(CHUNK_BYTES):
                pass
            return
        with contextlib.suppress(OSError):
            host, _, port = self._server.rpartition(":")
            from_server, to_server = await asyncio.open_connection(host, int(port))
            self._open.append(to_server)
            ways = ((reader, to_server), (from_server, writer))
            await asyncio.wait(
                [asyncio.ensure_future(self._pass_on(*way)) for way in ways], return_when="FIRST_COMPLETED"
            )
            to_server.transport.abort()
        writer.transport.abort()

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(CHUNK_BYTES):
                await asyncio.sleep(self.slow_s)
                target.write(data)
                await target.drain()

    async def _cut(self, *, is_silent: bool) -> None:
        self.is_silent = is_silent
        while self._open:
            self._open.pop().transport.abort()

    def fall_silent(self) -> None:
        self._do(self._cut(is_silent=True))

    def speak(self) -> None:
        self._do(self._cut(is_silent=False))

    def close(self) -> None:
        self.speak()
        self._loop.call_soon_threadsafe(self._listener.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WITHIN_S)
        self._loop.close()


def require_flow(company: Company, reader: Reader) -> None:
    """Records reach the unmodified client, whose offsets are stored by the gateway."""
    before = len(reader.values)
    produce(company.bootstrap, company.topic, [str(number) for number in range(PARTITIONS)])
    wait_until(lambda: len(reader.values) >= before + len(reader.assigned), "records of the client's partitions")


def page(http: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{http}/{path}", timeout=ANSWER_S) as found:
        return str(found.read(), "utf-8")


def is_ready(http: str) -> bool:
    try:
        return bool(json.loads(page(http, "readiness"))["ready"])
    except OSError:
        return False
