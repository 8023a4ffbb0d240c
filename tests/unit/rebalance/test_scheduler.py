"""The scheduler's books: what an owner waits for is found by the owner, and nothing else is looked at."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.requests import requests
from tests.support.watched import Watched
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import (
    Check,
    Done,
    Get,
    Multi,
    ReadEach,
    Refusal,
    Refused,
    Replied,
    RepliedInRow,
    Reply,
    SetContent,
)
from zkrebalancer.protocol.requests import RequestLimit
from zkrebalancer.rebalance import refusals
from zkrebalancer.rebalance.effects import Now, Request, RequestEach, Warn
from zkrebalancer.rebalance.scheduler import ANY, FIRST_PAUSE_US, MAX_PAUSE_US, RACES, Scheduler

OWNERS = st.sampled_from(["a", "b", "c"])
ROW = 5
NAMES = st.integers(0, 3)
STEPS = st.one_of(
    st.tuples(st.just("ask"), OWNERS, st.just(0)),
    st.tuples(st.just("ask each"), OWNERS, st.integers(1, 3)),
    st.tuples(st.just("answer"), st.just(""), st.integers(1, 30)),
    st.tuples(st.just("lose"), st.just(""), st.integers(1, 30)),
    st.tuples(st.sampled_from(["answer a row", "refuse one of a row"]), st.just(""), st.integers(1, 30)),
    st.tuples(st.just("wake"), OWNERS, NAMES),
    st.tuples(st.just("cancel"), OWNERS, NAMES),
    st.tuples(st.just("forget"), OWNERS, st.just(0)),
    st.tuples(st.just("run"), st.just(""), st.integers(0, 30)),
)


class Books:
    """What the scheduler should know, kept without any index."""

    def __init__(self) -> None:
        self.calls: dict[int, str] = {}
        self.timers: dict[tuple[Hashable, Hashable], int] = {}
        self.called: list[object] = []
        self.answered: set[int] = set()


@given(st.lists(STEPS, max_size=60))
def test_the_index_by_owner_says_what_the_books_say(steps: list[tuple[str, str, int]]) -> None:  # noqa: C901  # a table
    scheduler, books = Scheduler(), Books()
    for now_us, (kind, owner, number) in enumerate(steps, 1):
        scheduler.now = Now(now_us, 0)
        expected: list[object] = []
        if kind == "ask":
            scheduler.part(owner).ask(Get("/"), _note, books, len(books.calls))
            books.calls[scheduler._numbers.call_id] = owner
        elif kind == "ask each":
            _ask_each(scheduler, books, owner, number)
        elif kind in {"answer", "lose"}:
            reply: Reply = Done() if kind == "answer" else Refused(Refusal.CONNECTION_LOST)
            scheduler.answer_all(Replied(number, reply))
            if books.calls.pop(number, None) is not None and kind == "answer":
                expected = [reply]
            books.answered.add(number)
        elif kind in {"answer a row", "refuse one of a row"}:
            expected = _answer_row(scheduler, books, number, is_one_refused=kind == "refuse one of a row")
        elif kind == "wake":
            scheduler.part(owner).wake(number, now_us + 5, _ring, books, (owner, number))
            books.timers[owner, number] = now_us + 5
        elif kind == "cancel":
            scheduler.part(owner).cancel_wake(number)
            books.timers.pop((owner, number), None)
        elif kind == "forget":
            scheduler.part(owner).forget()
            books.calls = {call_id: of for call_id, of in books.calls.items() if of != owner}
            books.timers = {key: at_us for key, at_us in books.timers.items() if key[0] != owner}
        else:
            scheduler.run_next_due()
            due = sorted((at_us, key) for key, at_us in books.timers.items() if at_us <= now_us)
            for _at_us, key in due[:1]:
                expected = [key]
                del books.timers[key]
        assert books.called == expected
        books.called.clear()
        assert {call_id: awaited.owner for call_id, awaited in scheduler.awaited.items()} == books.calls
        assert scheduler.due.keys() == books.timers.keys()
        assert {call for calls in scheduler._calls_of.values() for call in calls} == books.calls.keys()
        assert {(of, name) for of, names in scheduler._timers_of.items() for name in names} == books.timers.keys()
        assert all(scheduler._calls_of.values())
        assert all(scheduler._timers_of.values())


@pytest.mark.parametrize("is_one_refused", [False, True])
def test_a_row_of_replies_may_be_of_several_owners(*, is_one_refused: bool) -> None:
    """In `Scheduler.answer_all`, look for the first one's owner only; in `_answer_some`, leave what it awaits."""
    scheduler, books = Scheduler(), Books()
    _ask_each(scheduler, books, "a", 2)
    scheduler.part("b").ask(Get("/"), _note, books, 0)
    books.calls[3] = "b"
    _ask_each(scheduler, books, "b", 3)
    assert books.called == []
    expected = _answer_row(scheduler, books, 1, is_one_refused=is_one_refused)
    assert (books.called, len(expected)) == (expected, ROW)
    assert scheduler.awaited.keys() == {6}
    assert scheduler._calls_of == {"b": {6}}


