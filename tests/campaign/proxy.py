"""`python -m tests.campaign.proxy SOCKET`: a TCP proxy in front of ZooKeeper; each link can be broken separately.

A link connects one process to the ensemble: a listener for each server. Orders come as JSON lines on a Unix socket,
each with one answer (`tests/campaign/links.py` is the other end):

    {"do": "open", "link": NAME, "servers": [PORT, …]}       -> {"ports": [PORT, …]}
    {"do": "break", "link": NAME, "how": HOW, "delay_ms": N} -> {}   HOW: "open", "refused", "silent", "slow"
    {"do": "cut", "link": NAME}                              -> {"cut": N}
    {"do": "lose", "link": NAME, "what": "request" | "reply" | "", "fragment": PART OF A PATH,
     "times": N}                                         -> {"lost": N}
    {"do": "session", "link": NAME}                          -> {"id": N, "password": HEX} or {}
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass, field
from typing import Any

from tests.campaign.frames import Conversation, FrameError, FrameSplitter, join

HOST = "127.0.0.1"
CHUNK_BYTES = 65_536


@dataclass(eq=False)
class Connection:
    """A client's connection and the matching one to the server."""

    link: Link
    client: asyncio.StreamWriter
    server: asyncio.StreamWriter | None = None
    conversation: Conversation = field(default_factory=Conversation)

    def cut(self) -> None:
        """End both sides at once; unsent bytes are dropped."""
        for writer in (self.client, self.server):
            if writer is not None:
                writer.transport.abort()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, what: str) -> None:
        """Forward frames in one direction until the connection ends or a frame is to be lost."""
        splitter = FrameSplitter()
        hear = self.conversation.requested if what == "request" else self.conversation.replied
        while data := await reader.read(CHUNK_BYTES):
            frames = splitter.feed(data)
            await asyncio.sleep(self.link.delay_s)
            await self.link.can_pass.wait()
            passing = []
            is_cut = False
            for frame in frames:
                is_cut = self.link.is_to_lose(what, hear(frame))
                if is_cut:
                    break
                passing.append(join(frame))
            writer.write(b"".join(passing))  # at once: asyncio logs repeated writes to a connection that has ended
            await writer.drain()
            if is_cut:
                self.cut()
                return


class Link:
    """One process's link to the ensemble, and its current fault."""

    def __init__(self) -> None:
        self.listeners: list[asyncio.Server] = []
        self.connections: set[Connection] = set()
        self.is_refused = False
        self.delay_s = 0.0
        self.can_pass = asyncio.Event()
        self.can_pass.set()
        self.to_lose, self.fragment = "", ""
        self.left_to_lose, self.lost = 0, 0

    async def open(self, servers: list[int]) -> list[int]:
        """Open a listener for each server; return the ports."""
        for port in servers:

            async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int = port) -> None:
                await self._serve(reader, writer, port)

            self.listeners.append(await asyncio.start_server(accept, HOST))
        return [listener.sockets[0].getsockname()[1] for listener in self.listeners]

    def is_to_lose(self, what: str, changed: tuple[str, ...]) -> bool:
        """Whether this frame has to be lost."""
        if self.left_to_lose == 0 or what != self.to_lose or not any(self.fragment in path for path in changed):
            return False
        self.left_to_lose -= 1
        self.lost += 1
        return True

    def break_(self, how: str, delay_ms: int) -> None:
        """Change the fault; messages sent during silence never arrive."""
        if how == "refused" or not self.can_pass.is_set():
            self.cut()
        self.is_refused = how == "refused"
        self.delay_s = delay_ms / 1_000 if how == "slow" else 0.0
        if how == "silent":
            self.can_pass.clear()
        else:
            self.can_pass.set()

    def cut(self) -> int:
        """End every connection; return their number."""
        ended = list(self.connections)
        for connection in ended:
            connection.cut()
        return len(ended)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        connection = Connection(self, writer)
        self.connections.add(connection)
        try:
            if self.is_refused:
                return
            from_server, connection.server = await asyncio.open_connection(HOST, port)
            ways = (
                connection.carry(reader, connection.server, "request"),
                connection.carry(from_server, writer, "reply"),
            )
            tasks = [asyncio.create_task(way) for way in ways]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            for problem in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(problem, FrameError):
                    sys.stderr.write(f"{problem}\n")  # the campaign checks whether there is any
        except ConnectionError:
            return  # the server is down
        finally:
            self.connections.discard(connection)
            connection.cut()


async def obey(links: dict[str, Link], order: dict[str, Any]) -> dict[str, Any]:
    """Execute one order and return the answer."""
    if order["do"] == "open":
        link = links[order["link"]] = Link()
        return {"ports": await link.open(order["servers"])}
    link = links[order["link"]]
    if order["do"] == "break":
        link.break_(order["how"], order["delay_ms"])
    elif order["do"] == "cut":
        return {"cut": link.cut()}
    elif order["do"] == "lose":
        link.to_lose, link.fragment, link.left_to_lose = order["what"], order["fragment"], order["times"]
        return {"lost": link.lost}
    elif order["do"] == "session":
        for connection in link.connections:
            session = connection.conversation.session
            if session is not None:
                return {"id": session.session_id, "password": session.password.hex()}
    return {}


async def serve(name: str) -> None:
    """Execute orders until killed. The socket is abstract, because other kinds limit the path to 107 bytes."""
    links: dict[str, Link] = {}

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(json.dumps(await obey(links, json.loads(line))).encode() + b"\n")
            await writer.drain()

    server = await asyncio.start_unix_server(talk, f"\0{name}")
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
