"""Who is where, as clients of one gateway see it. Pure.

A broker is at this gateway, under a port of its own; every gateway is one more node, the coordinator of its groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

VIRTUAL_NODE = 1_000_000  # plus the number of a gateway; brokers have lower ids
MAX_SLOTS = 100
MAX_GATEWAYS = 100


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster and where clients reach it."""

    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Addresses:
    """What one gateway tells its clients; `slots`: broker id -> slot, `gateways`: number -> (host, port)."""

    host: str
    port: int
    slots: Mapping[int, int]
    gateways: Mapping[int, tuple[str, int]]

    def broker_port(self, slot: int) -> int:
        """Return the port of a broker's slot."""
        return self.port + 1 + slot

    def broker(self, node_id: int) -> Node | None:
        """Return where a broker is reached; None if it has no slot."""
        slot = self.slots.get(node_id)
        return None if slot is None else Node(node_id, self.host, self.broker_port(slot))

    def gateway(self, number: int) -> Node | None:
        """Return where a gateway is reached; None if it is not alive."""
        found = self.gateways.get(number)
        return None if found is None else Node(VIRTUAL_NODE + number, *found)

    def all_gateways(self) -> list[Node]:
        """Return the gateways that are alive."""
        return [Node(VIRTUAL_NODE + number, *where) for number, where in sorted(self.gateways.items())]
