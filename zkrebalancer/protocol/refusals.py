"""Turns refusals that a caller does not expect into one error, with the path and the missing right."""

from __future__ import annotations

from collections.abc import Collection

from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import (
    Call,
    Check,
    Create,
    Delete,
    Multi,
    Operation,
    Refusal,
    Refused,
    Reply,
    RightsCall,
    SetContent,
    SetRights,
)
from zkrebalancer.protocol.errors import ZooKeeperRefusedError

_RIGHTS: dict[type[Operation | Call | RightsCall], str] = {
    Create: "CREATE of its parent",
    SetContent: "WRITE",
    Delete: "DELETE of its parent",
    Check: "READ",
    SetRights: "ADMIN",
}
_ADVICE = {
    Refusal.NO_AUTH: "grant it (`setAcl` in ZooKeeper's shell)",
    Refusal.QUOTA_EXCEEDED: "raise the quota (`setquota` in ZooKeeper's shell)",
    Refusal.MARSHALLING: "compare jute.maxbuffer of the servers with the size of the node",
    Refusal.UNIMPLEMENTED: "check the version of the servers",
}


def right_of(call: Operation | Call | RightsCall) -> str:
    """Return the right that a call needs at its path, as access control lists name it."""
    return _RIGHTS.get(type(call), "READ")


def refused_text(call: Call | RightsCall, reply: Refused) -> str:
    """Return one line: the path, the reason, and the missing right, if any."""
    refused = call.operations[reply.index or 0] if isinstance(call, Multi) else call
    missing = f", right {right_of(refused)} is missing" if reply.refusal is Refusal.NO_AUTH else ""
    return f"ZooKeeper refuses {refused.path}: {reply.refusal.value}{missing}"


def require_expected(call: Call | RightsCall, reply: Reply, expected: Collection[Refusal]) -> None:
    """Raise ZooKeeperRefusedError if the reply is a refusal that is not one of `expected`."""
    if not isinstance(reply, Refused) or reply.refusal in expected:
        return
    refused = call.operations[reply.index or 0] if isinstance(call, Multi) else call
    advice = _ADVICE.get(reply.refusal, "another program may have changed it; try again")
    right = right_of(refused) if reply.refusal is Refusal.NO_AUTH else None
    raise ZooKeeperRefusedError(f"{refused_text(call, reply)}; {advice}", refused.path, right)


def known_by(call: Operation | Call | RightsCall) -> tuple[str, str]:
    """Return the path of a call, and the right that it needs there; `*` for a name that ZooKeeper completes."""
    is_completed = isinstance(call, Create) and (call.sequence or call.path.endswith(f"/{paths.PROBE}"))
    path = "" if isinstance(call, Multi) else call.path
    return (path.rpartition("/")[0] + "/*" if is_completed else path), right_of(call)
