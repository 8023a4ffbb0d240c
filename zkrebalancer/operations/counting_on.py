"""Where the counters of a restored tree continue: above all that any life of its groups can have reached. Pure.

A backup does not know what came after it: plans, each of which counts one, and groups that were created again, which
count on from the id of a transaction. Both stay below the microseconds since 1970: no group is planned a million times
a second, and ids of transactions get there after 400,000 elections of ZooKeeper's leader. So counters continue from the
time of the restore. A file may have higher ones, for example because of a clock that was wrong: they grow by its age.
Thus every later restore, also of the same file, continues higher.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress

from zkrebalancer.operations.backup_file import Node
from zkrebalancer.protocol import cluster_nodes, paths
from zkrebalancer.protocol.errors import NodeContentError

GENERATION_STEP = 1_000_000  # at least: clocks may differ
COUNTER = re.compile(rf"{paths.GROUPS}/[^/]+/(generation|given)|{paths.SERVED}")


class CountingOn:
    """The counters of a file, as a restore writes them."""

    def __init__(self, nodes: Iterable[Node], taken_at_ms: int, now_ms: int) -> None:
        """`nodes` are those of the file, which was made at `taken_at_ms`."""
        self._now_us = 1_000 * max(now_ms, taken_at_ms)
        self._step = GENERATION_STEP + 1_000 * max(0, now_ms - taken_at_ms)
        known = (self.after(counter) for node in nodes if (counter := _counter(node)) is not None)
        highest = max((one for one in known if one <= cluster_nodes.MAX_COUNTER), default=0)
        self.served = Node(paths.SERVED, cluster_nodes.encode_counter(max(self._now_us, highest)))

    def after(self, counter: int) -> int:
        """Return where a counter continues."""
        return max(self._now_us, counter + self._step)

    def content(self, node: Node) -> bytes:
        """Return the content of a node of the file: another one only if it is a counter."""
        counter = _counter(node)
        return node.content if counter is None else cluster_nodes.encode_counter(self.after(counter))


def _counter(node: Node) -> int | None:
    """Return the number in a node with a counter; None: it is another node, or damaged."""
    if COUNTER.fullmatch(node.path):
        with suppress(NodeContentError):
            return cluster_nodes.decode_counter("counter", node.content)
    return None
