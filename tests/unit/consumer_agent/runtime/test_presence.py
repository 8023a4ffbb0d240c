"""How long the application has not polled."""

from __future__ import annotations

from consumer_agent.runtime.presence import Presence


def test_the_longest_absence_is_remembered_after_another_subscription() -> None:
    """In `Presence.count_on`, do nothing."""
    now_ms = 0
    former = Presence(lambda: now_ms)
    former.go()
    now_ms = 700
    former.come()
    presence = Presence(lambda: now_ms)
    presence.count_on(former)
    assert presence.times_ms() == (0, 700)
