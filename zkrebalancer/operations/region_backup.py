"""What a backup keeps of a consistent region's checkpoints: an order, and the merge that this order names.

On a running tree, a checkpoint may be complete between two readings, and the leader then deletes the former merge.
After a restore, no member could begin with an order whose merge is missing.
"""

from __future__ import annotations

from dataclasses import replace

from zkrebalancer.operations.backup_file import Node
from zkrebalancer.operations.nodes import names_below
from zkrebalancer.protocol import cluster_nodes
from zkrebalancer.protocol.calls import ABSENT, Content, Get
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.region import documents
from zkrebalancer.runtime.zk import BlockingZk

READ_APART = frozenset({"order", "merged"})  # of a region's children
MAX_TRIES = 100  # then somebody has deleted the merge, and what is there is kept


def checkpoint_nodes(zk: BlockingZk, region: str) -> list[Node]:
    """Return the order of the region at this path and the merge that it names, parents first.

    They belong together if all pieces of the merge are there: none changes before another order is written. If
    there is no order that can be read, all merges are kept, because the leader makes it anew from them.

    Raises:
        ZooKeeperRefusedError: one of them may not be read.

    """
    above = f"{region}/merged"
    for _ in range(MAX_TRIES):
        order = zk.perform(Get(f"{region}/order"), ABSENT)
        names = _named(order.content) if isinstance(order, Content) else None
        pieces = [f"{above}/{name}" for name in (names_below(zk, above) if names is None else names)]
        replies = zk.perform_all([Get(path) for path in pieces], ABSENT)
        found = zip(pieces, replies, strict=True)
        merge = [Node(path, reply.content) for path, reply in found if isinstance(reply, Content)]
        if len(merge) == len(pieces):
            break
    kept = [Node(f"{region}/order", order.content)] if isinstance(order, Content) else []
    return [*kept, Node(above, b""), *merge]


def _named(content: bytes) -> list[str] | None:
    """Return the names of the pieces that an order names, None if it cannot be read."""
    try:
        order = documents.decode_order(content)
    except NodeContentError:
        return None
    return [] if order.complete is None else [f"{order.complete}.{piece}" for piece in range(order.pieces)]


def portable(kind: str, content: bytes, *, adopt_topics: bool) -> bytes:
    """Return a node of a region for another tree: there it has other members, which begin with a reset.

    Raises NodeContentError.
    """

    def mark(known: str) -> str:
        return "" if adopt_topics else cluster_nodes.without_creation(known)

    if kind == "order":
        order = documents.decode_order(content)
        anew = replace(order, members={}, left={}, leaving=(), open=None, pending="restored from a backup")
        return documents.encode_order(anew)
    if kind.startswith("initial/"):
        initial = documents.decode_initial(content)
        return documents.encode_initial(replace(initial, incarnation=mark(initial.incarnation)))
    merge = documents.decode_merge(content)
    marks = {topic: mark(known) for topic, known in merge.incarnations.items()}
    return documents.encode_merge(replace(merge, incarnations=marks))
