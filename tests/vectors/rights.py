"""Who may do what at each node of a secured tree.

`python -m tests.vectors.rights` writes `rights.txt` anew, to be read as a difference before it is committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from zkrebalancer.operations.secure_tree import OWN
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.rights import Principals, rights_of

FILE = Path(__file__).with_suffix(".txt")
WHO = Principals(
    ("sasl:coordinator",),
    ("sasl:operator",),
    ("sasl:gateway",),
    ("sasl:broker",),
    groups={"orders": ("sasl:orders",), "x": ("sasl:x",)},
)
ABOVE = [
    paths.CONSUMERS,
    paths.GROUPS,
    paths.COORDINATOR,
    paths.COORDINATOR_EPOCH,
    paths.SECURITY,
    paths.SERVED,
    paths.SHARDS,
    f"{paths.SHARDS}/hosts",
    f"{paths.SHARDS}/hosts/1-2",
    f"{paths.SHARDS}/0",
    f"{paths.SHARDS}/0/coordinator",
    f"{paths.SHARDS}/0/coordinator_epoch",
    f"{paths.SHARDS}/0/coordinator_obstacles",
    paths.BROKER_TOPICS,
    paths.topic("t"),
    "/brokers/ids/1",
    "/elsewhere",
]
GROUP = paths.group("orders")
MADE = [
    paths.ids("orders", "c"),
    paths.owners("orders", "c"),
    paths.channel("orders", "c"),
    f"{paths.channel('orders', 'c')}/command-0000000001",
    paths.given("orders", "c"),
    paths.evicted("orders", "c"),
    paths.static("orders", "i"),
    paths.generation("orders"),
    paths.offsets("orders", "t", 0),
    paths.weights("orders"),
    paths.deleted_offsets("orders", "0"),
    paths.incarnations("orders", "t"),
    paths.lives("orders", "t"),
    *(paths.region("orders", *below) for below in ((), ("order",), ("merged", "3.0"), ("members", "m"))),
    *(paths.region("orders", kind) for kind in paths.REGION_CHILDREN),
    *(paths.region("orders", *below) for below in (("contributions", "3"), ("contributions", "3/m.0"))),
    *(paths.region("orders", *below) for below in (("requests", "reset-1"), ("initial", "t"), ("initial", "t/0"))),
]
BELOW = [
    *(f"{GROUP}/{kind}" for kind in (*paths.GROUP_CHILDREN, "given", "incarnations", "history")),
    *MADE,
    paths.quarantine("orders", "c-command-0000000001"),
    f"{GROUP}/offsets/t",
    f"{GROUP}/stranger",
    f"{GROUP}/stranger/below",
]


def lines() -> Iterator[str]:
    """Yield a line for each node."""
    for path in [*ABOVE, GROUP, *BELOW, paths.group("nobody's")]:
        rights = rights_of(path, WHO, OWN)
        shown = "left alone" if rights is None else ", ".join(f"{who} {letters}" for who, letters in rights.items())
        yield f"{path}: {shown}"


if __name__ == "__main__":
    FILE.write_text("".join(f"{line}\n" for line in lines()))
