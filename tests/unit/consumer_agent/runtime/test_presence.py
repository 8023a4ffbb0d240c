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
    assert presence.metrics() == {"since_poll_ms": 0, "longest_since_poll_ms": 700, "loop_idle_ms": 0}


def test_how_long_the_machine_thread_has_not_moved_is_known_while_it_runs() -> None:
    presence = Presence(lambda: 9_000)
    presence.looped_ms = 2_000
    assert presence.metrics()["loop_idle_ms"] == 7_000
    presence.looped_ms = None
    assert presence.metrics()["loop_idle_ms"] == 0


def test_a_thread_that_hangs_in_a_poll_is_away_until_it_returns() -> None:
    """In `Presence.away_since_ms`, leave it out: its partitions stay with it, and nobody reads them."""
    now_ms, stuck = 0, [True, True]
    presence = Presence(lambda: now_ms)
    presence.come()
    now_ms = 700
    presence.begin_hang(lambda: stuck[0])
    now_ms = 900
    presence.begin_hang(lambda: stuck[1])
    assert (presence.away_since_ms, presence.is_working) == (700, True)
    assert presence.metrics()["since_poll_ms"] == 200
    stuck[0] = False
    assert (presence.away_since_ms, presence.is_working) == (900, True)
    stuck[1] = False
    assert (presence.away_since_ms, presence.is_working) == (None, False)
