"""How long records may be returned: until the lease ends, with or without a connection. Pure.

With `suspended_policy="continue"` nothing ends it but the end of the session.
"""

from __future__ import annotations

from consumer_agent.membership.effects import EffectQueue, EmitUntil

NEVER_MS = 0
FOREVER_MS = 2**63 - 1
RECONNECT_MS = 500  # a server that ended the session by force closed the connection, and says so by then


class Emission:
    """Tells the application's side until when it may return records.

    A session that runs out ends after its lease, whether or not there is a connection. One that is ended by force, as
    by a forked process, ends at once: the server closes its connection, and says why to who connects again. So nothing
    is returned for a moment after the connection broke.

    The rest of a lease counts only after a regular renewal. Servers tell the leader with its pings whom they heard of:
    if a process was suspended before its last renewal, and that renewal's server died with the connection, the leader
    may have heard of it so long ago that the session ends before the lease.
    """

    def __init__(self, effects: EffectQueue, *, ends_with_lease: bool) -> None:
        """Start without a lease; `ends_with_lease`: False if records are returned as long as the session may live."""
        self._effects = effects
        self._ends_with_lease = ends_with_lease
        self._until_ms = NEVER_MS
        self._heard_ms: int | None = None
        self._has_rest = False  # whether the leader of ZooKeeper's servers heard of the session shortly before
        self.is_over = False  # nothing is returned any more
        self.again_ms: int | None = None  # set for a moment after the connection broke

    def renew(self, sent_ms: int, lease_ms: int) -> None:
        """Return records for a lease from the moment when the renewal was sent."""
        self._has_rest = self._heard_ms is not None and sent_ms - self._heard_ms <= lease_ms // 2
        self._heard_ms = sent_ms
        self._emit_until(sent_ms + lease_ms if self._ends_with_lease else FOREVER_MS)

    def handle_suspended(self, now_ms: int) -> None:
        """Return nothing for a moment after the connection broke."""
        if self._ends_with_lease:
            self._effects.add(EmitUntil(NEVER_MS))
            self.again_ms = now_ms + RECONNECT_MS if self._has_rest else None

    def handle_connected(self, now_ms: int, *, is_shorter: bool) -> None:
        """Note that the leader has heard of the session; `is_shorter`: it may end before the rest of the lease."""
        self._heard_ms = now_ms
        if is_shorter and self._ends_with_lease:
            self._emit_until(NEVER_MS)

    def handle_tick(self, now_ms: int) -> None:
        """Return records for the rest of the lease when that moment is over."""
        if self.again_ms is not None and now_ms >= self.again_ms:
            self._emit_until(self._until_ms)

    def end(self) -> None:
        """Return nothing any more."""
        self.is_over = True
        self._effects.add(EmitUntil(NEVER_MS))

    def _emit_until(self, until_ms: int) -> None:
        self._until_ms, self.again_ms = until_ms, None
        if not self.is_over:
            self._effects.add(EmitUntil(until_ms))
