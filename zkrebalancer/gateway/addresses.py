"""The addresses of brokers and gateways, as clients of one gateway see them. Pure.

Each broker has a port of this gateway; each gateway is one more node, the coordinator of its groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

VIRTUAL_NODE = 1_000_000  # plus the number of a gateway; brokers have lower ids
MAX_SLOTS = 100
MAX_GATEWAYS = 100


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster, and the address at which clients reach it."""

    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses that one gateway tells its clients; `slots`: broker id -> slot, `gateways`: number -> address."""

    host: str
    port: int
    slots: Mapping[int, int]
    gateways: Mapping[int, tuple[str, int]]

    def broker_port(self, slot: int) -> int:
        """Return the port of a broker's slot."""
        return self.port + 1 + slot

    def broker_at(self, slot: int) -> int | None:
        """Return the broker that has a slot now."""
        return next((broker_id for broker_id, its in self.slots.items() if its == slot), None)

    def broker(self, node_id: int) -> Node | None:
        """Return a broker as clients see it; None if it has no slot."""
        slot = self.slots.get(node_id)
        return None if slot is None else Node(node_id, self.host, self.broker_port(slot))

    def gateway(self, number: int) -> Node | None:
        """Return a gateway as clients see it; None if it is not alive."""
        found = self.gateways.get(number)
        return None if found is None else Node(VIRTUAL_NODE + number, *found)

    def all_gateways(self) -> list[Node]:
        """Return the live gateways."""
        return [Node(VIRTUAL_NODE + number, *where) for number, where in sorted(self.gateways.items())]
