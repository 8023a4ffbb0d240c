"""A command that cannot be read is copied away, and its consumer gives up its session."""

from __future__ import annotations

import base64
import hashlib
import json

import pytest

from consumer_agent.membership.command_channel import MAX_QUARANTINED, MAX_QUARANTINED_BASE64, Channel, quarantine
from consumer_agent.membership.effects import (
    BecameOut,
    CloseSession,
    EmitUntil,
    OpenSession,
    RecordLost,
    RecordQuarantined,
    TellLost,
    Warn,
)
from consumer_agent.membership.events import Polled, Tick
from consumer_agent.membership.state_machine import State
from tests.unit.consumer_agent.membership.driver import CONSUMER, GROUP, T0, Driver, of_type, requests
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Children, Create, Delete, Done, ListChildren, Multi, Refusal, Refused, Replied
from zkrebalancer.protocol.command import MAX_COMMAND_BYTES
from zkrebalancer.protocol.requests import RequestLimit

POISON = b"\xc1 not msgpack"
LIMIT = RequestLimit()
LIST = ListChildren(paths.quarantine(GROUP))


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.register()
    driver.own({T0: 10})
    return driver


def document(write: Multi) -> dict[str, object]:
    (create,) = [operation for operation in write.operations if isinstance(operation, Create)]
    decoded: dict[str, object] = json.loads(create.content)
    return decoded


def test_poison_ends_the_emission_and_goes_into_quarantine_before_the_session_ends(driver: Driver) -> None:
    effects = driver.send(POISON)
    assert len(of_type(effects, RecordQuarantined)) == 1
    assert of_type(effects, RecordLost) == [RecordLost(CONSUMER, 4, frozenset({T0}))]
    assert {EmitUntil(0), TellLost()} < set(effects)
    assert requests(effects) == [LIST]
    (write,) = requests(driver.answer(LIST, Children(())))
    assert isinstance(write, Multi)
    digest = hashlib.sha256(POISON).hexdigest()
    assert write.operations[0].path == paths.quarantine(GROUP, digest)
    assert document(write)["content_base64"] == base64.b64encode(POISON).decode()
    assert document(write)["command"] == "command-0000000001"
    assert str(document(write)["reason"]).startswith("command: ")
    assert driver.answer(write, Done()) == [CloseSession(), BecameOut()]
    assert driver.step(Polled("c-2", 5)) == [OpenSession()]


def test_an_oversized_command_is_poison(driver: Driver) -> None:
    effects = driver.send(b"x" * (MAX_COMMAND_BYTES + 1))
    assert requests(effects) == [LIST]
    assert driver.machine.state is State.RESIGNING


def test_one_line_is_logged(driver: Driver) -> None:
    lines = [warning.text for warning in of_type(driver.send(POISON), Warn)]
    assert sum("quarantine" in line for line in lines) == 1
    assert all("\n" not in line for line in lines)


@pytest.mark.parametrize("refusal", [Refusal.NO_NODE, Refusal.CONNECTION_LOST, Refusal.NODE_EXISTS])
def test_whatever_becomes_of_the_quarantine_the_session_ends(driver: Driver, refusal: Refusal) -> None:
    driver.send(POISON)
    driver.answer(LIST, Children(()))
    assert driver.answer_write(Refused(refusal, 0)) == [CloseSession(), BecameOut()]


def test_the_quarantine_is_not_waited_for_for_ever(driver: Driver) -> None:
    driver.send(POISON)
    assert driver.machine.wake_at_ms is not None
    driver.now_ms = driver.machine.wake_at_ms
    assert driver.step(Tick()) == [CloseSession(), BecameOut()]


def test_no_more_than_a_hundred_are_kept() -> None:
    existing = tuple(f"{number:03d}" for number in range(MAX_QUARANTINED + 5))
    write = quarantine(GROUP, "command-1", POISON, "why", existing, LIMIT)
    deleted = [operation for operation in write.operations if isinstance(operation, Delete)]
    assert len(existing) - len(deleted) + 1 == MAX_QUARANTINED
    assert len(quarantine(GROUP, "command-1", POISON, "why", existing[:99], LIMIT).operations) == 1


def test_the_same_poison_is_kept_once() -> None:
    digest = hashlib.sha256(POISON).hexdigest()
    assert quarantine(GROUP, "command-1", POISON, "why", (digest,), LIMIT).operations == ()


def test_the_largest_node_still_fits() -> None:
    write = quarantine(GROUP, "command-1", b"x" * 1_000_000, "why", (), LIMIT)
    assert len(str(document(write)["content_base64"])) == MAX_QUARANTINED_BASE64
    assert MAX_QUARANTINED_BASE64 % 4 == 0


def test_a_channel_hands_out_each_command_once() -> None:
    channel = Channel()
    names = ("command-0000000002", "command-0000000001")
    channel.listed(names)
    assert channel.begin_next() == "command-0000000001"
    assert channel.begin_next() is None
    assert channel.listed(names)
    channel.finish()
    channel.listed(names)
    assert channel.begin_next() == "command-0000000002"
    assert not channel.listed(())


def test_a_node_whose_name_is_no_sequence_is_no_command() -> None:
    channel = Channel()
    channel.listed(("command-", "command-²", f"command-{'9' * 5_000}", "x", "command-0000000003"))
    assert channel.waiting == ["command-0000000003"]


def test_a_late_answer_about_the_quarantine_does_not_disturb_the_next_registration(driver: Driver) -> None:
    driver.send(POISON)
    (call_id,) = [call_id for call_id, call in driver.waiting.items() if call == LIST]
    assert driver.machine.wake_at_ms is not None
    driver.now_ms = driver.machine.wake_at_ms
    driver.step(Tick())
    driver.step(Polled("c-2", 5))
    driver.connect()
    assert driver.step(Replied(call_id, Refused(Refusal.CONNECTION_LOST))) == []
