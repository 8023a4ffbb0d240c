"""Leaving the group, in good order or not."""

from __future__ import annotations

import pytest

from consumer_agent.errors import IllegalTransitionError
from consumer_agent.membership.effects import (
    AskRevoke,
    Closed,
    CloseSession,
    CommitFinished,
    EmitUntil,
    Forget,
    RecordFetcher,
    RecordLost,
    StopEmitting,
    TellLost,
    Warn,
)
from consumer_agent.membership.events import (
    Abandoned,
    CloseRequested,
    CommitRequested,
    Event,
    GaveUp,
    Polled,
    Position,
    Revoked,
    Tick,
)
from consumer_agent.membership.state_machine import TRANSITIONS, State
from tests.unit.consumer_agent.membership.driver import (
    CHANNEL,
    CONSUMER,
    GROUP,
    LIST_CHANNEL,
    OWNERS,
    T0,
    Driver,
    of_type,
    offset_path,
    requests,
)
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import (
    Check,
    Children,
    Delete,
    Done,
    ListChildren,
    Lost,
    Multi,
    Refusal,
    Refused,
    Reply,
    SetContent,
    Watched,
)
from zkrebalancer.protocol.registration import LEFT

IDS = paths.ids(GROUP, CONSUMER)
FINISHED = {T0: Position(15, 15)}
NOTHING_NEW = {T0: Position(10, 10)}


def owning(ask_application: bool = False) -> Driver:
    driver = Driver(ask_application=ask_application)
    driver.register()
    driver.own({T0: 10})
    return driver


@pytest.fixture
def driver() -> Driver:
    return owning()


def leaving(*commands: str) -> Multi:
    inside = (Delete(f"{CHANNEL}/{name}") for name in commands)
    return Multi((Delete(IDS), Delete(OWNERS), *inside, Delete(CHANNEL)))


def test_close_stops_commits_and_deletes_the_nodes_in_that_order(driver: Driver) -> None:
    effects = driver.step(CloseRequested())
    assert [effect.partitions for effect in of_type(effects, StopEmitting)] == [frozenset({T0})]
    effects = driver.progress(effects, FINISHED)
    assert effects[0] == RecordFetcher("fetcher_stopped", CONSUMER, 4, None, {T0: 15}, "closed")
    assert requests(effects) == [Multi((Check(OWNERS, 1), SetContent(offset_path(T0), b"15")))]
    effects = driver.answer_write(Done((None, 1)))
    assert requests(effects) == [leaving()]
    effects = driver.answer_write(Done())
    assert effects == [Forget(frozenset({T0})), CloseSession(), Closed()]
    assert driver.machine.state is State.CLOSED


def test_close_commits_only_what_is_finished(driver: Driver) -> None:
    """In `Release.record`, write the stop alone: what the next owner reads again seems to be a fault."""
    effects = driver.progress(driver.step(CloseRequested()), {T0: Position(15, 12)})
    assert driver.writes() == [Multi((Check(OWNERS, 1), SetContent(offset_path(T0), b"12")))]
    assert effects[:2] == [
        RecordFetcher("repositioned", CONSUMER, 4, None, {T0: 12}, "unfinished"),
        RecordFetcher("fetcher_stopped", CONSUMER, 4, None, {T0: 15}, "closed"),
    ]


def test_close_without_new_offsets_is_one_transaction(driver: Driver) -> None:
    effects = driver.progress(driver.step(CloseRequested()), NOTHING_NEW)
    assert requests(effects) == [leaving()]


def test_close_asks_on_revoke_first(driver: Driver) -> None:
    driver = owning(ask_application=True)
    effects = driver.progress(driver.step(CloseRequested()), {T0: Position(15, 10)})
    (question,) = of_type(effects, AskRevoke)
    assert requests(effects) == []
    commit = driver.step(CommitRequested(99))  # from within on_revoke
    driver.progress(commit, FINISHED)
    assert CommitFinished((99,)) in driver.answer_write(Done((None, 1)))
    effects = driver.progress(driver.step(Revoked(question.token)), FINISHED)
    assert requests(effects) == [leaving()]


