"""Joins at a gateway, also those that are refused: what people learn of them."""

from __future__ import annotations

import logging

import gevent
import pytest

from tests.unit.gateway.model_session import ModelSession
from zkrebalancer.gateway.groups import Groups
from zkrebalancer.gateway.membership import Membership
from zkrebalancer.gateway.metrics import Metrics
from zkrebalancer.group_protocol.answers import Answer
from zkrebalancer.group_protocol.consumer_protocol import MAX_METADATA_BYTES
from zkrebalancer.group_protocol.requests import JoinGroupProtocol, JoinGroupRequest
from zkrebalancer.group_protocol.settings import GroupProtocolSettings
from zkrebalancer.protocol.complaints import MAX_BURST, MAX_LINE


def test_a_client_that_is_refused_again_and_again_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """In `Groups._report`, log each line."""
    session = ModelSession()
    Membership(session, "gw", 1).refresh()
    groups, answers = Groups(session, GroupProtocolSettings(), Metrics(), lambda: None, lambda: None), list[Answer]()
    groups.serve(0, [0])
    gevent.sleep(0)
    protocols = (JoinGroupProtocol("p", bytes(MAX_METADATA_BYTES + 1)),)
    caplog.clear()
    caplog.set_level(logging.INFO)
    for host in ("/a", "/a", "/b", "/a"):
        groups.receive(JoinGroupRequest("g", "", 10_000, "consumer", protocols), 9, ("c", host), answers.append)
    assert len(answers) == 4
    assert [text.startswith("group g: a join is refused: its metadata have") for text in caplog.messages] == [True] * 2


def test_a_client_that_forms_any_number_of_groups_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `Groups._report`, log each line whole: a client could cause one of 40 kB with each request."""
    monkeypatch.setattr("zkrebalancer.gateway.groups.now_ms", lambda: 1_000)
    session = ModelSession()
    Membership(session, "gw", 1).refresh()
    groups, answers = Groups(session, GroupProtocolSettings(), Metrics(), lambda: None, lambda: None), list[Answer]()
    groups.serve(0, [0])
    gevent.sleep(0)
    caplog.clear()
    caplog.set_level(logging.INFO)
    for number in range(MAX_BURST + 10):
        request = JoinGroupRequest(f"{number}-{'g' * 2_000}", "", 10_000, "consumer", (JoinGroupProtocol("p", b""),))
        groups.receive(request, 0, ("c", "/a"), answers.append)
    assert [len(text) for text in caplog.messages] == [MAX_LINE] * MAX_BURST
