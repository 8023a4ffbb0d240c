"""What kazoo's results mean as replies."""

from __future__ import annotations

import struct
from typing import Any, Protocol

from kazoo import exceptions

from zkrebalancer.protocol import calls
from zkrebalancer.protocol.calls import Call, Multi, Refusal, Refused, Reply, RightsCall
from zkrebalancer.runtime.zk_rights import from_acl

# An error of a later ZooKeeper is one, too: kazoo would raise another one in its place, and forget the call. kazoo has
# one table for the whole process, so this is also true of clients that an application has made itself.
exceptions.EXCEPTIONS.default_factory = lambda: exceptions.ZookeeperError

_REFUSALS: tuple[tuple[type[Exception], Refusal], ...] = (
    (exceptions.NoNodeError, Refusal.NO_NODE),
    (exceptions.NodeExistsError, Refusal.NODE_EXISTS),
    (exceptions.BadVersionError, Refusal.BAD_VERSION),
    (exceptions.NotEmptyError, Refusal.NOT_EMPTY),
    (exceptions.SessionExpiredError, Refusal.SESSION_EXPIRED),
    (exceptions.ConnectionLoss, Refusal.CONNECTION_LOST),
    (exceptions.OperationTimeoutError, Refusal.CONNECTION_LOST),
    (exceptions.SessionMovedError, Refusal.CONNECTION_LOST),
    (exceptions.NoAuthError, Refusal.NO_AUTH),
    (exceptions.QuotaExceededError, Refusal.QUOTA_EXCEEDED),
    (exceptions.MarshallingError, Refusal.MARSHALLING),
    (exceptions.UnimplementedError, Refusal.UNIMPLEMENTED),
    (exceptions.ZookeeperError, Refusal.NOT_ALLOWED),
    (RuntimeError, Refusal.CONNECTION_LOST),  # the reply was another call's: the connection is closed
)
# kazoo could not read the answer: a text in it, such as a name in an access control list, is not UTF-8, for instance.
_UNREADABLE = (ValueError, LookupError, TypeError, struct.error)
_ROLLED_BACK = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)


class Answer(Protocol):
    """The result of an asynchronous kazoo call."""

    exception: BaseException | None

    def get(self) -> Any:  # noqa: ANN401  # kazoo's results have a type per call
        """Return the value, or raise the exception."""


def read_answer(call: Call | RightsCall, result: Answer) -> Reply:
    """Convert kazoo's result to a reply; raises errors that are neither ZooKeeper's nor of a text that it sends."""
    if isinstance(result.exception, _UNREADABLE):  # of a write, the outcome is unknown
        return Refused(Refusal.CONNECTION_LOST if isinstance(call, Multi | calls.SetRights) else Refusal.MARSHALLING)
    if result.exception is not None:
        return Refused(refusal_of(result.exception))
    value = result.get()
    if isinstance(call, calls.Get):
        content, stat = value  # None: without any, as clients in Java make nodes, and Kafka `/consumers`
        # A server counts the children that were created, and shows those that were created or deleted.
        created = (stat.cversion + stat.numChildren) // 2
        known = calls.Stat(stat.version, stat.czxid, stat.mzxid, stat.ephemeralOwner, stat.ctime, created)
        return calls.Content(content or b"", known)
    if isinstance(call, calls.ListChildren):
        return calls.Children(tuple(sorted(value)))
    if isinstance(call, calls.GetRights):
        acl, stat = value
        return calls.NodeRights(from_acl(acl), stat.aversion)
    return _read_results(value) if isinstance(call, Multi) else calls.Done()


def _read_results(value: list[Any]) -> Reply:
    """Return the outcome of a transaction."""
    for index, entry in enumerate(value):
        if isinstance(entry, Exception) and not isinstance(entry, _ROLLED_BACK):
            return Refused(refusal_of(entry), index)
    return calls.Done(tuple(_operation_result(entry) for entry in value))


def _operation_result(entry: Any) -> str | int | None:  # noqa: ANN401  # kazoo returns a path, a stat or True
    if isinstance(entry, str):
        return entry
    return entry.version if hasattr(entry, "version") else None


def refusal_of(error: BaseException) -> Refusal:
    """Return what an error of kazoo means; raises errors that are not ZooKeeper's."""
    for kind, refusal in _REFUSALS:
        if isinstance(error, kind):
            return refusal
    raise error
