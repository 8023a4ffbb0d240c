"""Requests are those that kazoo would make, byte by byte."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.serialization import Transaction
from kazoo.security import ACL, Id

from zkrebalancer.protocol.calls import Check, Create, Delete, Operation, SetContent
from zkrebalancer.runtime.zk_wire import transaction

OWN = [ACL(31, Id("digest", "me:hash"))]


def by_kazoo(client: KazooClient, operations: list[Operation], acl: list[ACL] | None) -> Any:
    """Return the operations of kazoo's own transaction."""
    made: Any = client.transaction()
    for operation in operations:
        match operation:
            case Create():
                made.create(operation.path, operation.content, acl, operation.ephemeral, operation.sequence)
            case SetContent():
                made.set_data(operation.path, operation.content, operation.version)
            case Delete():
                made.delete(operation.path, operation.version)
            case Check():
                made.check(operation.path, operation.version)
    return made.operations


@pytest.mark.parametrize("acl", [None, OWN])
@pytest.mark.parametrize("hosts", ["z:1", "z:1/", "z:1/a/b"])
def test_a_transaction_is_the_one_that_kazoo_would_make(hosts: str, acl: list[ACL] | None) -> None:
    """In `transaction`, exchange the flags, leave out the chroot, or give each new node open rights."""
    client = KazooClient(hosts)
    operations: list[Operation] = [
        Check("/"),
        Check("/o", 7),
        *(Create("/n", b"1", ephemeral=flag % 2 > 0, sequence=flag // 2 > 0) for flag in range(4)),
        SetContent("/s/t", b"2", 3),
        Delete("/d", 0),
    ]
    made: Any = transaction(client, operations, lambda _path: acl)
    wanted: Any = Transaction(by_kazoo(client, operations, acl))
    assert made.serialize() == wanted.serialize()
