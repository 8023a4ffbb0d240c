"""Log lines for operators: who leads, who joined and left, what was planned and how it ended. Pure.

A failover of 10,000 groups would write 30,000 lines at once. The number of lines is therefore limited: a burst, then a
few per second. A later line counts those that were left out; failures and leadership are left out last.
"""

from __future__ import annotations

from collections import Counter

from zkrebalancer.rebalance.effects import Emit

LINES_PER_S = 20.0
MAX_BURST = 200
RESERVED = 50  # of the burst, for what matters more than the rest
SUMMARY_INTERVAL_US = 10_000_000  # between two lines that count what was left out
MAX_NAMES_SHOWN = 5  # of late members, in one line
_LEFT = {
    "closed": "closed",
    "expired": "its session ended",
    "evicted": "evicted",
    "lost": "it lost its session",
}
_PLAIN = {
    "group_deleted": "of operators",
    "leader_elected": "leadership",
    "leader_resigned": "leadership",
    "member_joined": "joined",
    "member_left": "left",
    "operator_changed": "of operators",
    "rebalance_planned": "planned",
    "rebalance_finished": "ended",
}


class OperatorLog:
    """Makes log lines of telemetry events, at a limited rate."""

    def __init__(self) -> None:
        """Start with a whole burst."""
        self._tokens = float(MAX_BURST)
        self._at_us: int | None = None
        self._left_out: Counter[str] = Counter()
        self._summary_us = 0  # no summary before

    def lines(self, effect: Emit, cause: str, now_us: int) -> list[str]:
        """Return the lines to log for an event, at most one; `cause`: of its rebalance."""
        name = _PLAIN.get(effect.kind)
        if name is None:
            return []
        self._refill(now_us)
        matters = name in {"leadership", "of operators"} or bool(effect.fields.get("late_members")) or _failed(effect)
        if self._tokens < 1 + (0 if matters else RESERVED):
            self._left_out[name] += 1
            self._summary_us = self._summary_us or now_us + SUMMARY_INTERVAL_US
            return []
        self._tokens -= 1
        return [_line(effect, cause)]

    def summary(self, now_us: int) -> list[str]:
        """Return a line that counts what was left out, at most one in SUMMARY_INTERVAL_US."""
        if not self._left_out or now_us < self._summary_us:
            return []
        counts = ", ".join(f"{count} {name}" for name, count in sorted(self._left_out.items()))
        self._left_out.clear()
        self._summary_us = 0
        return [f"too many lines, left out: {counts}; `groups describe` and /metrics have the present state"]

    def _refill(self, now_us: int) -> None:
        if self._at_us is not None:
            gained = (now_us - self._at_us) / 1e6 * LINES_PER_S
            self._tokens = min(float(MAX_BURST), self._tokens + gained)
        self._at_us = now_us


def _failed(effect: Emit) -> bool:
    return effect.fields.get("outcome") == "failed"


def _line(effect: Emit, cause: str) -> str:
    known = effect.fields
    shard = f" shard {known['shard']}" if "shard" in known else ""
    if effect.kind == "leader_elected":
        return f"coordinator {known['brokerid']} leads{shard}, epoch {known['epoch']}"
    if effect.kind == "leader_resigned":
        return f"coordinator {known['brokerid']} no longer leads{shard}, epoch {known['epoch']}: {known['reason']}"
    return f"group {effect.group}: {_of_group(effect, cause)}"


def _of_group(effect: Emit, cause: str) -> str:
    known = effect.fields
    if effect.kind == "operator_changed":
        return f"{known['by']} {known['what']}"
    if effect.kind == "group_deleted":
        return f"{known['by']} deleted the group" if "by" in known else "deleted"
    if effect.kind == "member_joined":
        return f"{known['member']} joined"
    if effect.kind == "member_left":
        reason = str(known["reason"])
        return f"{known['member']} left: {_LEFT.get(reason, reason)}"
    if effect.kind == "rebalance_planned":
        return (
            f"generation {effect.generation} planned because of {cause}:"
            f" {known['moved_count']} of {known['partition_count']} partitions move,"
            f" {known['member_count']} members, {known['mode']}"
        )
    late = known["late_members"]
    return (
        f"generation {effect.generation} {known['outcome']} after {_ms(known['settled_us'])}:"
        f" {known['moved_count']} partitions moved, longest pause {_ms(known['pause_us_max'])}"
        + (f", late: {_some(late)}" if isinstance(late, list) and late else "")
    )


def _ms(microseconds: object) -> str:
    return f"{int(str(microseconds)) / 1_000:.1f} ms"


def _some(names: list[str]) -> str:
    more = [f"{len(names) - MAX_NAMES_SHOWN} more"] if len(names) > MAX_NAMES_SHOWN else []
    return ", ".join([*names[:MAX_NAMES_SHOWN], *more])
