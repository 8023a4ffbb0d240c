"""What the replies of ZooKeeper tell a member of a region, and how many it awaits at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zkrebalancer.protocol.calls import Content, Refusal, Refused, Reply
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.region import documents
from zkrebalancer.region.documents import Order
from zkrebalancer.region.roles import T

MAX_AT_ONCE = 100  # nodes that are created or read at once


def order_in(reply: Reply) -> Order | None:
    """Return an order that was read, None if there is none, or if the leader has to make it anew."""
    if not isinstance(reply, Content):
        return None
    try:
        return documents.decode_order(reply.content)
    except NodeContentError:
        return None


def is_refused(reply: Reply, refusal: Refusal) -> bool:
    """Whether a call was refused for this reason."""
    return isinstance(reply, Refused) and reply.refusal is refusal


def portions(entries: Sequence[T]) -> Iterable[Sequence[T]]:
    """Yield the entries in portions whose nodes are created or read at once."""
    return (entries[at : at + MAX_AT_ONCE] for at in range(0, len(entries), MAX_AT_ONCE))