def test_a_commit_of_on_revoke_that_is_still_under_way_is_waited_for(driver: Driver) -> None:
    driver = owning(ask_application=True)
    effects = driver.progress(driver.step(CloseRequested()), {T0: Position(15, 10)})
    (question,) = of_type(effects, AskRevoke)
    driver.progress(driver.step(CommitRequested(99)), {T0: Position(15, 12)})
    effects = driver.progress(driver.step(Revoked(question.token)), FINISHED)
    assert requests(effects) == []
    effects = driver.answer_write(Done((None, 1)))
    assert requests(effects) == [Multi((Check(OWNERS, 1), SetContent(offset_path(T0), b"15")))]


def test_a_command_that_waits_is_deleted_with_the_channel(driver: Driver) -> None:
    driver.stop(frozenset({T0}))
    effects = driver.progress(driver.step(CloseRequested()), NOTHING_NEW)
    assert requests(effects) == [leaving("command-0000000001")]


def test_a_command_that_came_in_between_is_found_and_deleted(driver: Driver) -> None:
    driver.progress(driver.step(CloseRequested()), NOTHING_NEW)
    listing = ListChildren(CHANNEL)
    assert requests(driver.answer_write(Refused(Refusal.NOT_EMPTY, 2))) == [listing]
    effects = driver.answer(listing, Children(("command-0000000007",)))
    assert requests(effects) == [leaving("command-0000000007")]


def test_deleting_the_nodes_is_not_tried_for_ever(driver: Driver) -> None:
    driver.progress(driver.step(CloseRequested()), NOTHING_NEW)
    for _ in range(2):
        driver.answer_write(Refused(Refusal.NOT_EMPTY, 2))
        driver.answer(ListChildren(CHANNEL), Children(()))
    effects = driver.answer_write(Refused(Refusal.NOT_EMPTY, 2))
    assert effects[-2:] == [CloseSession(), Closed()]


def test_an_ack_under_way_ends_before_the_departure_begins(driver: Driver) -> None:
    driver.start({("u", 0): 5}, "start-2")
    assert of_type(driver.step(CloseRequested()), StopEmitting) == []
    effects = driver.answer_write(Done((2, None)))
    assert [effect.partitions for effect in of_type(effects, StopEmitting)] == [frozenset({T0, ("u", 0)})]


def test_a_stop_that_waits_for_the_application_goes_on_as_a_departure(driver: Driver) -> None:
    effects = driver.progress(driver.stop(frozenset({T0})), {T0: Position(15, 10)})
    (asked,) = of_type(effects, AskRevoke)
    effects = driver.progress(driver.step(CloseRequested()), {T0: Position(15, 10)})
    (question,) = of_type(effects, AskRevoke)  # the application answers the first question, then this one
    assert driver.step(Revoked(asked.token)) == []
    driver.progress(driver.step(Revoked(question.token)), FINISHED)
    (write,) = driver.writes()
    assert write.operations[1] == SetContent(offset_path(T0), b"15")


def test_no_command_is_begun_while_leaving(driver: Driver) -> None:
    driver.step(CloseRequested())
    driver.step(Watched(CHANNEL, children=True))
    assert requests(driver.answer(LIST_CHANNEL, Children(("command-0000000005",)))) == []


def test_a_broken_connection_while_deleting_looks_again(driver: Driver) -> None:
    driver.progress(driver.step(CloseRequested()), NOTHING_NEW)
    driver.break_connection()
    listing = ListChildren(CHANNEL)
    assert listing in requests(driver.connect())
    effects = driver.answer(listing, Refused(Refusal.NO_NODE))  # the transaction had gone through
    assert effects[-2:] == [CloseSession(), Closed()]


@pytest.mark.parametrize("reply", [Done((1,)), Refused(Refusal.NO_AUTH, 0), Refused(Refusal.CONNECTION_LOST)])
def test_without_the_right_to_delete_a_mark_precedes_the_end_of_the_session(driver: Driver, reply: Reply) -> None:
    driver.progress(driver.step(CloseRequested()), NOTHING_NEW)
    mark = Multi((SetContent(CHANNEL, LEFT),))
    assert requests(driver.answer_write(Refused(Refusal.NO_AUTH, 0))) == [mark]
    effects = driver.answer(mark, reply)
    assert bool(of_type(effects, Warn)) is not isinstance(reply, Done)
    assert effects[-2:] == [CloseSession(), Closed()]


