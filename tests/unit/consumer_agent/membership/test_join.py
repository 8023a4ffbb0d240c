"""How a consumer comes into its group."""

from __future__ import annotations

import pytest

from consumer_agent.errors import ConsumerError
from consumer_agent.membership import join
from consumer_agent.membership.effects import (
    BecameOut,
    Closed,
    CloseSession,
    EmitUntil,
    Failed,
    OpenSession,
    Request,
    Warn,
)
from consumer_agent.membership.events import CloseRequested, NotOpened, Polled, Tick
from consumer_agent.membership.join import NOTHING_OWNED
from consumer_agent.membership.state_machine import State
from tests.unit.consumer_agent.membership.driver import (
    CHANNEL,
    CONSUMER,
    GROUP,
    LEASE_MS,
    LIST_CHANNEL,
    LOOK_AT_RESTORE,
    OWNERS,
    REGISTRATION,
    RENEWAL,
    SESSION,
    SESSION_TIMEOUT_MS,
    WATCH_CHANNEL,
    Driver,
    content,
    of_type,
    requests,
)
from zkrebalancer.protocol import ownership, paths, registration
from zkrebalancer.protocol.calls import (
    Children,
    Connected,
    Create,
    Done,
    Get,
    ListChildren,
    Lost,
    Multi,
    Refusal,
    Refused,
    Replied,
    Suspended,
    Watched,
)
from zkrebalancer.protocol.errors import ChrootMissingError, ZooKeeperUnavailableError

LIST_GROUP = ListChildren(paths.group(GROUP))
ALL_CHILDREN = Children(tuple(sorted(paths.GROUP_CHILDREN)))
GRANTED = REGISTRATION._replace(timestamp="5", session_timeout_ms=SESSION_TIMEOUT_MS)
REGISTER = Multi(
    (
        Create(CHANNEL),
        Create(paths.ids(GROUP, CONSUMER), registration.encode(GRANTED), ephemeral=True),
        Create(OWNERS, ownership.encode_owners(NOTHING_OWNED), ephemeral=True),
    )
)


def registering() -> Driver:
    driver = Driver()
    driver.step(Polled(CONSUMER, 5))
    driver.connect()
    driver.answer(LIST_GROUP, ALL_CHILDREN)
    return driver


def test_the_first_poll_opens_a_session() -> None:
    assert Driver().step(Polled(CONSUMER, 5)) == [OpenSession()]


def test_registration_is_one_multi_that_states_the_granted_session_timeout() -> None:
    driver = Driver()
    driver.step(Polled(CONSUMER, 5))
    assert requests(driver.connect()) == [LIST_GROUP]
    assert requests(driver.answer(LIST_GROUP, ALL_CHILDREN)) == [REGISTER]
    effects = driver.answer(REGISTER, Done((CHANNEL, "", OWNERS)))
    assert requests(effects) == [WATCH_CHANNEL, LIST_CHANNEL]
    assert driver.machine.state is State.ACTIVE


def test_the_registration_counts_as_a_renewal_from_when_it_was_sent() -> None:
    driver = registering()
    sent_ms, driver.now_ms = driver.now_ms, driver.now_ms + 700
    assert of_type(driver.answer(REGISTER, Done()), EmitUntil) == [EmitUntil(sent_ms + LEASE_MS)]


def test_only_the_missing_nodes_of_a_group_are_created() -> None:
    driver = Driver()
    driver.step(Polled(CONSUMER, 5))
    driver.connect()
    present = tuple(name for name in paths.GROUP_CHILDREN if name != "quarantine")
    created = Multi((Create(paths.quarantine(GROUP)),))
    assert requests(driver.answer(LIST_GROUP, Children(present))) == [created]
    assert requests(driver.answer(created, Done())) == [LIST_GROUP]


