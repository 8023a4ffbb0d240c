"""How large a transaction is for ZooKeeper: every path and content of it, as the client serialises them. Pure.

A server drops the connection at a request that is larger than its `jute.maxbuffer`, and the client learns nothing but
that the connection broke. So every transaction is measured before it is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zkrebalancer.protocol.calls import Create, Operation, SetContent

JUTE_MAXBUFFER = 0xFFFFF  # ZooKeeper's default: the largest request that a server reads
MAX_REQUEST_BYTES = 1_000_000  # leaves room for what servers add when they log a transaction and tell each other
MIN_REQUEST_BYTES = 100_000  # one command, and what goes with it

_LENGTH_BYTES = 4  # before each string, buffer and list
_REQUEST_BYTES = 8 + 9  # the request's header, and the mark of a transaction's end
_OPERATION_BYTES = 9 + _LENGTH_BYTES + 4  # its header, the path's length, the version or the flags
_ACL_BYTES = 4 + 4 + _LENGTH_BYTES + len("world") + _LENGTH_BYTES + len("anyone")


@dataclass(frozen=True, slots=True)
class RequestLimit:
    """The largest request to send, in bytes; `chroot_bytes` is the length of what the client puts before each path."""

    max_bytes: int = MAX_REQUEST_BYTES
    chroot_bytes: int = 0

    def size(self, operations: Iterable[Operation]) -> int:
        """Return how many bytes a transaction takes as a request."""
        return _REQUEST_BYTES + sum(map(self.operation_size, operations))

    def operation_size(self, operation: Operation) -> int:
        """Return how many bytes an operation adds to its transaction."""
        size = _OPERATION_BYTES + self.chroot_bytes + len(operation.path.encode())
        if isinstance(operation, Create | SetContent):
            size += _LENGTH_BYTES + len(operation.content)
        return size + _ACL_BYTES if isinstance(operation, Create) else size

    def fits(self, operations: Iterable[Operation]) -> bool:
        """Whether these operations may be sent as one transaction."""
        return self.size(operations) <= self.max_bytes

    def fitting(self, operations: Sequence[Operation], beside: Iterable[Operation] = ()) -> int:
        """Return how many of the operations, in order, fit into one transaction with those `beside` them.

        At least one, if there is one: an operation that is too large by itself is refused when it is sent.
        """
        left = self.max_bytes - self.size(beside)
        for count, operation in enumerate(operations):
            left -= self.operation_size(operation)
            if left < 0 and count:
                return count
        return len(operations)


DEFAULT_LIMIT = RequestLimit()
