"""Checks that a member's login may make or use the region's nodes; otherwise, the error names the remedy."""

from __future__ import annotations

from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Refusal, Refused, Reply
from zkrebalancer.protocol.errors import ZooKeeperRefusedError

_ABOVE = frozenset({paths.CONSUMERS, paths.GROUPS})  # of all groups: a member need not read them


def require_permitted(group: str, path: str, reply: Reply) -> None:
    """Raise ZooKeeperRefusedError unless the node that this login may not make exists; `reply`: to `Get`."""
    refusal = reply.refusal if isinstance(reply, Refused) else None
    if refusal is Refusal.NO_NODE or (refusal is Refusal.NO_AUTH and path not in _ABOVE):
        what = f"{path} is missing, or this login has no right to it"
        raise ZooKeeperRefusedError(f"{what}; grant it by `zkrebalancer security init --group {group}=…`", path, None)