def test_a_new_group_is_created_with_what_is_missing_above_it() -> None:
    driver = Driver()
    driver.step(Polled(CONSUMER, 5))
    driver.connect()
    driver.answer(LIST_GROUP, Refused(Refusal.NO_NODE))
    driver.answer(ListChildren("/"), Children(()))
    driver.answer(ListChildren(paths.CONSUMERS), Refused(Refusal.NO_NODE))
    effects = driver.answer(ListChildren(paths.GROUPS), Refused(Refusal.NO_NODE))
    below = [f"{paths.group(GROUP)}/{name}" for name in paths.GROUP_CHILDREN]
    expected = Multi(tuple(Create(path) for path in [paths.CONSUMERS, paths.GROUPS, paths.group(GROUP), *below]))
    assert requests(effects) == [expected]
    # somebody else was faster: look again
    assert requests(driver.answer(expected, Refused(Refusal.NODE_EXISTS, 0))) == [LIST_GROUP]


def test_a_missing_chroot_is_told_to_the_application() -> None:
    driver = Driver()
    driver.step(Polled(CONSUMER, 5))
    driver.connect()
    driver.answer(LIST_GROUP, Refused(Refusal.NO_NODE))
    for path in ("/", paths.CONSUMERS):
        driver.answer(ListChildren(path), Refused(Refusal.NO_NODE))
    effects = driver.answer(ListChildren(paths.GROUPS), Refused(Refusal.NO_NODE))
    (failed,) = of_type(effects, Failed)
    assert isinstance(failed.error, ChrootMissingError)
    assert effects[-2:] == [CloseSession(), BecameOut()]


def test_no_zookeeper_is_told_once_and_then_the_next_poll_tries_again() -> None:
    driver = Driver()
    driver.step(Polled(CONSUMER, 5))
    assert driver.machine.wake_at_ms == driver.now_ms + 10_000
    driver.now_ms += 10_000
    effects = driver.step(Tick())
    (failed,) = of_type(effects, Failed)
    assert isinstance(failed.error, ZooKeeperUnavailableError)
    assert driver.step(Polled("c-2", 5)) == [OpenSession()]


def test_a_session_that_cannot_be_opened_is_tried_again_after_pauses_that_grow() -> None:
    """Its files may be replaced at the moment, or descriptors may be missing."""
    driver = Driver()
    assert driver.step(Polled(CONSUMER, 5)) == [OpenSession()]
    error = ConsumerError("no session")
    for pause_ms in (100, 200, 400):
        assert of_type(driver.step(NotOpened(error)), Failed) == [Failed(error)]
        assert driver.step(Polled(CONSUMER, 5)) == []
        assert driver.machine.wake_at_ms == driver.now_ms + pause_ms
        driver.now_ms += pause_ms
        assert driver.step(Tick()) == [OpenSession()]
    driver.connect()
    assert driver.step(NotOpened(error)) == []  # of a former try


def test_who_waits_before_the_next_try_is_not_told_that_no_zookeeper_answered() -> None:
    """In `StateMachine._begin_joining`, count the time for an answer from the poll: pauses grow above it."""
    driver, error = Driver(), ConsumerError("the password's file cannot be read")
    driver.step(Polled(CONSUMER, 5))
    for _ in range(10):
        assert of_type(driver.step(NotOpened(error)), Failed) == [Failed(error)]
        effects = driver.step(Polled(CONSUMER, 5))
        while OpenSession() not in effects:
            assert of_type(effects, Failed) == []
            assert driver.machine.wake_at_ms is not None
            driver.now_ms = driver.machine.wake_at_ms
            effects = driver.step(Tick())
    driver.now_ms += 10_000
    (failed,) = of_type(driver.step(Tick()), Failed)
    assert isinstance(failed.error, ZooKeeperUnavailableError)


def test_a_refused_registration_is_tried_again_after_pauses_that_grow() -> None:
    """However soon the application polls again. In `StateMachine._begin_joining`, open the session at once."""
    driver = registering()
    for pause_ms in (100, 200, 400):
        assert of_type(driver.answer(REGISTER, Refused(Refusal.NO_AUTH, 1)), Failed)
        assert driver.step(Polled(CONSUMER, 5)) == []
        assert driver.machine.wake_at_ms == driver.now_ms + pause_ms
        driver.now_ms += pause_ms
        assert driver.step(Tick()) == [OpenSession()]
        driver.connect()
        driver.answer(LIST_GROUP, ALL_CHILDREN)
    driver.answer(REGISTER, Done())
    assert driver.machine._rejoin_pause.refused_count == 0


