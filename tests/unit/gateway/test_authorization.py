"""What a client may not do is refused as Kafka refuses it, and the rest is answered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from tests.unit.gateway.wire import ANYBODY
from zkrebalancer.gateway import authorization, rights
from zkrebalancer.gateway.group_requests import GroupRequests
from zkrebalancer.gateway.groups import Groups
from zkrebalancer.gateway.lanes import OffsetStore
from zkrebalancer.gateway.links import KEYS
from zkrebalancer.gateway.metrics import Metrics
from zkrebalancer.gateway.rights import NOBODY, Right, Rights
from zkrebalancer.gateway.room import Arrived, Room
from zkrebalancer.kafka_protocol import codec
from zkrebalancer.kafka_protocol.codec import Header
from zkrebalancer.kafka_protocol.errors import FrameError

Fields = dict[str, Any]
UNKNOWN_MEMBER = 25


class Broker:
    """Answers a client that may read group `mine` and topic `t`, describe `seen` and `u`, and delete `old`."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ask(self, name: str, version: int, fields: Fields) -> Fields:
        self.asked.append(name)
        codec.encode(f"{name}Request", version, fields)
        if name == "Heartbeat":
            assert fields["member_id"] == NOBODY
            return {"error_code": UNKNOWN_MEMBER if fields["group_id"] == "mine" else 30}
        if name == "OffsetDelete":
            assert fields["topics"] == []
            return {"error_code": 69 if fields["group_id"] == "old" else 30}
        if name == "AddOffsetsToTxn":
            return {"error_code": 49 if fields["transactional_id"] == "mine" else 53}
        if name == "DescribeGroups":
            codes = {"mine": 16, "seen": 0}
            return {"groups": [{"group_id": one, "error_code": codes.get(one, 30)} for one in fields["groups"]]}
        if name == "Metadata":
            return {"topics": [{**one, "error_code": 0 if one["name"] in "tu" else 29} for one in fields["topics"]]}
        assert (name, fields["member_id"], fields["group_id"] in {"mine", "old"}) == ("OffsetCommit", NOBODY, True)
        code = {"t": UNKNOWN_MEMBER}
        return {
            "topics": [
                {"name": one["name"], "partitions": [{"error_code": code.get(one["name"], 29)}]}
                for one in fields["topics"]
            ]
        }


class Client:
    def __init__(self) -> None:
        self.broker = Broker()
        self.went_on: list[Fields] = []
        self._rights = Rights(self.broker.ask)

    def request(self, name: str, version: int, fields: Fields, answered: Fields) -> Fields:
        def go_on(some: Fields) -> Fields:
            self.went_on.append(some)
            return answered

        asked = codec.decode(f"{name}Request", version, codec.encode(f"{name}Request", version, fields))
        found = authorization.answer(name, version, asked, self._rights, go_on)
        return codec.decode(f"{name}Response", version, codec.encode(f"{name}Response", version, found))


@pytest.fixture
def client() -> Client:
    """Return a client that has asked for nothing yet."""
    return Client()


def offsets(*names: str) -> list[Fields]:
    return [{"name": name, "partitions": [{"partition_index": 3, "committed_offset": 7}]} for name in names]


def errors(topics: list[Fields]) -> dict[str, int]:
    return {topic["name"]: topic["partitions"][0]["error_code"] for topic in topics}


@pytest.mark.parametrize(
    ("name", "version"),
    [("JoinGroup", 5), ("SyncGroup", 3), ("Heartbeat", 4), ("LeaveGroup", 2), ("ConsumerGroupHeartbeat", 1)],
)
def test_a_member_needs_to_read_its_group(client: Client, name: str, version: int) -> None:
    assert client.request(name, version, {"group_id": "seen"}, {})["error_code"] == 30
    assert client.went_on == []
    assert client.request(name, version, {"group_id": "mine"}, {"error_code": 7})["error_code"] == 7


def test_a_member_of_kip_848_needs_to_see_its_topics(client: Client) -> None:
    def subscribed(*topics: str) -> int:
        fields = {"group_id": "mine", "subscribed_topic_names": list(topics)}
        return int(client.request("ConsumerGroupHeartbeat", 1, fields, {})["error_code"])

    assert (subscribed("t", "u"), subscribed("t", "x")) == (0, 29)


