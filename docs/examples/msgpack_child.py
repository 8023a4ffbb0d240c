"""A child for `consumer-agent run --exec 'python msgpack_child.py' --frames msgpack`: prints each record on stderr.

Its standard output belongs to the agent.
"""

import sys
from collections.abc import Iterator
from typing import Any

import msgpack


def frames() -> Iterator[dict[str, Any]]:
    """Read the agent's frames: four bytes of length, then msgpack."""
    while length := sys.stdin.buffer.read(4):  # the input ends when the agent stops
        yield msgpack.unpackb(sys.stdin.buffer.read(int.from_bytes(length, "big")))


def answer(frame: dict[str, Any]) -> None:
    """Write a frame in the same form."""
    body = msgpack.packb(frame)
    sys.stdout.buffer.write(len(body).to_bytes(4, "big") + body)
    sys.stdout.buffer.flush()


for frame in frames():
    if "revoke" in frame:  # all records before it are processed by now
        answer({"revoked": frame["revoke"]})
        continue
    record = frame["record"]
    place = {key: record[key] for key in ("topic", "partition", "offset")}
    try:
        number = int(record["value"])
    except ValueError:
        answer({"fail": {**place, "reason": f"{record['value']!r} is not a number"}})
        continue
    print(f"{record['topic']}/{record['partition']} {record['offset']} {number}", file=sys.stderr, flush=True)
    answer({"ack": place})
