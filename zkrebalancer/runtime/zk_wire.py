"""Requests in kazoo's form, sent by its connection: those that it does not have, and those that it makes slowly.

kazoo checks the types of arguments and takes each path apart. Here, mypy checks types, and all paths are well formed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.protocol.connection import _CONNECTION_DROP
from kazoo.protocol.serialization import CheckVersion, Create, Delete, SetData, Transaction
from kazoo.security import ACL, OPEN_ACL_UNSAFE

from zkrebalancer.protocol import calls
from zkrebalancer.protocol.calls import Operation

INT = struct.Struct("!i")
EPHEMERAL, SEQUENCE = 1, 2  # ZooKeeper's flags of a new node
CONNECTION_DROP = _CONNECTION_DROP  # kazoo closes its connection upon it, and makes another one


def string(text: str) -> bytes:
    """Return a text as a request has it."""
    encoded = text.encode()
    return INT.pack(len(encoded)) + encoded


def server_path(kazoo: Any, path: str) -> str:  # noqa: ANN401  # its client has no types
    """Return the path that the server knows: with the chroot of a client of kazoo."""
    chroot: str = kazoo.chroot
    return chroot + path if chroot and path != "/" else chroot or path


def send(kazoo: Any, request: object) -> Any:  # noqa: ANN401  # as above; its results have a type per call
    """Let a client of kazoo send a request; return its result, which is to come."""
    answer = kazoo.handler.async_result()
    kazoo._call(request, answer)  # noqa: SLF001  # kazoo has no public way without its checks
    return answer


def transaction(
    kazoo: Any,  # noqa: ANN401  # as above
    operations: Sequence[Operation],
    acl_of: Callable[[str], Sequence[ACL] | None],
) -> Transaction:
    """Return a transaction as a request; `acl_of` has the access control list of a new node, None for an open one."""
    requests: list[Create | Delete | SetData | CheckVersion] = []
    for operation in operations:
        path = server_path(kazoo, operation.path)
        if isinstance(operation, calls.Create):
            flags = EPHEMERAL * operation.ephemeral | SEQUENCE * operation.sequence
            acl = acl_of(operation.path)
            requests.append(Create(path, operation.content, OPEN_ACL_UNSAFE if acl is None else acl, flags))
        elif isinstance(operation, calls.SetContent):
            requests.append(SetData(path, operation.content, operation.version))
        elif isinstance(operation, calls.Delete):
            requests.append(Delete(path, operation.version))
        else:
            requests.append(CheckVersion(path, operation.version))
    return Transaction(requests)
