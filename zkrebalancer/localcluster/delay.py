"""Makes servers of this machine as far away as those of another host: `python -m zkrebalancer.localcluster.delay`.

Each pair LISTEN=TARGET is a port and the port of a server. What arrives on a connection is passed on after half of the
round trip, in both directions. A wait of asyncio ends up to a millisecond late, so round trips are up to 2 ms longer.
"""

from __future__ import annotations

import argparse
import asyncio
import functools

from zkrebalancer.localcluster.ports import HOST

CHUNK_BYTES = 64 * 1024
MAX_CHUNKS = 64  # under way in one direction of a connection; then reading waits
Chunk = tuple[float, bytes]  # when it arrives, by the loop's clock; an empty one is the end


async def _relay(target: int, delay_s: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Connect to the server, and pass on both directions until both have ended, or one has failed."""
    try:
        far_reader, far_writer = await asyncio.open_connection(HOST, target)
    except OSError:  # the server is down: its client sees the same
        writer.transport.abort()
        return
    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(_pass_on(reader, far_writer, delay_s))
            both.create_task(_pass_on(far_reader, writer, delay_s))
    except* OSError:
        pass
    finally:
        for each in (writer, far_writer):
            each.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    chunks: asyncio.Queue[Chunk] = asyncio.Queue(MAX_CHUNKS)
    async with asyncio.TaskGroup() as both:
        both.create_task(_receive(reader, chunks, delay_s))
        both.create_task(_deliver(chunks, writer))


async def _receive(reader: asyncio.StreamReader, chunks: asyncio.Queue[Chunk], delay_s: float) -> None:
    now_s = asyncio.get_running_loop().time
    while content := await reader.read(CHUNK_BYTES):
        await chunks.put((now_s() + delay_s, content))
    await chunks.put((now_s() + delay_s, b""))


async def _deliver(chunks: asyncio.Queue[Chunk], writer: asyncio.StreamWriter) -> None:
    now_s = asyncio.get_running_loop().time
    while True:
        due_s, content = await chunks.get()
        await asyncio.sleep(max(0.0, due_s - now_s()))
        if not content:
            writer.write_eof()
            return
        writer.write(content)
        await writer.drain()


async def serve(pairs: list[tuple[int, int]], round_trip_ms: float) -> None:
    """Relay for ever from the first port of each pair to the second."""
    delay_s = round_trip_ms / 2_000
    servers = [
        await asyncio.start_server(functools.partial(_relay, target, delay_s), HOST, listen) for listen, target in pairs
    ]
    await asyncio.gather(*(server.serve_forever() for server in servers))


def main() -> None:
    """Relay until this process is killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="+", metavar="LISTEN=TARGET")
    parser.add_argument("--round-trip-ms", type=float, required=True)
    arguments = parser.parse_args()
    pairs = [tuple(map(int, pair.split("="))) for pair in arguments.pairs]
    asyncio.run(serve([(listen, target) for listen, target in pairs], arguments.round_trip_ms))


if __name__ == "__main__":
    main()