def _ask_each(scheduler: Scheduler, books: Books, owner: str, count: int) -> None:
    first = scheduler._numbers.call_id + 1
    ids = range(first, first + count)
    reads = ReadEach(Get, "/above", [*map(str, ids)])
    scheduler.part(owner).ask_each(reads, (_note_all, _pass_on, books.called.append), RACES)
    asked = scheduler.take_effects()[-1]
    assert isinstance(asked, RequestEach)
    assert [*requests(asked)] == [Request(call_id, Get(f"/above/{call_id}")) for call_id in ids]
    books.calls.update(dict.fromkeys(ids, owner))


def _answer_row(scheduler: Scheduler, books: Books, first: int, *, is_one_refused: bool) -> list[object]:
    """Answer calls with consecutive ids, up to the first one that was answered before; return what is noted."""
    ids = [*takewhile(lambda call_id: call_id not in books.answered, range(first, first + ROW))]
    replies: list[Reply] = [Done((str(call_id),)) for call_id in ids]
    if is_one_refused:
        replies[1:2] = [Refused(Refusal.NO_NODE)] * len(replies[1:2])
    scheduler.answer_all(RepliedInRow(first, replies))
    books.answered.update(ids)
    return [reply for n, reply in zip(ids, replies, strict=True) if books.calls.pop(n, None) is not None]


def _note(reply: Reply, books: Books, _number: int) -> None:
    books.called.append(reply)


def _note_all(replies: Sequence[Reply], note: Callable[[Reply], None], names: Sequence[str]) -> None:
    """Note the replies; each names the call, as its node's name does."""
    assert [reply.results for reply in replies if isinstance(reply, Done)] == [(name,) for name in names]
    for reply in replies:
        note(reply)


def _pass_on(reply: Reply, handle: Callable[[Reply], None], _name: str) -> None:
    handle(reply)


def _ring(books: Books, key: tuple[str, int]) -> None:
    books.called.append(key)


def test_to_forget_one_owner_looks_at_no_other() -> None:
    scheduler = Scheduler()
    for number in range(100):
        scheduler.part(f"g-{number}").ask(Get("/"), _note)
        scheduler.part(f"g-{number}").wake("reconcile", 1, _ring)
    awaited, due = Watched(scheduler.awaited), Watched(scheduler.due)
    scheduler.awaited, scheduler.due = awaited, due
    scheduler.part("g-7").forget()
    assert awaited.looks == due.looks == 0
    assert len(scheduler.awaited) == len(scheduler.due) == 99


def test_a_refused_call_is_repeated_with_growing_pauses_and_logged_once() -> None:
    """In `Scheduler._repeat_later`, do not count the tries; in `Refusals.note_allowed`, forget nothing."""
    scheduler, replies, asked = Scheduler(), list[Reply](), list[int]()
    scheduler.part("g").ask(Get("/n"), replies.append)
    texts: list[str] = []

    def look() -> None:
        for effect in scheduler.take_effects():
            if isinstance(effect, Request):
                asked.append(effect.call_id)
            elif isinstance(effect, Warn):
                texts.append(effect.text)

    look()
    pauses = []
    for _ in range(12):
        scheduler.answer(asked[-1], Refused(Refusal.NO_AUTH))
        due_us = scheduler.next_deadline_us()
        assert due_us is not None
        pauses.append(due_us - scheduler.now.mono_us)
        scheduler.now = Now(due_us, 0)
        scheduler.run_next_due()
        look()
    assert pauses == [min(FIRST_PAUSE_US * 2**number, MAX_PAUSE_US) for number in range(12)]
    assert len(asked) == 13
    scheduler.answer(asked[-1], Done())
    scheduler.part("g").ask(Get("/n"), replies.append)
    look()
    scheduler.answer(asked[-1], Done())
    look()
    assert len(replies) == 2
    refused = "ZooKeeper refuses /n: "
    assert [text.startswith(refused) for text in texts] == [True, False]
    assert texts[1] == "ZooKeeper no longer refuses /n"
    assert not scheduler.refusals.known


