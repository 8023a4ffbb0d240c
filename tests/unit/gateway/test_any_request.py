"""Any request that can be decoded, however senseless, is answered in the end, and its group goes on.

Requests are drawn from Kafka's definitions, with names that hit the groups and members of the test more often than
chance would.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.classic_consumer import subscription
from tests.support.group_coordinator import SESSION_MS, Coordinator
from tests.support.kip848_group import coordinator_with, topic_id
from tests.unit.kafka_protocol.random_messages import fields_of
from zkrebalancer.gateway import translation
from zkrebalancer.gateway.group_requests import BY_MACHINE, COMMITS
from zkrebalancer.group_protocol import requests
from zkrebalancer.group_protocol.settings import GroupProtocolSettings
from zkrebalancer.kafka_protocol import codec
from zkrebalancer.kafka_protocol.schema import message

KINDS: dict[str, type[requests.Request]] = {**BY_MACHINE, **COMMITS}
FORMS = [
    (name, version)
    for name in KINDS
    for version in range(message(f"{name}Request").versions.first, message(f"{name}Request").versions.last + 1)
]
NAMES = st.sampled_from(["", "a", "b", "\0", "x" * 200])
MEMBER_IDS = st.sampled_from(["", "c-1", "c-2", "x"])  # a coordinator of tests makes ids of its tickets
EPOCHS = st.integers(-2, 2) | st.sampled_from([0, 0, -(2**31), 2**31 - 1])
TIMEOUTS = st.sampled_from([SESSION_MS, 60_000, 0, -1, 2**31 - 1])
LIKELY: dict[str, st.SearchStrategy[Any]] = {
    "group_id": NAMES,
    "member_id": MEMBER_IDS,
    "group_instance_id": st.none() | NAMES,
    "instance_id": st.none() | NAMES,
    "generation_id": EPOCHS,
    "member_epoch": EPOCHS,
    "generation_id_or_member_epoch": EPOCHS,
    "session_timeout_ms": TIMEOUTS,
    "rebalance_timeout_ms": TIMEOUTS,
    "protocol_type": st.sampled_from(["consumer", "connect", ""]),
    "subscribed_topic_names": st.none() | st.lists(st.sampled_from(["t", "u", "", "__t"]), max_size=3),
    "subscribed_topic_regex": st.none() | st.sampled_from(["", "t", ".*", "(", "(?=t)"]),
    "server_assignor": st.none() | st.sampled_from(["", "range", "uniform", "none"]),
    "rack_id": st.none() | NAMES,
    "topic_partitions": st.none()
    | st.lists(
        st.fixed_dictionaries(
            {
                "topic_id": st.sampled_from([topic_id(1), topic_id(9)]),
                "partitions": st.lists(st.integers(-1, 5) | st.just(2**31 - 1), max_size=4),
            }
        ),
        max_size=2,
    ),
    "protocols": st.lists(
        st.fixed_dictionaries(
            {
                "name": st.sampled_from(["range", "sticky", ""]),
                "metadata": st.binary(max_size=8)
                | st.sets(st.integers(-1, 5)).map(lambda owned: subscription(frozenset(owned))),
            }
        ),
        max_size=3,
    ),
}

SENSIBLE: dict[str, Any] = {
    "group_id": "a",
    "group_instance_id": None,
    "instance_id": None,
    "session_timeout_ms": SESSION_MS,
    "rebalance_timeout_ms": 60_000,
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": subscription(frozenset())}],
    "subscribed_topic_names": ["t"],
    "subscribed_topic_regex": None,
    "server_assignor": None,
    "rack_id": None,
    "topic_partitions": [],
}

Sent = tuple[int, str, int, bytes]  # milliseconds before it, the name, the version, the content


@st.composite
def some_requests(draw: st.DrawFn) -> list[Sent]:
    """Return requests as they arrive, each with the time that passes before."""
    drawn = []
    for _ in range(draw(st.integers(1, 12))):
        name, version = draw(st.sampled_from(FORMS))
        here = message(f"{name}Request")
        fields = draw(fields_of(here, version))
        known = [field for field in here.fields if field.name in fields and field.name in LIKELY]
        odd = draw(st.sampled_from([*known, None])) if draw(st.booleans()) else None
        for field in known:
            likely = LIKELY[field.name]
            value = draw(
                likely if odd is field else st.just(SENSIBLE[field.name]) if field.name in SENSIBLE else likely
            )
            fields[field.name] = fields[field.name] if value is None and version not in field.nullable else value
        pause_ms = draw(st.sampled_from([0, 0, 3_000, SESSION_MS]))
        drawn.append((pause_ms, name, version, codec.encode(f"{name}Request", version, fields)))
    return drawn


def send(coordinator: Coordinator, pause_ms: int, name: str, version: int, content: bytes) -> tuple[str, int, int]:
    """Send a request as the gateway does, and return what is needed to answer it."""
    coordinator.pass_time(pause_ms)
    fields = codec.decode(f"{name}Request", version, content)
    if name == "LeaveGroup":
        return name, version, coordinator.send(translation.leave_group(version, fields), version)
    return name, version, coordinator.send(translation.build(KINDS[name], fields), version)


@pytest.mark.parametrize("is_central", [False, True])
@given(drawn=some_requests(), is_crash=st.booleans())
def test_any_request_is_answered_and_no_group_fails(*, drawn: list[Sent], is_crash: bool, is_central: bool) -> None:
    """A group that fails ends the test (`Coordinator.failures`)."""
    coordinator = coordinator_with({"t": 4, "u": 1}, GroupProtocolSettings(assigns_centrally=is_central))
    sent = [send(coordinator, *one) for one in drawn]
    if is_crash:
        coordinator.crash()  # what is stored can be read
    coordinator.pass_time(2 * coordinator.settings.new_member_join_timeout_ms)
    for name, version, ticket in sent:
        if ticket not in coordinator.asked:
            continue  # it waited when the coordinator crashed
        answer = coordinator.answers[ticket]
        if name in COMMITS:
            continue
        fields = translation.fields_of(answer)
        fields = translation.join_group_answer(version, fields) if name == "JoinGroup" else fields
        codec.encode(f"{name}Response", version, fields)
