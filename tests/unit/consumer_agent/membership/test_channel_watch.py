"""The lasting watch on the own channel: its events name the commands, which then need no list."""

from __future__ import annotations

from consumer_agent.membership.effects import StartFetching, StopEmitting
from consumer_agent.membership.events import Tick
from tests.unit.consumer_agent.membership.driver import (
    CAUSE,
    CHANNEL,
    LEASE_MS,
    LIST_CHANNEL,
    LIST_WITH_WATCH,
    RENEWAL,
    T0,
    WATCH_CHANNEL,
    Driver,
    content,
    of_type,
    offset_path,
    requests,
)
from zkrebalancer.protocol import command
from zkrebalancer.protocol.calls import Children, Done, Get, Refusal, Refused, Watched
from zkrebalancer.protocol.command import StartFetcher

FIRST, SECOND = "command-0000000000", "command-0000000001"
START = command.encode(StartFetcher("start-1", 1, 4, CAUSE, {T0: 0}))


def registered() -> Driver:
    driver = Driver(auto_commit_interval_ms=None)
    driver.register()
    return driver


def changed(name: str) -> Watched:
    return Watched(f"{CHANNEL}/{name}", children=False)


def test_a_command_costs_one_read_and_one_transaction() -> None:
    """In `Member._command_changed`, list the channel after each event."""
    driver = registered()
    assert requests(driver.step(changed(FIRST))) == [Get(f"{CHANNEL}/{FIRST}")]
    assert requests(driver.answer(Get(f"{CHANNEL}/{FIRST}"), content(START))) == [Get(offset_path(T0))]
    driver.answer(Get(offset_path(T0)), content(b"5"))
    assert requests(driver.step(changed(FIRST))) == []  # its own ack has deleted it
    effects = driver.answer_write(Done((1, None)))
    assert requests(effects) == []
    assert of_type(effects, StartFetching) != []
    assert not driver.waiting


def test_the_event_of_the_own_ack_may_come_after_its_reply() -> None:
    driver = registered()
    driver.own({T0: 3})
    assert requests(driver.step(changed(FIRST))) == []


def test_a_command_that_is_deleted_while_it_is_handled_is_looked_for() -> None:
    """In `Member._command_changed`, ignore all events of the present command: a cancelled stop goes on for ever."""
    driver = registered()
    driver.own({T0: 3})
    assert of_type(driver.stop(None), StopEmitting) != []
    assert requests(driver.step(changed(SECOND))) == [LIST_CHANNEL]


def test_a_command_that_is_deleted_before_it_is_read_is_forgotten() -> None:
    driver = registered()
    driver.step(changed(FIRST))
    assert requests(driver.step(changed(FIRST))) == [LIST_CHANNEL]
    driver.answer(Get(f"{CHANNEL}/{FIRST}"), Refused(Refusal.NO_NODE))
    driver.answer(LIST_CHANNEL, Children(()))
    assert requests(driver.step(changed(SECOND))) == [Get(f"{CHANNEL}/{SECOND}")]


def test_commands_are_read_in_their_order() -> None:
    """In `Channel.announced`, put the name in front."""
    driver = registered()
    driver.step(changed(FIRST))
    assert requests(driver.step(changed(SECOND))) == []
    assert driver.machine.member is not None
    assert driver.machine.member.channel.known() == [FIRST, SECOND]


def test_a_waiting_command_that_is_deleted_is_looked_for() -> None:
    """In `Channel.announced`, ask for a list only if the present command has changed."""
    driver = registered()
    driver.step(changed(FIRST))
    driver.step(changed(SECOND))
    assert requests(driver.step(changed(SECOND))) == [LIST_CHANNEL]


def test_an_event_during_a_list_makes_it_be_repeated() -> None:
    """In `Member._command_changed`, ignore that: the older list would seem to show that the command is cancelled."""
    driver = registered()
    driver.now_ms += LEASE_MS // 3
    assert LIST_CHANNEL in requests(driver.step(Tick()))
    assert requests(driver.step(changed(FIRST))) == []
    assert requests(driver.answer(LIST_CHANNEL, Children(()))) == [LIST_CHANNEL]
    assert requests(driver.answer(LIST_CHANNEL, Children((FIRST,)))) == [Get(f"{CHANNEL}/{FIRST}")]


def test_what_others_put_below_the_channel_is_ignored() -> None:
    driver = registered()
    for name in ("note", f"{FIRST}/below", "command-x"):
        assert requests(driver.step(changed(name))) == []


def test_rule_11_each_renewal_lists_the_channel_although_it_is_watched() -> None:
    driver = registered()
    driver.now_ms += LEASE_MS // 3
    assert requests(driver.step(Tick())) == [RENEWAL, LIST_CHANNEL]


def test_the_watch_is_set_again_on_every_connection() -> None:
    driver = registered()
    driver.break_connection()
    assert requests(driver.connect()) == [RENEWAL, WATCH_CHANNEL, LIST_CHANNEL]


def test_a_server_without_lasting_watches_is_asked_once() -> None:
    """In `Member._watching`, keep asking: each connection would cost a refused call and a list."""
    driver = Driver(auto_commit_interval_ms=None)
    driver.register_at_old_server()
    assert requests(driver.step(changed(FIRST))) == []  # such a server sends none
    assert requests(driver.step(Watched(CHANNEL, children=True))) == [LIST_WITH_WATCH, Get(f"{CHANNEL}/{FIRST}")]
    driver.break_connection()
    assert requests(driver.connect()) == [RENEWAL, LIST_WITH_WATCH]


def test_a_watch_that_was_lost_with_its_connection_is_set_again() -> None:
    """In `Member._watching`, take that for a server without lasting watches."""
    driver = registered()
    driver.break_connection()
    driver.connect()
    driver.break_connection()
    assert requests(driver.connect()) == [RENEWAL, WATCH_CHANNEL, LIST_CHANNEL]