def test_abandoned_ends_the_session_as_it_is(driver: Driver) -> None:
    driver.step(CloseRequested())
    driver.break_connection()
    effects = driver.step(Abandoned())
    assert RecordLost(CONSUMER, 4, frozenset({T0})) in effects
    assert effects[-2:] == [CloseSession(), Closed()]
    assert driver.step(Tick()) == []


def test_a_session_lost_while_leaving_ends_it(driver: Driver) -> None:
    driver.step(CloseRequested())
    effects = driver.step(Lost())
    assert TellLost() in effects
    assert effects[-1] == Closed()


def test_close_before_the_first_poll() -> None:
    assert Driver().step(CloseRequested()) == [CloseSession(), Closed()]


def test_close_while_connecting() -> None:
    driver = Driver()
    driver.step(Polled(CONSUMER, 5))
    assert driver.step(CloseRequested()) == [CloseSession(), Closed()]


def test_nothing_happens_after_the_end(driver: Driver) -> None:
    driver.step(Abandoned())
    for event in (Polled("c-2", 5), Lost(), Abandoned(), CloseRequested()):
        assert driver.step(event) == []


def test_an_illegal_transition_tells_its_story(driver: Driver) -> None:
    driver.machine.state = State.CLOSED
    with pytest.raises(IllegalTransitionError, match=r"closed -> out is not allowed; story: .*active: Replied"):
        driver.machine._become_out()


def test_every_state_but_the_last_can_be_left_and_closed() -> None:
    for state, following in TRANSITIONS.items():
        assert (State.CLOSED in following) == (state is not State.CLOSED)


def test_close_ends_the_emission_of_an_abandoned_consumer(driver: Driver) -> None:
    assert EmitUntil(0) in driver.step(Abandoned())


def test_a_consumer_that_gives_up_stores_what_is_finished_and_asks_nobody() -> None:
    driver = Driver(ask_application=True)
    driver.register()
    driver.own({T0: 5})
    effects = driver.step(GaveUp("the Kafka client has failed 21 times"))
    assert of_type(effects, EmitUntil) == [EmitUntil(0)]
    assert "has failed 21 times" in of_type(effects, Warn)[0].text
    effects = driver.progress(effects, {T0: Position(20, 10)})
    assert of_type(effects, AskRevoke) == []
    driver.answer_write(Done((1, 1)))
    effects = driver.answer_write(Done((None,) * 3))
    assert of_type(effects, TellLost) == [TellLost()]
    assert of_type(effects, Closed) == [Closed()]


def test_giving_up_ends_the_wait_for_an_application_that_was_asked() -> None:
    driver = Driver(ask_application=True)
    driver.register()
    driver.own({T0: 5})
    driver.progress(driver.step(CloseRequested()), {T0: Position(20, 10)})
    effects = driver.step(GaveUp("dropped"))
    driver.progress(effects, {T0: Position(20, 10)})
    assert driver.writes()


def test_giving_up_outside_of_a_group_is_the_end() -> None:
    driver = Driver()
    assert of_type(driver.step(GaveUp("dropped")), Closed) == [Closed()]
    assert driver.step(GaveUp("dropped")) == []


@pytest.mark.parametrize("end", [CloseRequested(), GaveUp("the Kafka client has failed 21 times")])
def test_a_commit_after_the_final_offsets_were_read_is_not_stored_and_says_so(end: Event) -> None:
    """In `Member._handle_application`, let it wait: it ends with the departure, as if it were stored."""
    for commits_early in (True, False):
        driver = owning()
        effects = driver.step(end)
        if commits_early:
            driver.step(CommitRequested(7))  # nobody has read the positions yet
        driver.progress(effects, FINISHED)
        if not commits_early:
            effects = driver.step(CommitRequested(7))
            assert effects == [CommitFinished((7,), "the consumer has given up its partitions")]
        driver.answer_write(Done((None, 1)))
        effects = driver.answer_write(Done())
        assert of_type(effects, CommitFinished) == [CommitFinished((7,), None)] * commits_early
