"""The size of a transaction as a ZooKeeper request, with all its paths and contents. Pure.

A server closes the connection without an error if a request exceeds its `jute.maxbuffer`. Hence every
transaction is measured before it is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zkrebalancer.protocol.calls import Create, Operation, SetContent

JUTE_MAXBUFFER = 0xFFFFF  # ZooKeeper's default: the largest request that a server reads
MAX_REQUEST_BYTES = 1_000_000  # leaves room for the bytes that servers add to a transaction among themselves
MIN_REQUEST_BYTES = 100_000  # enough for one command with the checks of its transaction

_LENGTH_BYTES = 4  # before each string, buffer and list
_REQUEST_BYTES = 8 + 9  # the request's header and the end mark of the transaction
_OPERATION_BYTES = 9 + _LENGTH_BYTES + 4  # the operation's header, the length of its path, its version or flags
OPEN_ACL_BYTES = 4 + 4 + _LENGTH_BYTES + len("world") + _LENGTH_BYTES + len("anyone")


@dataclass(frozen=True, slots=True)
class RequestLimit:
    """The largest request to send, in bytes.

    `chroot_bytes` is the length of the chroot, a prefix of every path; `acl_bytes` that of a new node's rights.
    """

    max_bytes: int = MAX_REQUEST_BYTES
    chroot_bytes: int = 0
    acl_bytes: int = OPEN_ACL_BYTES

    def size(self, operations: Iterable[Operation]) -> int:
        """Return the size of a transaction as a request, in bytes."""
        return _REQUEST_BYTES + sum(map(self.operation_size, operations))

    def operation_size(self, operation: Operation) -> int:
        """Return the bytes that an operation adds to its transaction."""
        size = _OPERATION_BYTES + self.chroot_bytes + len(operation.path.encode())
        if isinstance(operation, Create | SetContent):
            size += _LENGTH_BYTES + len(operation.content)
        return size + self.acl_bytes if isinstance(operation, Create) else size

    def fits(self, operations: Iterable[Operation]) -> bool:
        """Whether these operations fit into one transaction."""
        return self.size(operations) <= self.max_bytes

    def fitting(self, operations: Sequence[Operation], beside: Iterable[Operation] = ()) -> int:
        """Return how many of the first operations fit into one transaction together with those in `beside`.

        At least one, unless there are none: an operation that is too large by itself fails when it is sent.
        """
        left = self.max_bytes - self.size(beside)
        for count, operation in enumerate(operations):
            left -= self.operation_size(operation)
            if left < 0 and count:
                return count
        return len(operations)


DEFAULT_LIMIT = RequestLimit()
