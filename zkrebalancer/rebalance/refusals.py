"""Calls that ZooKeeper refuses: logged once for each path and right, until they are allowed or no longer tried."""

from __future__ import annotations

from itertools import islice

from zkrebalancer.protocol.calls import Call, Get, ListChildren, Multi, Operation, Refusal, Sync
from zkrebalancer.protocol.refusals import known_by

Refusable = Operation | Get | ListChildren

REFUSED_US = 120_000_000  # a call that was not refused for this long is no longer tried
MAX_FORGOTTEN = 100  # refusals that are forgotten at once
MAX_REFUSED = 10_000  # logged paths to remember


class Refusals:
    """The refusals that were logged.

    Beyond MAX_REFUSED none is, so nobody is shown why the groups of the others stand still.
    """

    def __init__(self) -> None:
        """Start without refusals."""
        self.known: dict[tuple[str, str], tuple[Refusal, int]] = {}  # (path, right) -> refusal, and its last time
        self._are_too_many = False  # and that was logged

    def note(self, refused: Refusable, refusal: Refusal, now_us: int) -> str | None:
        """Note a refusal; return the line to log, with the missing right, unless it was logged before."""
        key = path, right = known_by(refused)
        before = self.known.pop(key, None)
        if before is None and len(self.known) >= MAX_REFUSED:  # to forget another one would log all again and again
            are_too_many, self._are_too_many = self._are_too_many, True
            more = f"ZooKeeper refuses more than {MAX_REFUSED} paths, such as {path}: no further ones are named"
            return None if are_too_many else more
        self._are_too_many = self._are_too_many and before is not None
        self.known[key] = refusal, now_us
        if before is not None and before[0] is refusal:
            return None
        missing = f" ({right})" if refusal is Refusal.NO_AUTH else ""
        return f"ZooKeeper refuses {path}: {refusal.value}{missing}; retried at growing intervals"

    def note_allowed(self, call: Call) -> list[str]:
        """Note that a call was allowed; return the lines to log."""
        calls: tuple[Operation | Call, ...] = call.operations if isinstance(call, Multi) else (call,)
        keys = [known_by(done) for done in calls if not isinstance(done, Multi | Sync)]
        return [f"ZooKeeper no longer refuses {key[0]}" for key in keys if self.known.pop(key, None) is not None]

    def forget(self, now_us: int) -> int | None:
        """Forget calls that are no longer tried, as their node or group is gone; return when to check again."""
        for key, (_refusal, at_us) in list(islice(self.known.items(), MAX_FORGOTTEN)):
            if now_us < at_us + REFUSED_US:
                return at_us + REFUSED_US
            del self.known[key]
        return now_us + 1 if self.known else None
