"""What the replies of ZooKeeper tell a member of a region."""

from __future__ import annotations

from zkrebalancer.protocol.calls import Content, Refusal, Refused, Reply
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.region import documents
from zkrebalancer.region.documents import Order


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