@pytest.mark.parametrize(
    ("index", "path"), [(None, "/g"), (0, paths.COORDINATOR_EPOCH), (1, "/g"), (2, "/g/n")], ids=str
)
def test_of_a_refused_transaction_the_path_that_was_refused_is_logged(index: int | None, path: str) -> None:
    """The fence may be refused too. In `_behind_the_fence`, number it -1: then the last path would be logged."""
    scheduler, replies = Scheduler(), list[Reply]()
    scheduler.part("g").write([Check("/g", 1), SetContent("/g/n", b"")], replies.append, expected=ANY)
    scheduler.answer(1, Refused(Refusal.QUOTA_EXCEEDED, index))
    assert replies == [Refused(Refusal.QUOTA_EXCEEDED, None if not index else index - 1)]
    (known,) = scheduler.refusals.known
    assert known[0] == path


def test_what_has_room_fits_into_a_write_to_the_last_byte() -> None:
    """In `PartScheduler.room`, do not count the fence."""
    first = [SetContent("/n", b"12345")]
    for max_bytes in range(400, 420):
        scheduler = Scheduler(RequestLimit(max_bytes))
        part = scheduler.part("g")
        frame = scheduler.limit.operation_size(SetContent("/m", b""))
        filling = SetContent("/m", bytes(part.room(first) - frame))
        part.write([*first, filling], _note)
        (request,) = scheduler.take_effects()
        assert isinstance(request, Request)
        assert isinstance(request.call, Multi)
        assert scheduler.limit.size(request.call.operations) == max_bytes


def test_what_was_refused_is_remembered_and_logged_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Refusals.note`, forget the oldest one instead: each round of tries would log all paths again, for ever."""
    monkeypatch.setattr(refusals, "MAX_REFUSED", 3)
    scheduler = Scheduler()
    for _ in range(3):
        for number in range(10):
            scheduler.note_refused(Get(f"/{number}"), Refusal.NO_AUTH)
    assert [path for path, _right in scheduler.refusals.known] == ["/0", "/1", "/2"]
    texts = [effect.text for effect in scheduler.take_effects() if isinstance(effect, Warn)]
    assert [text.partition(":")[0] for text in texts] == [
        *(f"ZooKeeper refuses /{number}" for number in range(3)),
        "ZooKeeper refuses more than 3 paths, such as /3",
    ]
    assert scheduler.refusals.note_allowed(Get("/0")) == ["ZooKeeper no longer refuses /0"]
    for number in range(4, 6):
        scheduler.note_refused(Get(f"/{number}"), Refusal.NO_AUTH)
    assert [path for path, _right in scheduler.refusals.known] == ["/1", "/2", "/4"]
    texts = [effect.text for effect in scheduler.take_effects() if isinstance(effect, Warn)]
    assert [text.partition(":")[0] for text in texts] == [
        "ZooKeeper refuses /4",
        "ZooKeeper refuses more than 3 paths, such as /5",
    ]


def test_a_refused_read_that_is_asked_for_again_and_again_is_repeated_once() -> None:
    """In `Scheduler._repeat_later`, give each call a timer of its own: they would become ever more."""
    scheduler, called = Scheduler(), list[object]()
    part = scheduler.part("g")
    for number in range(50):
        scheduler.now = Now(number, 0)
        part.ask(Get("/x"), called.append)
        part.ask(Get("/x"), lambda reply, name: called.append((reply, name)), f"{number % 2}")
        part.ask(Get("/x", watch=True), called.append)
        for call_id in list(scheduler.awaited):
            scheduler.answer(call_id, Refused(Refusal.NO_AUTH))
    assert len([key for key in scheduler.due if key[0] == "g"]) == 2 + 50, "the lambdas are different handlers"
    first = [at_us for at_us, _handle, _again in scheduler.due.values() if at_us == FIRST_PAUSE_US]
    assert len(first) == 2 + 1, "a later question neither delays nor hastens it"


def test_reads_for_different_objects_are_all_repeated() -> None:
    """In `Awaited.question`, compare objects by what they contain: each counts the replies that it waits for."""
    scheduler, found = Scheduler(), list[tuple[Reply, list[int]]]()
    part = scheduler.part("g")

    def note(reply: Reply, counts: list[int]) -> None:
        found.append((reply, counts))

    for _ in range(3):
        part.ask(Get("/x"), note, [1])
    for call_id in list(scheduler.awaited):
        scheduler.answer(call_id, Refused(Refusal.NO_AUTH))
    while scheduler.due:
        scheduler.now = Now(scheduler.next_deadline_us() or 0, 0)
        scheduler.run_next_due()
    for call_id in list(scheduler.awaited):
        scheduler.answer(call_id, Done())
    assert len({id(counts) for _reply, counts in found}) == 3
