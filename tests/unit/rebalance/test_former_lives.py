"""How long a mark of a group's former life stays."""

from __future__ import annotations

import pytest

from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Children, Create, Delete, Done, Multi, Refusal, Refused, Reply
from zkrebalancer.rebalance.effects import Now, Request
from zkrebalancer.rebalance.former_lives import FORGOTTEN_US, FormerLives
from zkrebalancer.rebalance.leases import lease_wait_us
from zkrebalancer.rebalance.scheduler import Scheduler
from zkrebalancer.rebalance.view import GroupView


def removed_at_us(scheduler: Scheduler, until_us: int) -> dict[str, int]:
    """Let time pass; return which marks were removed, and when."""
    removed: dict[str, int] = {}
    while (at_us := scheduler.next_deadline_us()) is not None and at_us <= until_us:
        scheduler.now = Now(at_us, 0)
        scheduler.run_next_due()
        for effect in scheduler.take_effects():
            if isinstance(effect, Request) and isinstance(effect.call, Multi):
                removed |= {op.path: at_us for op in effect.call.operations if isinstance(op, Delete)}
                scheduler.answer(effect.call_id, Done((None, None)))
    return removed


def test_a_group_that_came_back_and_went_again_is_remembered_from_its_second_end_on() -> None:
    """In `FormerLives.keep`, leave those that are there among those that are gone."""
    scheduler = Scheduler()
    lives = FormerLives(scheduler)
    lives.read()
    scheduler.answer(1, Children(("once", "twice")))
    lives.keep(())
    scheduler.now = Now(FORGOTTEN_US // 2, 0)
    lives.keep(("twice",))
    lives.keep(())
    assert removed_at_us(scheduler, 3 * FORGOTTEN_US) == {
        paths.served("once"): FORGOTTEN_US,
        paths.served("twice"): FORGOTTEN_US + FORGOTTEN_US // 2,
    }


def test_a_group_that_came_back_keeps_its_mark() -> None:
    """In `FormerLives._remove_next`, expect a group whenever the timer rings."""
    scheduler = Scheduler()
    lives = FormerLives(scheduler)
    lives.read()
    scheduler.answer(1, Children(("back",)))
    lives.keep(())
    lives.keep(("back",))
    assert removed_at_us(scheduler, 3 * FORGOTTEN_US) == {}


@pytest.mark.parametrize(
    ("reply", "made"), [(Done((None, None)), [paths.served("back")]), (Refused(Refusal.NO_AUTH, 1), [])]
)
def test_a_group_that_comes_back_while_its_mark_is_removed_has_one(reply: Reply, made: list[str]) -> None:
    """In `FormerLives._removed`, look at nothing. In `_remove_next`, expect no refusal: it would be repeated later."""
    scheduler = Scheduler()
    lives = FormerLives(scheduler)
    lives.read()
    scheduler.answer(1, Children(("back",)))
    lives.keep(())
    scheduler.now = Now(FORGOTTEN_US, 0)
    scheduler.run_next_due()
    (removing,) = [effect for effect in scheduler.take_effects()[1:] if isinstance(effect, Request)]
    lives.keep(("back",))
    lives.begin("back")
    scheduler.answer(removing.call_id, reply)
    created: list[str] = []
    while (at_us := scheduler.next_deadline_us()) is not None and at_us < 3 * FORGOTTEN_US:
        scheduler.now = Now(at_us, 0)
        scheduler.run_next_due()
        for effect in scheduler.take_effects():
            if isinstance(effect, Request) and isinstance(effect.call, Multi):
                created += [operation.path for operation in effect.call.operations if isinstance(operation, Create)]
                assert not any(isinstance(operation, Delete) for operation in effect.call.operations)
                scheduler.answer(effect.call_id, Done((None, None)))
    assert created == made


def test_a_mark_that_may_not_be_removed_is_tried_again_after_a_while() -> None:
    """In `FormerLives._removed`, try it once."""
    scheduler = Scheduler()
    lives = FormerLives(scheduler)
    lives.read()
    scheduler.answer(1, Children(("gone",)))
    lives.keep(())
    scheduler.now = Now(FORGOTTEN_US, 0)
    scheduler.run_next_due()
    (removing,) = [effect for effect in scheduler.take_effects()[1:] if isinstance(effect, Request)]
    scheduler.answer(removing.call_id, Refused(Refusal.NO_AUTH, 1))
    assert lives.was_served("gone")
    assert removed_at_us(scheduler, 3 * FORGOTTEN_US) == {paths.served("gone"): 2 * FORGOTTEN_US}


def test_a_group_that_comes_back_long_after_its_end_waits_for_nobody() -> None:
    """Its leases ended meanwhile. In `FormerLives._note_gone`, do not note until when it has to wait."""
    scheduler = Scheduler()
    lives = FormerLives(scheduler)
    lives.read()
    scheduler.answer(1, Children(("gone",)))
    lives.keep(())
    scheduler.now = Now(lease_wait_us(None) - 1, 0)
    assert lives.wait_us("gone", GroupView("gone", {})) == 1
    scheduler.now = Now(lease_wait_us(None), 0)
    assert lives.wait_us("gone", GroupView("gone", {})) == 0