def test_a_broker_is_asked_for_some_of_many_topics_at_a_time(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Rights._describable_topics`, ask for all at once: an answer of more than 16 MiB ends the connection."""
    monkeypatch.setattr(rights, "TOPICS_AT_ONCE", 2)
    known = Rights(client.broker.ask)
    assert known.topics(Right.DESCRIBE_TOPIC, ["t", "x", "u", "y", "z"], "mine") == {"t", "u"}
    assert client.broker.asked == ["Metadata"] * 3


def test_a_right_that_was_there_is_not_asked_for_until_some_time_has_passed(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_us = [10**9]
    monkeypatch.setattr("zkrebalancer.gateway.rights.clock.steady_us", lambda: now_us[0])
    for group in ("mine", "mine", "seen", "seen"):
        client.request("Heartbeat", 4, {"group_id": group}, {})
    assert client.broker.asked == ["Heartbeat"] * 3  # a refusal is asked for again
    now_us[0] += int(rights.RIGHTS_S * 1e6)
    client.request("Heartbeat", 4, {"group_id": "mine"}, {})
    assert client.broker.asked == ["Heartbeat"] * 4


def test_offsets_of_topics_that_may_not_be_read_are_refused_and_others_committed(client: Client) -> None:
    fields = {"group_id": "mine", "topics": offsets("u", "t")}
    done = {"topics": [{"name": "t", "partitions": [{"partition_index": 3, "error_code": 0}]}]}
    assert errors(client.request("OffsetCommit", 8, fields, done)["topics"]) == {"t": 0, "u": 29}
    assert [topic["name"] for topic in client.went_on[0]["topics"]] == ["t"]
    refused = client.request("OffsetCommit", 8, {"group_id": "seen", "topics": offsets("t")}, done)
    assert (errors(refused["topics"]), len(client.went_on)) == ({"t": 30}, 1)


def test_a_transaction_of_another_is_refused(client: Client) -> None:
    done = {"topics": [{"name": "t", "partitions": [{"partition_index": 3, "error_code": 0}]}]}
    for transaction, code in (("mine", 0), ("other", 53)):
        fields = {"group_id": "mine", "transactional_id": transaction, "topics": offsets("t")}
        assert errors(client.request("TxnOffsetCommit", 3, fields, done)["topics"]) == {"t": code}


def test_offsets_are_deleted_with_that_right(client: Client) -> None:
    topics = [{"name": "t", "partitions": [{"partition_index": 0}]}]
    assert client.request("OffsetDelete", 0, {"group_id": "mine", "topics": topics}, {})["error_code"] == 30
    client.request("OffsetDelete", 0, {"group_id": "old", "topics": topics}, {})
    assert len(client.went_on) == 1


@pytest.mark.parametrize("version", [7, 8])
def test_offsets_are_shown_of_topics_that_may_be_seen(client: Client, version: int) -> None:
    def fetch(group: str, topics: list[str] | None, *answered: str) -> tuple[int, dict[str, int]]:
        asked = None if topics is None else [{"name": name, "partition_indexes": [3]} for name in topics]
        one = {"group_id": group, "topics": asked}
        found = [{"name": name, "partitions": [{"partition_index": 3, "committed_offset": 9}]} for name in answered]
        answer = {"group_id": group, "topics": found}
        shown = client.request("OffsetFetch", version, {**one, "groups": [one]}, {**answer, "groups": [answer]})
        shown = shown["groups"][0] if version == 8 else shown
        return shown["error_code"], {
            topic["name"]: topic["partitions"][0]["committed_offset"] for topic in shown["topics"]
        }

    assert fetch("mine", ["t", "x"], "t") == (0, {"t": 9, "x": -1})
    assert fetch("seen", None, "t", "x") == (0, {"t": 9})
    went_on = len(client.went_on)
    assert fetch("other", ["t"])[0] == 30
    assert len(client.went_on) == went_on


def test_lists_of_groups_are_split(client: Client) -> None:
    found = client.request(
        "DescribeGroups", 5, {"groups": ["other", "seen"]}, {"groups": [{"group_id": "seen", "error_code": 0}]}
    )
    assert {one["group_id"]: one["error_code"] for one in found["groups"]} == {"seen": 0, "other": 30}
    assert client.went_on[0]["groups"] == ["seen"]
    deleted = client.request("DeleteGroups", 2, {"groups_names": ["mine"]}, {})
    assert {one["group_id"]: one["error_code"] for one in deleted["results"]} == {"mine": 30}
    assert len(client.went_on) == 1
    everything = {"groups": [{"group_id": name} for name in ("mine", "other", "seen")]}
    assert [one["group_id"] for one in client.request("ListGroups", 4, {}, everything)["groups"]] == ["mine", "seen"]


def test_groups_are_looked_for_only_after_a_login(client: Client) -> None:
    """In `authorization._listed`, ask the broker only for rights: any client could have all groups listed, for ever."""

    def hang_up(*_question: object) -> Fields:
        raise EOFError

    with pytest.raises(EOFError):
        authorization.answer("ListGroups", 4, {}, Rights(hang_up), client.went_on.append)  # type: ignore[arg-type]
    assert client.went_on == []


def test_bytes_that_are_no_request_are_refused_before_anything_is_asked(client: Client) -> None:
    requests = GroupRequests(cast("Groups", None), cast("OffsetStore", None), Metrics(), Room())
    asking = replace(ANYBODY, rights=Rights(client.broker.ask))
    with pytest.raises(FrameError):
        requests.answer(Arrived(Header(KEYS["Heartbeat"], 4, 1, "c"), b"\xff"), asking)
    assert client.broker.asked == []


@pytest.mark.parametrize("room", [1, 2, 10])
def test_a_right_that_is_remembered_again_uses_no_more_room(
    client: Client, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """In `Rights._remember`, count it anew, or forget others for names that need more than all room."""
    both = 2 * rights.RIGHT_BYTES + len("mine") + len("seen")
    monkeypatch.setattr(rights, "MAX_KEPT_BYTES", room * both)
    known = Rights(client.broker.ask)
    for at_us in (0, 40_000_000, 80_000_000):
        monkeypatch.setattr("zkrebalancer.runtime.clock.steady_us", lambda at_us=at_us: at_us)
        assert known.groups(Right.DESCRIBE_GROUP, ["mine", "seen"]) == {"mine", "seen"}
        assert known._kept_bytes == both
    known._remember(Right.READ_TOPIC, ["x" * 10_000], 90_000_000)
    assert known._kept_bytes == both


def test_a_connection_keeps_a_limited_number_of_rights(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Rights._remember`, keep all, or do not count names: a client may have used 10,000 rights, with 32 kB each."""
    monkeypatch.setattr(rights, "MAX_KEPT_BYTES", 2 * rights.RIGHT_BYTES)
    known = Rights(client.broker.ask)
    for _ in range(2):
        assert known.groups(Right.DESCRIBE_GROUP, ["mine", "seen", "other"]) == {"mine", "seen"}
        assert len(known._until_us) == 1
