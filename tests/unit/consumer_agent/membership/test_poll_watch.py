"""An application that does not poll: it is warned of, then its consumer leaves by itself, and joins again."""

from __future__ import annotations

from consumer_agent.membership.effects import (
    BecameOut,
    Closed,
    CloseSession,
    CommitFinished,
    Effect,
    EmitUntil,
    Forget,
    LookAtApplication,
    OpenSession,
    RecordFetcher,
    RecordLost,
    RecordPollLate,
    StopEmitting,
    TellLost,
    Warn,
)
from consumer_agent.membership.emission import NEVER_MS
from consumer_agent.membership.events import ApplicationSeen, CloseRequested, CommitRequested, Polled, Position, Tick
from consumer_agent.membership.poll_watch import in_hand
from consumer_agent.membership.state_machine import State
from tests.unit.consumer_agent.membership.driver import (
    CHANNEL,
    CONSUMER,
    GROUP,
    OWNERS,
    RENEWAL,
    T0,
    Driver,
    of_type,
    offset_path,
)
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Check, Delete, Done, Lost, Multi, SetContent

LIMIT_MS, WARNING_MS = 300_000, 200_000
IN_HAND = {T0: Position(20, 10)}


def away(driver: Driver) -> list[Effect]:
    """Let the application be away from now on, up to the limit, and answer the warning's look."""
    since_ms = driver.now_ms
    driver.machine.member.poll_watch.look_at_ms = since_ms + WARNING_MS  # type: ignore[union-attr]  # it was in a poll
    for wait_ms in (WARNING_MS, LIMIT_MS - WARNING_MS):
        driver.now_ms += wait_ms
        effects = seen(driver, since_ms)
    return effects


def seen(driver: Driver, since_ms: int | None) -> list[Effect]:
    """Answer the look at the application that is due now."""
    effects = driver.step(Tick())
    if RENEWAL in driver.waiting.values():
        driver.answer(RENEWAL, Done())
    (look,) = of_type(effects, LookAtApplication)
    return driver.step(ApplicationSeen(look.token, since_ms, IN_HAND))


def owner(*, ask_application: bool = False) -> Driver:
    driver = Driver(auto_commit_interval_ms=None, ask_application=ask_application)
    driver.register()
    driver.own({T0: 5})
    return driver


def test_an_application_in_a_poll_is_looked_at_only_now_and_then() -> None:
    driver = owner()
    for _ in range(3):
        driver.now_ms += WARNING_MS
        assert of_type(seen(driver, None), Warn) == []
    driver.now_ms += WARNING_MS - 1
    assert of_type(driver.step(Tick()), LookAtApplication) == []


def test_what_is_seen_tells_when_to_look_again() -> None:
    driver = owner()
    driver.now_ms += WARNING_MS
    assert of_type(seen(driver, driver.now_ms - 50), Warn) == []
    driver.now_ms += WARNING_MS - 51
    assert of_type(driver.step(Tick()), LookAtApplication) == []
    driver.now_ms += 1
    assert of_type(driver.step(Tick()), LookAtApplication) != []


def test_it_is_warned_of_once_at_two_thirds() -> None:
    driver = owner()
    since_ms = driver.now_ms
    driver.now_ms += WARNING_MS
    effects = seen(driver, since_ms)
    assert [warning.text for warning in of_type(effects, Warn)] == [
        (
            "c-1: the application has not polled for 200.0 s and gives up its partitions in 100.0 s "
            "(max_poll_interval_ms is 300000); it is processing t/0 10-19"
        )
    ]
    assert of_type(effects, RecordPollLate) == [RecordPollLate(CONSUMER, WARNING_MS, LIMIT_MS, gives_up=False)]
    assert driver.machine.state is State.ACTIVE


def test_at_the_limit_it_gives_everything_up_without_asking() -> None:
    driver = owner(ask_application=True)
    effects = away(driver)
    assert driver.machine.state is State.YIELDING
    assert [warning.text for warning in of_type(effects, Warn)] == [
        (
            "c-1: the application has not polled for 300.0 s and gives up its partitions "
            "(max_poll_interval_ms is 300000); it is processing t/0 10-19"
        )
    ]
    assert EmitUntil(NEVER_MS) in effects
    (stop,) = of_type(effects, StopEmitting)
    assert stop.partitions == {T0}
    effects = driver.progress(effects, IN_HAND)
    (fetcher,) = of_type(effects, RecordFetcher)
    assert (fetcher.kind, fetcher.reason, fetcher.positions) == ("fetcher_stopped", "lost", {T0: 20})
    (commit,) = driver.writes()  # what it has finished is stored, what it has in hand is not
    assert commit == Multi((Check(OWNERS, 1), SetContent(offset_path(T0), b"10")))
    driver.answer(commit, Done((None, None)))
    (leave,) = driver.writes()
    assert leave == Multi((Delete(paths.ids(GROUP, CONSUMER)), Delete(OWNERS), Delete(CHANNEL)))
    effects = driver.answer(leave, Done((None, None, None)))
    assert effects == [TellLost(), Forget(frozenset({T0})), CloseSession(), BecameOut()]
    assert driver.step(Polled("c-2", 6)) == [OpenSession()]


def test_renewals_do_not_let_it_emit_meanwhile() -> None:
    driver = owner()
    away(driver)
    driver.now_ms += 2_000
    driver.step(Tick())
    assert of_type(driver.answer(RENEWAL, Done()), EmitUntil) == []


def test_a_commit_of_what_is_given_up_fails() -> None:
    driver = owner()
    effects = away(driver)
    driver.step(CommitRequested(7))
    driver.progress(effects, IN_HAND)
    driver.answer_write(Done((None, None)))
    effects = driver.answer_write(Done((None, None, None)))
    assert of_type(effects, CommitFinished) == [CommitFinished((7,), "the application had not polled in time")]


def test_a_session_that_ends_meanwhile_ends_it_too() -> None:
    driver = owner()
    away(driver)
    effects = driver.step(Lost())
    assert of_type(effects, RecordLost) == [RecordLost(CONSUMER, 4, frozenset({T0}))]
    assert driver.machine.state is State.OUT


def test_an_application_that_closes_meanwhile_is_told_of_its_loss_and_closed() -> None:
    driver = owner()
    effects = away(driver)
    assert driver.step(CloseRequested()) == []
    driver.progress(effects, IN_HAND)
    driver.answer_write(Done((None, None)))
    effects = driver.answer_write(Done((None, None, None)))
    assert effects == [TellLost(), Forget(frozenset({T0})), CloseSession(), Closed()]


def test_records_in_hand_are_named_but_not_all_of_many() -> None:
    assert in_hand({T0: Position(20, 20)}) == "no records"
    assert in_hand({T0: Position(20, -1)}) == "no records"  # a region has not restored its state yet
    six = {("t", number): Position(number + 3, number) for number in range(6)}
    assert in_hand(six).endswith(", 1 more partitions")
    many = {("t", number): Position(number + 3, number) for number in range(7)}
    assert in_hand(many) == "t/0 0-2, t/1 1-3, t/2 2-4, t/3 3-5, t/4 4-6, 2 more partitions"