def test_rule_14_a_retried_registration_keeps_its_name_and_finds_its_own_node() -> None:
    driver = registering()
    driver.break_connection()
    assert requests(driver.connect()) == [LIST_GROUP]
    assert requests(driver.answer(LIST_GROUP, ALL_CHILDREN)) == [REGISTER]
    look = Get(paths.ids(GROUP, CONSUMER))
    assert requests(driver.answer(REGISTER, Refused(Refusal.NODE_EXISTS, 0))) == [look]
    effects = driver.answer(look, content(b"", owner=SESSION))
    assert driver.machine.state is State.ACTIVE
    # it is not known when the registration was written, so nothing is emitted before a renewal
    assert requests(effects) == [RENEWAL, WATCH_CHANNEL, LIST_CHANNEL]
    assert of_type(effects, EmitUntil) == []


def test_rule_14_a_name_that_another_session_has_is_refused() -> None:
    driver = registering()
    driver.answer(REGISTER, Refused(Refusal.NODE_EXISTS, 0))
    effects = driver.answer(Get(paths.ids(GROUP, CONSUMER)), content(b"", owner=SESSION + 1))
    assert len(of_type(effects, Failed)) == 1
    assert driver.machine.state is State.OUT


def test_a_session_lost_while_registering_needs_a_new_name() -> None:
    driver = registering()
    effects = driver.step(Lost())
    assert effects[-2:] == [CloseSession(), BecameOut()]
    driver.step(Polled("c-2", 5))
    driver.step(Connected(SESSION + 1, SESSION_TIMEOUT_MS))
    (register,) = requests(driver.answer(LIST_GROUP, ALL_CHILDREN))
    assert isinstance(register, Multi)
    assert register.operations[0] == Create(paths.channel(GROUP, "c-2"))


def test_the_next_session_of_a_closed_client_is_ignored() -> None:
    """Without the check in `_session_changed`: the application's next session counts as another one, and is not used.

    The client connects again by itself; a process that was suspended may handle both events at once.
    """
    driver = registering()
    driver.step(Lost())
    assert driver.step(Connected(SESSION + 1, SESSION_TIMEOUT_MS)) == []
    driver.step(Polled("c-2", 5))
    assert requests(driver.step(Connected(SESSION + 2, SESSION_TIMEOUT_MS))) == [LIST_GROUP]


def test_answers_to_an_earlier_life_are_ignored() -> None:
    driver = registering()
    (call_id,) = driver.waiting
    driver.step(Lost())
    assert driver.step(Replied(call_id, Done())) == []
    assert not of_type(driver.step(Polled("c-2", 5)), Request)


def test_what_was_asked_before_the_connection_broke_is_not_waited_for() -> None:
    driver = registering()
    (call_id,) = driver.waiting
    driver.step(Suspended())
    assert requests(driver.connect()) == [LIST_GROUP]
    assert driver.step(Replied(call_id, Refused(Refusal.CONNECTION_LOST))) == []


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (Refused(Refusal.NO_AUTH, 1), f"{paths.ids(GROUP, CONSUMER)}: no permission (CREATE of its parent)"),
        (Refused(Refusal.QUOTA_EXCEEDED, 0), f"{CHANNEL}: quota exceeded"),
        (Refused(Refusal.MARSHALLING), "marshalling error"),
    ],
)
def test_a_refused_registration_names_the_path_and_the_missing_right(reply: Refused, why: str) -> None:
    (failed,) = of_type(registering().answer_write(reply), Failed)
    assert str(failed.error) == f"ZooKeeper refused to register {CONSUMER} in group {GROUP}: {why}"


def test_a_group_that_may_not_be_listed_is_named() -> None:
    driver = Driver()
    driver.step(Polled(CONSUMER, 5))
    driver.connect()
    (failed,) = of_type(driver.answer(LIST_GROUP, Refused(Refusal.NO_AUTH)), Failed)
    assert str(failed.error).endswith(f": {paths.group(GROUP)}: no permission (READ)")


