"""A link broken in each way, between a minimal ZooKeeper client and server."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from tests.campaign.frames import DELETE, Session, join
from tests.campaign.proxy import HOST, Link
from tests.campaign.test_frames import CONNECT, CONNECTED, PASSWORD, PING, multi, reply
from tests.support.deadlines import WITHIN_S

ACK = multi(1, (DELETE, "/channel/c/command-1"))


@dataclass
class FakeServer:
    """Answers the connect request, then every request with a reply of the same number."""

    received: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while frame := await read_frame(reader):
            self.received.append(frame)
            (number,) = struct.unpack_from(">i", frame)
            writer.write(join(CONNECTED if frame == CONNECT else reply(number)))


@dataclass
class Client:
    """One end of a connection through the link."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, frame: bytes) -> bytes | None:
        """Send a frame; return the answer, None if the connection ended."""
        self.writer.write(join(frame))
        return await read_frame(self.reader)


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    try:
        (length,) = struct.unpack(">i", await reader.readexactly(4))
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


@asynccontextmanager
async def proxied() -> AsyncIterator[tuple[Link, FakeServer, Callable[[], Awaitable[Client]]]]:
    fake, link = FakeServer(), Link()
    server = await asyncio.start_server(fake.serve, HOST, 0)
    ports = await link.open([server.sockets[0].getsockname()[1]])

    async def connect() -> Client:
        return Client(*await asyncio.open_connection(HOST, ports[0]))

    async with asyncio.timeout(WITHIN_S):
        yield link, fake, connect
    link.cut()
    for listener in (*link.listeners, server):
        listener.close()


def run(play: Callable[[Link, FakeServer, Client, Callable[[], Awaitable[Client]]], Awaitable[None]]) -> None:
    """Run a test with a client that has a session."""

    async def all_of_it() -> None:
        async with proxied() as (link, fake, connect):
            client = await connect()
            assert await client.ask(CONNECT) == CONNECTED
            await play(link, fake, client, connect)

    asyncio.run(all_of_it())


def test_an_intact_link_forwards_both_ways_and_knows_the_session() -> None:
    async def play(link: Link, fake: FakeServer, client: Client, _connect: object) -> None:
        assert await client.ask(PING) == reply(-2)
        assert fake.received == [CONNECT, PING]
        assert [each.conversation.session for each in link.connections] == [Session(77, PASSWORD)]

    run(play)


@pytest.mark.parametrize(("what", "is_seen"), [("request", False), ("reply", True)])
def test_one_request_or_reply_is_lost_and_the_connection_with_it(what: str, is_seen: bool) -> None:
    async def play(link: Link, fake: FakeServer, client: Client, connect: Callable[[], Awaitable[Client]]) -> None:
        link.to_lose, link.fragment, link.left_to_lose = what, "/channel/", 1
        assert await client.ask(PING) == reply(-2)
        assert await client.ask(multi(2, (DELETE, "/offsets/t/0"))) == reply(2)
        assert await client.ask(ACK) is None
        assert (ACK in fake.received) == is_seen
        assert link.lost == 1
        again = await connect()
        assert await again.ask(CONNECT) == CONNECTED
        assert await again.ask(ACK) == reply(1)

    run(play)


def test_a_cut_ends_the_connection_and_nothing_else() -> None:
    async def play(link: Link, _fake: FakeServer, client: Client, connect: Callable[[], Awaitable[Client]]) -> None:
        assert link.cut() == 1
        assert await client.ask(PING) is None
        assert await (await connect()).ask(CONNECT) == CONNECTED

    run(play)


def test_a_refused_link_ends_every_connection_until_it_is_open_again() -> None:
    async def play(link: Link, _fake: FakeServer, client: Client, connect: Callable[[], Awaitable[Client]]) -> None:
        link.break_("refused", 0)
        assert await client.ask(PING) is None
        assert await (await connect()).ask(CONNECT) is None
        link.break_("open", 0)
        assert await (await connect()).ask(CONNECT) == CONNECTED

    run(play)


def test_a_message_sent_during_silence_never_arrives() -> None:
    async def play(link: Link, fake: FakeServer, client: Client, _connect: object) -> None:
        link.break_("silent", 0)
        answer = asyncio.create_task(client.ask(PING))
        done, _waiting = await asyncio.wait([answer], timeout=0.2)
        assert not done
        link.break_("open", 0)
        assert await answer is None
        assert fake.received == [CONNECT]

    run(play)


def test_a_slow_link_forwards_later() -> None:
    async def play(link: Link, _fake: FakeServer, client: Client, _connect: object) -> None:
        link.break_("slow", 100)
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await client.ask(PING) == reply(-2)
        assert loop.time() - began >= 0.2

    run(play)
