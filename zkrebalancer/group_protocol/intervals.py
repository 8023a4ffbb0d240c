"""How often members of KIP-848 groups report while something is pending, of all groups of a gateway together."""

from __future__ import annotations

from zkrebalancer.group_protocol.settings import GroupProtocolSettings

# A heartbeat takes 45 microseconds of a core, so these take a tenth of it. The rest is left for what they wait for:
# with 5,000 a second, a thousand members that joined at once were no sooner ready.
MAX_URGENT_REPORTS_PER_S = 2_000


class Intervals:
    """The groups in which something is pending, with how many members each of them has."""

    def __init__(self, settings: GroupProtocolSettings) -> None:
        """Start with none."""
        self._settings = settings
        self._members: dict[str, int] = {}  # group -> its members; groups without members are not in it
        self._total = 0

    def interval_ms(self, group_id: str, members: int, *, is_urgent: bool) -> int:
        """Return after how many milliseconds a member of a group reports again.

        The more members wait, of this group and of others, the longer: their reports must not take the time in which
        they could be answered.
        """
        self._note(group_id, members if is_urgent else 0)
        usual_ms = self._settings.consumer_heartbeat_interval_ms
        shortest_ms = self._total * 1_000 // MAX_URGENT_REPORTS_PER_S
        urgent_ms = max(self._settings.consumer_urgent_heartbeat_interval_ms, shortest_ms)
        return min(usual_ms, urgent_ms) if is_urgent else usual_ms

    def forget(self, group_id: str) -> None:
        """Forget a group that has no members here."""
        self._note(group_id, 0)

    def _note(self, group_id: str, members: int) -> None:
        self._total += members - self._members.pop(group_id, 0)
        if members:
            self._members[group_id] = members
