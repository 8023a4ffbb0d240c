"""The scheduler's books: what an owner waits for is found by the owner, and nothing else is looked at."""

from __future__ import annotations

from collections.abc import Hashable

from hypothesis import given
from hypothesis import strategies as st

from zkrebalancer.protocol.calls import Done, Get, Refusal, Refused, Reply
from zkrebalancer.rebalance.effects import Now
from zkrebalancer.rebalance.scheduler import Scheduler

OWNERS = st.sampled_from(["a", "b", "c"])
NAMES = st.integers(0, 3)
STEPS = st.one_of(
    st.tuples(st.just("ask"), OWNERS, st.just(0)),
    st.tuples(st.just("answer"), st.just(""), st.integers(1, 30)),
    st.tuples(st.just("lose"), st.just(""), st.integers(1, 30)),
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


@given(st.lists(STEPS, max_size=60))
def test_the_index_by_owner_says_what_the_books_say(steps: list[tuple[str, str, int]]) -> None:
    scheduler, books = Scheduler(), Books()
    for now_us, (kind, owner, number) in enumerate(steps, 1):
        scheduler.now = Now(now_us, 0)
        expected: list[object] = []
        if kind == "ask":
            scheduler.part(owner).ask(Get("/"), _note, books, len(books.calls))
            books.calls[scheduler._last_call_id] = owner
        elif kind in {"answer", "lose"}:
            reply: Reply = Done() if kind == "answer" else Refused(Refusal.CONNECTION_LOST)
            scheduler.answer(number, reply)
            if books.calls.pop(number, None) is not None and kind == "answer":
                expected = [reply]
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
            scheduler.run_due()
            due = {at_us: key for key, at_us in books.timers.items() if at_us <= now_us}
            expected = [due[at_us] for at_us in sorted(due)]
            for key in due.values():
                del books.timers[key]
        assert books.called == expected
        books.called.clear()
        assert {call_id: awaited.owner for call_id, awaited in scheduler.awaited.items()} == books.calls
        assert scheduler.due.keys() == books.timers.keys()
        assert {call for calls in scheduler._calls_of.values() for call in calls} == books.calls.keys()
        assert {(of, name) for of, names in scheduler._timers_of.items() for name in names} == books.timers.keys()
        assert all(scheduler._calls_of.values())
        assert all(scheduler._timers_of.values())


def _note(reply: Reply, books: Books, _number: int) -> None:
    books.called.append(reply)


def _ring(books: Books, key: tuple[str, int]) -> None:
    books.called.append(key)


class Watched(dict[object, object]):
    """A dictionary that counts how often all of it is looked through."""

    looks = 0

    def __iter__(self) -> object:  # type: ignore[override]
        Watched.looks += 1
        return super().__iter__()

    def items(self) -> object:  # type: ignore[override]
        Watched.looks += 1
        return super().items()


def test_to_forget_one_owner_looks_at_no_other() -> None:
    scheduler = Scheduler()
    for number in range(100):
        scheduler.part(f"g-{number}").ask(Get("/"), _note)
        scheduler.part(f"g-{number}").wake("reconcile", 1, _ring)
    scheduler.awaited = Watched(scheduler.awaited)  # type: ignore[assignment,arg-type]
    scheduler.due = Watched(scheduler.due)  # type: ignore[assignment]
    scheduler.part("g-7").forget()
    assert Watched.looks == 0
    assert len(scheduler.awaited) == len(scheduler.due) == 99