def test_a_root_that_may_not_be_listed_is_not_taken_for_a_missing_chroot() -> None:
    driver = Driver()
    driver.step(Polled(CONSUMER, 5))
    driver.connect()
    driver.answer(LIST_GROUP, Refused(Refusal.NO_NODE))
    for path in ("/", paths.CONSUMERS):
        driver.answer(ListChildren(path), Refused(Refusal.NO_AUTH))
    (created,) = requests(driver.answer(ListChildren(paths.GROUPS), Refused(Refusal.NO_NODE)))
    assert isinstance(created, Multi)
    assert created.operations[:2] == (Create(paths.GROUPS), Create(paths.group(GROUP)))


def test_a_group_that_is_deleted_again_and_again_is_not_created_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "MAX_GROUP_CREATIONS", 3)
    driver = Driver()
    driver.step(Polled(CONSUMER, 5))
    driver.connect()
    present = tuple(name for name in paths.GROUP_CHILDREN if name != "quarantine")
    created = Multi((Create(paths.quarantine(GROUP)),))
    for _ in range(2):
        assert requests(driver.answer(LIST_GROUP, Children(present))) == [created]
        assert requests(driver.answer(created, Refused(Refusal.NO_NODE, 0))) == [LIST_GROUP]
    driver.answer(LIST_GROUP, Children(present))
    (failed,) = of_type(driver.answer(created, Refused(Refusal.NO_NODE, 0)), Failed)
    assert str(failed.error).startswith(f"ZooKeeper refused to register {CONSUMER} in group {GROUP}: ")


def test_a_consumer_waits_for_the_end_of_a_restore_and_says_so_once() -> None:
    """In `Join._group_listed`, go on: it would create nodes beside the restore, which then fails."""
    driver = Driver()
    driver.hides_restore = False
    driver.step(Polled(CONSUMER, 5))
    assert requests(driver.connect()) == [LOOK_AT_RESTORE, LIST_GROUP]
    driver.answer(LOOK_AT_RESTORE, content(b""))
    (said,) = of_type(driver.answer(LIST_GROUP, Refused(Refusal.NO_NODE)), Warn)
    assert said.text == "c-1: waits with joining g, because a restore runs, or was interrupted"
    assert requests(driver.step(Watched("/other", children=False))) == []
    for again in (Watched(paths.RESTORE, children=False), Connected(SESSION, SESSION_TIMEOUT_MS)):
        assert requests(driver.step(again)) == [LOOK_AT_RESTORE, LIST_GROUP]
        driver.answer(LOOK_AT_RESTORE, content(b""))
        assert driver.answer(LIST_GROUP, ALL_CHILDREN) == []
    driver.break_connection()
    assert driver.step(Watched(paths.RESTORE, children=False)) == []
    driver.connect()
    driver.answer(LOOK_AT_RESTORE, Refused(Refusal.NO_NODE))
    assert requests(driver.answer(LIST_GROUP, ALL_CHILDREN)) == [REGISTER]


def test_a_consumer_that_waits_for_a_restore_can_be_closed() -> None:
    driver = Driver()
    driver.hides_restore = False
    driver.step(Polled(CONSUMER, 5))
    driver.connect()
    driver.answer(LOOK_AT_RESTORE, content(b""))
    driver.answer(LIST_GROUP, ALL_CHILDREN)
    assert Closed() in driver.step(CloseRequested())
    assert driver.step(Watched(paths.RESTORE, children=False)) == []


def test_a_restore_that_ends_before_the_group_is_listed_is_not_waited_for() -> None:
    """In `Join.handle_watched`, wait for the list: the only event is dropped, and the consumer waits for ever."""
    driver = Driver()
    driver.hides_restore = False
    driver.step(Polled(CONSUMER, 5))
    driver.connect()
    driver.answer(LOOK_AT_RESTORE, content(b""))
    driver.waiting.clear()  # the list's reply comes later, and is dropped
    assert requests(driver.step(Watched(paths.RESTORE, children=False))) == [LOOK_AT_RESTORE, LIST_GROUP]
    assert driver.step(Watched(paths.RESTORE, children=False)) == []  # of an earlier watch
    driver.answer(LOOK_AT_RESTORE, Refused(Refusal.NO_NODE))
    assert requests(driver.answer(LIST_GROUP, ALL_CHILDREN)) == [REGISTER]
