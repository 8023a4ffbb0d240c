"""Each kind of node with one value replaced: whether it is read, or the error with which it is refused.

`python -m tests.vectors.nodes` writes `nodes.txt` anew, to be read as a difference before it is committed.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from pprint import pformat
from typing import Any

import msgpack

from zkrebalancer.protocol import (
    cluster_nodes,
    command,
    history,
    obstacles,
    offset_copy,
    offset_lives,
    ownership,
    registration,
    rights,
    settings,
    shards,
    weights,
)
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.region import documents

FILE = Path(__file__).with_suffix(".txt")
LARGEST = float.fromhex("0x1.fffffffffffffp+1023")
ODD: tuple[object, ...] = (None, "odd", -1, LARGEST, 2**63, True, ["odd"])
OWNED = '"threads":{"0":{"t":[[0,1]]}}'


def read_history(content: bytes) -> history.History:
    """Return the rebalances; one that cannot be read is an error here."""
    found = history.decode(content)
    if found.problems:
        raise NodeContentError(found.problems[0])
    return found


NODES: dict[str, tuple[Callable[[bytes], object], str]] = {
    "registration": (
        registration.decode,
        (
            '{"pattern":"static","subscription":{"t":1},"timestamp":"0","client_id":"c","instance_id":"i","rack":"r",'
            '"capacity":1.0,"host":"h","session_timeout_ms":10000,"stop_timeout_ms":5,"static_grace_ms":6}'
        ),
    ),
    "owners": (ownership.decode_owners, f'{{"generation":1,"command_id":"c",{OWNED}}}'),
    "given": (ownership.decode_given, '{"partitions":{"t":[[1,1]]}}'),
    "evicted": (
        ownership.decode_eviction,
        f'{{"generation":1,"command_id":"c",{OWNED},"evicted_at_ms":2,"lease_ms":3,"topics":["u"]}}',
    ),
    "static": (
        ownership.decode_static,
        '{"consumer":"c-1","partitions":{"t":[[1,1]]},"deadline_ms":5,"grace_ms":6,"former":{"t":[[2,2]]}}',
    ),
    "coordinator": (
        cluster_nodes.decode_coordinator,
        '{"brokerid":1,"host":"h","epoch":2,"http":"h:1","timestamp":"0"}',
    ),
    "broker": (cluster_nodes.decode_rack, '{"rack":"r"}'),
    "replicas": (cluster_nodes.decode_replicas, '{"partitions":{"0":[1,2]}}'),
    "group settings": (settings.decode, settings.encode(settings.GroupSettings()).decode()),
    "command": (
        command.decode,
        (
            '{"command_id":"c","option":"start-fetcher","coordinator_epoch":3,"generation":7,'
            '"cause":{"id":"i","kind":"k"},"ownership_map":{"0":{"t":[[0,2]]}}}'
        ),
    ),
    "history": (
        read_history,
        (
            '{"rebalances":[{"id":"r","epoch":1,"generation":2,"mode":"eager","requested_at_ms":3,'
            '"reasons":[{"kind":"k","subject":"s","by":"b"}],"reason_count":1,"members":4,"partitions":5,"moved":6,'
            '"outcome":"finished","settled_ms":7.5,"pause_ms_max":8.5,"phases_ms":{"wait":1.5,"plan":2.5,"stop":3.5,'
            '"start":4.5},"late":["m"],"late_count":1,"slowest":{"member":"m","ms":9.5}}]}'
        ),
    ),
    "obstacles": (
        obstacles.decode,
        (
            '{"epoch":1,"obstacles":[{"group":"g","kind":"k","reason":"r","path":"/p","right":"read","moves":1,'
            '"generation":2}],"more":3}'
        ),
    ),
    "deleted offsets": (
        offset_copy.decode,
        '{"topic":"t","incarnation":"czxid-1","deleted_at_ms":1,"offsets":{"0":2}}',
    ),
    "lives": (offset_lives.decode, '{"lives":{"3":[[0,1]]}}'),
    "weights": (weights.decode, '{"slot_count":1,"rates":{"t":[[1.5],[2]]}}'),
    "security": (
        rights.decode,
        '{"coordinators":["sasl:c"],"operators":["sasl:o"],"gateways":[],"groups":{"g":["sasl:g"]}}',
    ),
    "shards": (shards.decode_number, '{"shards":8,"first_epoch":17}'),
    "host of shards": (shards.decode_host, '{"brokerid":1,"host":"h","capacity":2}'),
    "region": (documents.decode_settings, '{"name":"r","recovery":"forced","every_ms":1000,"reset_ms":2000}'),
    "request": (documents.decode_request, '{"kind":"reset","member":"m","reason":"why"}'),
    "initial offset": (documents.decode_initial, '{"offset":1,"incarnation":"czxid-1"}'),
    "order": (
        documents.decode_order,
        (
            '{"id":3,"reset":1,"complete":2,"pieces":1,"pending":"p","open":{"id":3,"kind":"checkpoint","members":["m"],'
            '"leaving":["m"]},"members":{"m":5},"leaving":["m"],"left":{"n":4}}'
        ),
    ),
    "contribution": (
        documents.decode_contribution,
        '{"round":3,"piece":0,"pieces":1,"consumer":"c-1","offsets":{"t":[[0,1]]},"incarnations":{"t":"czxid-1"}}',
    ),
    "merge": (
        documents.decode_merge,
        '{"id":3,"offsets":{"t":[[0,1]]},"incarnations":{"t":"czxid-1"},"states":{"m":3}}',
    ),
}


def document_of(kind: str) -> dict[str, Any]:
    """Return the valid document of a kind of node."""
    return {"version": 1, **json.loads(NODES[kind][1])}


def outcome(kind: str, document: object) -> str:
    """Return what the decoder makes of a document."""
    content = msgpack.packb(document) if kind == "command" else json.dumps(document).encode()
    try:
        return pformat(NODES[kind][0](content), width=10_000)
    except NodeContentError as error:
        return f"refused: {error}"


def places(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of each value in a document."""
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in below:
        yield (*path, key)
        yield from places(inner, (*path, key))


def exchanged(document: dict[str, Any], path: tuple[str | int, ...], value: object) -> dict[str, Any]:
    """Return the document with another value at a path."""
    changed: Any = copy.deepcopy(document)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return dict(changed)


def lines() -> Iterator[str]:
    """Yield the file's lines: each kind's valid document, then what else is read or refused at each place."""
    for kind in NODES:
        document = document_of(kind)
        yield f"{kind}: {outcome(kind, document)}"
        for path in places(document):
            shown = ".".join(map(str, path))
            for odd in ODD:
                result = outcome(kind, exchanged(document, path, odd))
                fault = result.removeprefix("refused: ")
                yield f"  {shown} = {json.dumps(odd)}: {'read' if fault == result else fault.removeprefix(f'{kind}: ')}"


if __name__ == "__main__":
    FILE.write_text("".join(f"{line}\n" for line in lines()))
