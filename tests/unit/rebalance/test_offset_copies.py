"""Copies of deleted offsets that are too many are removed, whatever the limit of one transaction is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.world import GROUP
from zkrebalancer.protocol import offset_copy, paths
from zkrebalancer.protocol.calls import Children, Delete, Done, ListChildren, Multi, Refusal, Refused
from zkrebalancer.protocol.requests import RequestLimit
from zkrebalancer.rebalance import offset_copies
from zkrebalancer.rebalance.effects import Request
from zkrebalancer.rebalance.offset_copies import OffsetCopies
from zkrebalancer.rebalance.scheduler import Scheduler

KEPT = 2
NAMES = tuple(f"{number}-0" for number in range(9))


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_copy, "MAX_COPIES", KEPT)
    monkeypatch.setattr(offset_copies, "MAX_REMOVED", 3)


def requests(scheduler: Scheduler) -> Iterator[Request]:
    while found := [effect for effect in scheduler.take_effects() if isinstance(effect, Request)]:
        yield from found


def paths_of(request: Request) -> list[str]:
    assert isinstance(request.call, Multi)
    return [operation.path for operation in request.call.operations[1:]]


def test_all_that_are_too_many_are_removed_a_few_at_a_time() -> None:
    """In `OffsetCopies._removed`, stop after the first transaction, or repeat it; in `_remove`, remove all at once."""
    scheduler, removed = Scheduler(), list[list[str]]()
    OffsetCopies(scheduler.part(GROUP), GROUP).look(0)
    for request in requests(scheduler):
        if isinstance(request.call, ListChildren):
            scheduler.answer(request.call_id, Children(NAMES))
        else:
            removed.append(paths_of(request))
            scheduler.answer(request.call_id, Done((None,) * 4))
    too_many = [paths.deleted_offsets(GROUP, name) for name in NAMES[:-KEPT]]
    assert removed == [too_many[:3], too_many[3:6], too_many[6:]]


def test_a_copy_that_cannot_be_removed_keeps_no_other() -> None:
    """In `OffsetCopies._removed`, stop at a refusal, or try that copy again."""
    scheduler, removed = Scheduler(), list[str]()
    stuck = paths.deleted_offsets(GROUP, NAMES[1])
    OffsetCopies(scheduler.part(GROUP), GROUP).look(0)
    for request in requests(scheduler):
        if isinstance(request.call, ListChildren):
            scheduler.answer(request.call_id, Children(NAMES))
        elif stuck in (wanted := paths_of(request)):
            scheduler.answer(request.call_id, Refused(Refusal.NOT_EMPTY, 1 + wanted.index(stuck)))
        else:
            removed += wanted
            scheduler.answer(request.call_id, Done((None,) * 4))
    too_many = [paths.deleted_offsets(GROUP, name) for name in NAMES[:-KEPT]]
    assert removed == [path for path in too_many if path != stuck]


def test_a_removal_that_was_forgotten_does_not_prevent_the_next() -> None:
    """In `OffsetCopies.reset`, do nothing."""
    scheduler = Scheduler()
    copies = OffsetCopies(scheduler.part(GROUP), GROUP)
    for _ in range(2):
        copies.look(0)
        (listing,) = requests_now(scheduler)
        scheduler.answer(listing.call_id, Children(NAMES))
        (removal,) = requests_now(scheduler)
        assert len(paths_of(removal)) == 3
        scheduler.forget(GROUP)
        copies.reset()


def test_a_copy_that_another_client_has_removed_does_not_prevent_the_next_removal() -> None:
    """In `OffsetCopies._removed`, leave the removal in progress."""
    scheduler = Scheduler()
    copies = OffsetCopies(scheduler.part(GROUP), GROUP)
    for _ in range(2):
        copies.look(0)
        (listing,) = requests_now(scheduler)
        scheduler.answer(listing.call_id, Children(NAMES))
        (removal,) = requests_now(scheduler)
        scheduler.answer(removal.call_id, Refused(Refusal.NO_NODE, 1))
        assert not requests_now(scheduler)


@pytest.mark.parametrize("made_after", [0, 1])
def test_copies_that_are_made_meanwhile_are_listed_once_after_all_others_are_removed(made_after: int) -> None:
    """Thousands may be made at once. In `OffsetCopies.look`, list them for each; in `_remove`, do not look again."""
    scheduler, asked = Scheduler(), list[str]()
    copies = OffsetCopies(scheduler.part(GROUP), GROUP)
    copies.look(0)
    for request in requests(scheduler):
        is_list = isinstance(request.call, ListChildren)
        asked.append("list" if is_list else "remove")
        if len(asked) == 1 + made_after:
            copies.look(0)
            copies.look(0)
        scheduler.answer(request.call_id, Children(NAMES[: KEPT + 1]) if is_list else Done((None,) * 4))
    assert asked == ["list", "remove"] * 2


def requests_now(scheduler: Scheduler) -> list[Request]:
    return [effect for effect in scheduler.take_effects() if isinstance(effect, Request)]


def test_what_did_not_fit_into_a_request_is_removed_by_the_next() -> None:
    """In `OffsetCopies._removed`, continue after MAX_REMOVED copies, however few were in the request."""
    too_many = [paths.deleted_offsets(GROUP, name) for name in NAMES[:-KEPT]]
    fence = Scheduler().fence
    limit = RequestLimit(RequestLimit().size([fence, *map(Delete, too_many[:2])]))
    scheduler, removed = Scheduler(limit), list[str]()
    OffsetCopies(scheduler.part(GROUP), GROUP).look(0)
    for request in requests(scheduler):
        if isinstance(request.call, ListChildren):
            scheduler.answer(request.call_id, Children(NAMES))
        else:
            removed += paths_of(request)
            scheduler.answer(request.call_id, Done((None,) * 3))
    assert removed == too_many
