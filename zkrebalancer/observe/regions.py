"""Reads a group's consistent region from ZooKeeper, for operators."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from zkrebalancer.observe.obstacles import Obstacle
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import ABSENT, Content, Get
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.region import documents
from zkrebalancer.region.documents import Order, Settings
from zkrebalancer.runtime.zk import BlockingZk

READ = "READ"  # the right, as obstacles name it


@dataclass(frozen=True, slots=True)
class RegionReport:
    """A region: its settings, and the leader's last order."""

    settings: Settings
    order: Order
    hidden: str | None = None  # a node of a member of the group that the leader may not read: no round completes

    @property
    def state(self) -> str:
        """`flows`, `reset-pending`, `resetting`, or `checkpointing`."""
        order = self.order
        if order.is_resetting:
            return "resetting"
        if order.pending is not None:
            return "reset-pending"
        return "flows" if order.open is None else "checkpointing"

    def document(self) -> dict[str, object]:
        """Return the region as JSON."""
        order = self.order
        return {
            "name": self.settings.name,
            "recovery": self.settings.recovery,
            "every_s": self.settings.every_ms / 1_000,
            "reset_s": self.settings.reset_ms / 1_000,
            "state": self.state,
            "members": sorted(order.members),
            "leaving": sorted(order.leaving),
            "complete_checkpoint": order.complete,
            "last_reset": order.reset or None,
            "pending_reset": order.pending,
            "open_round": order.open.id if order.open is not None else None,
            "hidden": self.hidden,
        }

    def text(self) -> str:
        """Return the region as one line."""
        order = self.order
        last = "no checkpoint is complete" if order.complete is None else f"checkpoint {order.complete} is complete"
        why = f" ({order.pending})" if order.pending is not None else ""
        members = f"{len(order.members)} member{'' if len(order.members) == 1 else 's'}"
        about = f"recovery {self.settings.recovery}, {last}"
        times = f"every_s {self.settings.every_ms / 1_000:g}, reset_s {self.settings.reset_ms / 1_000:g}"
        waits = "" if self.hidden is None else f"; no checkpoint or reset completes until {self.hidden} may be read"
        return f"region {self.settings.name}: {self.state}{why}, {members}, {about}, {times}{waits}"

    def with_obstacles(self, group: str, obstacles: Iterable[Obstacle]) -> RegionReport:
        """Return the region with the causes of its wait; in a forced one, holders are recorded in Kafka."""
        places = f"{paths.owners(group)}/", f"{paths.channel(group)}/"
        refused = (one.path for one in obstacles if one.path is not None and one.right == READ)
        hidden = next((path for path in refused if path.startswith(places)), None)
        return self if self.settings.recovery == "forced" else replace(self, hidden=hidden)


def read_region(zk: BlockingZk, group: str) -> RegionReport | None:
    """Return a group's region, None if it has none.

    Raises:
        NodeContentError: one of its nodes is foreign.
        ZooKeeperRefusedError: one of its nodes may not be read.

    """
    settings, order = zk.perform_all([Get(paths.region(group)), Get(paths.region(group, "order"))], ABSENT)
    if not isinstance(settings, Content) or not settings.content:
        return None
    try:
        known = documents.decode_settings(settings.content)
        return RegionReport(known, documents.decode_order(order.content) if isinstance(order, Content) else Order())
    except NodeContentError as error:
        raise NodeContentError(f"{paths.region(group)}: {error}") from None
