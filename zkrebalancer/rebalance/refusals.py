"""What ZooKeeper refuses: logged once for each path and right, until it is allowed or nobody tries it any more."""

from __future__ import annotations

from itertools import islice

from zkrebalancer.protocol.calls import Call, Get, ListChildren, Multi, Operation, Refusal, Sync
from zkrebalancer.protocol.refusals import known_by

Refusable = Operation | Get | ListChildren

REFUSED_US = 120_000_000  # what was not refused again for so long is not tried any more
MAX_FORGOTTEN = 100  # refusals that are forgotten at once
MAX_REFUSED = 10_000  # paths of which it is known that they were logged


class Refusals:
    """The refusals that were logged."""

    def __init__(self) -> None:
        """Know none."""
        self.known: dict[tuple[str, str], tuple[Refusal, int]] = {}  # (path, right) -> refusal, and its last time

    def note(self, refused: Refusable, refusal: Refusal, now_us: int) -> str | None:
        """Note a refusal; return the line to log, with the right that is missing, unless that was logged."""
        key = path, right = known_by(refused)
        before = self.known.pop(key, None)
        if len(self.known) >= MAX_REFUSED:
            del self.known[next(iter(self.known))]  # is logged once more if it is refused again
        self.known[key] = refusal, now_us
        if before is not None and before[0] is refusal:
            return None
        missing = f" ({right})" if refusal is Refusal.NO_AUTH else ""
        return f"ZooKeeper refuses {path}: {refusal.value}{missing}; retried at growing intervals"

    def note_allowed(self, call: Call) -> list[str]:
        """Note that a call was not refused; return the lines to log."""
        calls: tuple[Operation | Call, ...] = call.operations if isinstance(call, Multi) else (call,)
        keys = [known_by(done) for done in calls if not isinstance(done, Multi | Sync)]
        return [f"ZooKeeper no longer refuses {key[0]}" for key in keys if self.known.pop(key, None) is not None]

    def forget(self, now_us: int) -> int | None:
        """Forget what nobody tries any more, as its node or its group is gone; return when to look again, if at all."""
        for key, (_refusal, at_us) in list(islice(self.known.items(), MAX_FORGOTTEN)):
            if now_us < at_us + REFUSED_US:
                return at_us + REFUSED_US
            del self.known[key]
        return now_us + 1 if self.known else None
