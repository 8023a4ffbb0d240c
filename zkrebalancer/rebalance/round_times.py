"""Since when the rounds of a consistent region count, under one leadership."""

from __future__ import annotations

from dataclasses import dataclass

from zkrebalancer.region.documents import Order, Round
from zkrebalancer.region.limits import read_again_us


@dataclass(slots=True)
class RoundTimes:
    """Since when the present order counts, and when its open round was ordered."""

    since_us: int = 0
    opened_us: int = 0  # 0: another leader has ordered it, or parts of its merge may be stored
    knows_last: bool = False  # a checkpoint was complete under this leadership, or there was nothing before it
    last_void: str = ""  # why the last checkpoint was void
    is_read_anew: bool = False  # the group was read anew, and has not been at rest since
    _of: tuple[int, Round | None] | None = None  # the order's id and open round
    _generation: int = -1  # the group's when that round was ordered

    def begin(self, *, is_busy: bool) -> None:
        """Note that the group is read anew, in the middle of an order if `is_busy`."""
        self.is_read_anew = True
        if is_busy:
            self.opened_us = 0

    def read(self, order: Order, now_us: int, reset_ms: int) -> None:
        """Note the order that was read: if it was known, the time goes on."""
        of = order.id, order.open
        if of != self._of:
            self._of, self.since_us, self.opened_us, self.last_void = of, now_us, 0, ""
            self.knows_last = order == Order()
        elif order.open is not None:
            self.since_us = read_again_us(self.since_us, now_us, reset_ms)

    def checkpoint_ended(self, void: str) -> None:
        """Note the end of a checkpoint, and why it was void; "": it is complete."""
        self.last_void = void
        self.knows_last = self.knows_last or (not void and self.opened_us != 0)

    def changed(self, order: Order, now_us: int, generation: int) -> None:
        """Note the order with which a round has begun or ended."""
        self._of, self.since_us, self._generation = (order.id, order.open), now_us, generation
        self.opened_us = now_us if order.open is not None else 0

    def has_moved(self, generation: int) -> bool:
        """Whether a rebalance has sent commands since the open round was ordered."""
        return self.opened_us != 0 and generation != self._generation
