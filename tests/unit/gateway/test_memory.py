"""How much memory connections use: of clients that have not logged in, that send slowly, or that do not read."""

from __future__ import annotations

from dataclasses import replace
from socket import SHUT_RDWR
from types import SimpleNamespace
from typing import Any, cast

import gevent
import pytest

from tests.unit.gateway.wire import ANYBODY, LIST_OFFSETS, WAIT_S, Open, Wire, describe_all, member
from zkrebalancer.gateway import connection, room
from zkrebalancer.gateway.frames import FIRST_PIECE_BYTES, PIECE_BYTES, FrameReader, framed, size_of
from zkrebalancer.gateway.group_requests import GroupRequests
from zkrebalancer.gateway.groups import Groups
from zkrebalancer.gateway.lanes import OffsetStore
from zkrebalancer.gateway.links import KEYS
from zkrebalancer.gateway.metrics import Metrics
from zkrebalancer.gateway.rights import Rights
from zkrebalancer.gateway.room import MAX_SMALL_BYTES, Arrived
from zkrebalancer.group_protocol.answers import JoinGroupAnswer, LeaveGroupAnswer, SyncGroupAnswer
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.kafka_protocol import codec
from zkrebalancer.kafka_protocol.codec import Header
from zkrebalancer.kafka_protocol.errors import FrameError

BEAT = codec.encode("HeartbeatRequest", 3, {"group_id": "mine", "member_id": "m"})
LARGE_BEGIN = (1 << 20).to_bytes(4, "big") + codec.encode_header(Header(KEYS["Heartbeat"], 3, 5, "c"))


@pytest.mark.parametrize("has_logged_in", [False, True])
def test_a_large_request_is_read_only_from_a_client_that_has_logged_in(
    connect: Open, monkeypatch: pytest.MonkeyPatch, *, has_logged_in: bool
) -> None:
    """In `Connection._handle_here`, do not require it: anybody could fill the memory with beginnings of requests."""
    monkeypatch.setattr(connection, "FIRST_PIECE_BYTES", 10)
    monkeypatch.setattr(connection, "MAX_SMALL_BYTES", 10)
    asked: list[int] = []

    def broker(header: Header, content: bytes) -> bytes | None:
        asked.append(header.api_key)
        if header.api_key != KEYS["Metadata"]:
            return member(header, content)
        return b"\0" + codec.encode("MetadataResponse", 9, {"brokers": [], "topics": []}) if has_logged_in else None

    wire = connect(broker, asks_for_rights=True)
    if not has_logged_in:
        wire.client.sendall(LARGE_BEGIN)
        assert wire.received() == b""
        wire.served.get(timeout=WAIT_S)
        assert asked == [KEYS["Metadata"]]
        return
    assert [wire.heartbeat()["error_code"] for _ in range(3)] == [0, 0, 0]
    assert asked.count(KEYS["Metadata"]) == 1


def test_large_requests_have_limited_room_together(connect: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Room.hold`, count nothing, or never give the room back."""
    monkeypatch.setattr(connection, "MAX_SMALL_BYTES", 10)
    monkeypatch.setattr(room, "MAX_LARGE_BYTES", 1 << 20)
    wire, other = connect(member), connect(member)
    other.desk.room = wire.desk.room
    other.client.sendall(LARGE_BEGIN)
    while not wire.desk.room._used:
        gevent.sleep(0)
    wire.send(KEYS["Heartbeat"], 3, BEAT)
    assert wire.received() == b""
    assert [text.partition(" of ")[0] for text in wire.desk.complaints] == ["no room for a request"]
    other.client.shutdown(SHUT_RDWR)
    other.served.get(timeout=WAIT_S)
    again = connect(member)
    again.desk.room = wire.desk.room
    assert [again.heartbeat()["error_code"] for _ in range(3)] == [0, 0, 0]
    assert wire.desk.room._used == 0


def test_a_large_request_that_does_not_arrive_uses_room_for_a_limited_time(
    connect: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `Connection._handle_here`, wait as long as bytes arrive: a few clients could use up the room for ever."""
    monkeypatch.setattr(connection, "MAX_ARRIVAL_S", 0.05)
    wire = connect(member)
    wire.client.sendall(LARGE_BEGIN)
    assert wire.received() == b""
    wire.served.get(timeout=WAIT_S)
    assert wire.desk.room._used == 0


@pytest.fixture
def large_answers(connect: Open, monkeypatch: pytest.MonkeyPatch) -> list[Wire]:
    """Two clients that ask, and do not read their answers of 8 MiB; there is room for one."""
    monkeypatch.setattr(room, "MAX_LARGE_BYTES", 12 << 20)
    wires = [connect(member), connect(member)]
    for wire in wires:
        wire.desk.room = wires[0].desk.room
        monkeypatch.setattr(wire.desk, "answer", lambda *_, **_more: bytes(8 << 20))
        wire.send(KEYS["Heartbeat"], 3, BEAT)
        with gevent.Timeout(WAIT_S):
            while not wire.desk.room._used:
                gevent.sleep(0)
    return wires


def test_large_answers_have_limited_room_together(large_answers: list[Wire]) -> None:
    """In `Connection._send_whole`, hold no room: 20,000 clients that do not read may have MBs each."""
    wire, other = large_answers
    other.served.get(timeout=WAIT_S)
    assert [text.partition(" of ")[0] for text in other.desk.complaints] == ["no room for an answer"]
    assert len(wire.received()) > 8 << 20
    gevent.sleep(0)
    assert (wire.desk.room._used, wire.desk.complaints) == (0, [])


def test_a_large_answer_that_is_not_read_uses_room_for_a_limited_time(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """In `Connection._send_whole`, wait for as long as for a small one: the room is used up for minutes."""
    monkeypatch.setattr(connection, "MAX_ARRIVAL_S", 0.05)
    wire, _other = request.getfixturevalue("large_answers")
    wire.served.get(timeout=WAIT_S)
    assert wire.desk.room._used == 0


def test_little_is_read_at_once_from_a_client_that_has_not_logged_in(
    connect: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `Connection`, begin with PIECE_BYTES: 20,000 strangers could make it hold 5 GB. A login may have any size."""
    at_once: list[int] = []
    pass_on = FrameReader.pass_on

    def noted(self: FrameReader, *arguments: Any) -> None:
        at_once.append(self.piece_bytes)
        pass_on(self, *arguments)

    monkeypatch.setattr(FrameReader, "pass_on", noted)
    wire = connect(lambda _header, content: content, asks_for_rights=True)
    token = bytes(100_000)
    for key, version in ((KEYS["SaslHandshake"], 1), (KEYS["SaslAuthenticate"], 0), (LIST_OFFSETS, 1)):
        wire.send(key, version, token)
        assert wire.received()[4:] == token
    wire.send(LIST_OFFSETS, 1, token)
    assert wire.received()[4:] == token
    assert at_once == [FIRST_PIECE_BYTES] * 5 + [PIECE_BYTES] * 3


def test_a_request_for_versions_is_small(connect: Open) -> None:
    """In `Connection._handle`, read it whole: it needs no login, so anybody could fill the memory."""
    wire = connect(lambda _header, _content: None, asks_for_rights=True)
    header = KEYS["ApiVersions"].to_bytes(2) + (99).to_bytes(2) + (5).to_bytes(4)
    wire.client.sendall(size_of(FIRST_PIECE_BYTES + 1) + header)
    assert wire.received() == b""
    wire.served.get(timeout=WAIT_S)


@pytest.mark.parametrize(("key", "version"), [(KEYS["Heartbeat"], 3), (KEYS["Produce"], 9)])
def test_what_has_to_be_read_whole_is_small_before_a_login(connect: Open, key: int, version: int) -> None:
    asked: list[int] = []
    wire = connect(lambda header, _content: asked.append(header.api_key), asks_for_rights=True)
    wire.client.sendall(size_of(FIRST_PIECE_BYTES + 1) + codec.encode_header(Header(key, version, 5, "c")))
    assert wire.received() == b""
    wire.served.get(timeout=WAIT_S)
    assert asked == [KEYS["Metadata"]]


@pytest.mark.parametrize("count", [2, 800])
def test_the_beginning_of_an_answer_may_name_many_brokers(connect: Open, count: int) -> None:
    """In `Connection._pass_metadata_on`, read no more than usual: clients of large clusters would be cut off."""
    brokers = [{"node_id": number, "host": "h" * 30, "port": 1} for number in range(count)]
    answer = {"brokers": brokers, "topics": [{"name": "t" * 200, "partitions": []} for _ in range(1_000)]}
    wire = connect(lambda _header, _content: b"\0" + codec.encode("MetadataResponse", 9, answer))
    wire.send(KEYS["Metadata"], 9, codec.encode("MetadataRequest", 9, {"topics": None}))
    found = codec.decode("MetadataResponse", 9, wire.received()[5:])
    assert (found["brokers"], len(found["topics"])) == ([], 1_000)
    assert (wire.desk.room.used, wire.desk.complaints) == (0, [])


def test_an_answer_of_a_broker_that_has_to_be_read_whole_needs_room(
    connect: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `Connection._pass_answer_on`, hold none: each connection may ask for 16 MiB."""
    monkeypatch.setattr(room, "MAX_LARGE_BYTES", 100_000)
    clusters = {"brokers": [{"broker_id": number, "host": "h" * 200, "port": 1} for number in range(1_000)]}
    wire = connect(lambda _header, _content: b"\0" + codec.encode("DescribeClusterResponse", 0, clusters))
    wire.send(KEYS["DescribeCluster"], 0, codec.encode("DescribeClusterRequest", 0, {}))
    assert wire.received() == b""
    wire.served.get(timeout=WAIT_S)
    assert [text.partition(" of ")[0] for text in wire.desk.complaints] == ["no room for an answer"]


def test_connections_share_the_memory_for_pieces(connect: Open) -> None:
    """In `Connection`, give a reader memory of its own: the limit of all would be one for each."""
    used: list[int] = []

    def broker(_header: Header, content: bytes) -> bytes:
        return content

    wire = connect(broker)
    pass_on = FrameReader.pass_on

    def noted(self: FrameReader, count: int, send: Any, before: bytes = b"") -> None:
        def note(piece: bytes) -> None:
            used.append(wire.desk.room.pieces.used)
            send(piece)

        pass_on(self, count, note, before)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FrameReader, "pass_on", noted)
        wire.send(LIST_OFFSETS, 1, bytes(100_000))
        assert len(wire.received()) > 100_000
    assert len([one for one in used if one]) >= 2  # in both directions


MANY = 1_000
EVERYTHING = SimpleNamespace(groups=lambda _right, names: set(names), topics=lambda _right, names, _group: set(names))
RIGHTS = cast("Rights", EVERYTHING)
OFFSET_FETCH = codec.encode(
    "OffsetFetchRequest", 8, {"groups": [{"group_id": "", "topics": None} for _ in range(MANY)]}
)


def test_a_decoded_request_has_room_or_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Room.decoded`, count its bytes: an element may have three in the request, and half a kilobyte then."""
    one = room.Room()
    monkeypatch.setattr(room, "MAX_LARGE_BYTES", MANY * room.ELEMENT_BYTES)
    header = Header(KEYS["OffsetFetch"], 8, 1, "c")
    with one.decoded("OffsetFetch", 8, OFFSET_FETCH, None) as fields:
        assert (len(fields["groups"]), one.used) == (MANY, MANY * room.ELEMENT_BYTES)
        groups = GroupRequests(cast("Groups", None), cast("OffsetStore", None), Metrics(), one)
        with pytest.raises(FrameError, match="no room for a decoded request"):
            groups.answer(Arrived(header, OFFSET_FETCH), ANYBODY)
        assert one.used == MANY * room.ELEMENT_BYTES
    assert one.used == 0


@pytest.mark.parametrize("has_rights", [False, True])
def test_a_request_keeps_its_room_until_it_is_answered(*, has_rights: bool) -> None:
    """In `GroupRequests.answer`, give it back before: a join or a commit waits, and many of them use up the memory.

    Or decode it once more when the client has rights, and use room for both.
    """
    one = room.Room()
    members = [{"member_id": str(number)} for number in range(MANY)]
    content = codec.encode("LeaveGroupRequest", 5, {"members": members})
    waiting: list[Any] = []
    play = SimpleNamespace(holds=lambda _group: False, receive=lambda *given: waiting.append(given[-1]))
    groups = GroupRequests(cast("Groups", play), cast("OffsetStore", None), Metrics(), one)
    header = Header(KEYS["LeaveGroup"], 5, 1, "c")
    rights = RIGHTS if has_rights else None
    answering = gevent.spawn(groups.answer, Arrived(header, content), replace(ANYBODY, rights=rights))
    while not waiting:
        gevent.sleep(0)
    assert one.used == MANY * room.ELEMENT_BYTES
    waiting.pop()(LeaveGroupAnswer(ErrorCode.NONE))
    answering.get(timeout=WAIT_S)
    assert one.used == 0


@pytest.mark.parametrize("has_rights", [False, True])
@pytest.mark.parametrize(
    ("name", "fields", "answer"),
    [
        ("JoinGroup", {"protocols": [{"name": "range"}] * 100}, JoinGroupAnswer(ErrorCode.NONE, "m")),
        ("SyncGroup", {"assignments": [{"member_id": "m"}] * MANY}, SyncGroupAnswer(ErrorCode.NONE)),
    ],
    ids=["join", "sync"],
)
def test_a_request_that_waits_for_other_members_uses_no_room(
    name: str, fields: dict[str, Any], answer: Any, *, has_rights: bool
) -> None:
    """In `GroupRequests._ask_machine`, hold it: a few clients whose leader never assigns keep all others out."""
    one = room.Room()
    waiting: list[Any] = []
    play = SimpleNamespace(holds=lambda _group: False, receive=lambda *given: waiting.append(given[-1]))
    store = SimpleNamespace(may_be_elsewhere=lambda _group: False)
    groups = GroupRequests(cast("Groups", play), cast("OffsetStore", store), Metrics(), one)
    arrived = Arrived(Header(KEYS[name], 5, 1, "c"), codec.encode(f"{name}Request", 5, fields))
    arrived.held.enter_context(one.hold(1_000_000, "a request"))
    rights = RIGHTS if has_rights else None
    answering = gevent.spawn(groups.answer, arrived, replace(ANYBODY, rights=rights))
    while not waiting:
        gevent.sleep(0)
    assert (one.used, arrived.content) == (0, b"")
    waiting.pop()(answer)
    assert codec.decode(f"{name}Response", 5, answering.get(timeout=WAIT_S))["error_code"] == ErrorCode.NONE


def test_a_search_for_many_coordinators_needs_room(connect: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Connection._find_coordinator`, decode it without room."""
    used: list[int] = []
    wire = connect(member)

    def coordinators(_groups: list[str]) -> dict[str, Any]:
        used.append(wire.desk.room.used)
        return {}

    monkeypatch.setattr(wire.desk, "coordinators", coordinators)
    content = codec.encode("FindCoordinatorRequest", 4, {"coordinator_keys": ["g"] * MANY})
    wire.send(KEYS["FindCoordinator"], 4, content)
    assert wire.received()
    assert used == [MANY * room.ELEMENT_BYTES]


def test_one_answer_about_rights_is_decoded_at_a_time(connect: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Room.decode_answer`, decode at once: with logins, all members of a large group ask when a gateway starts.

    All partitions of their topics were in memory together, and took so long that the gateway lost its lease.
    """
    wire = connect(describe_all, asks_for_rights=True)
    one, found = wire.desk.room, list[tuple[bool, bool]]()
    before = MANY * room.ELEMENT_BYTES  # of the client's request
    pause = "zkrebalancer.gateway.connection.let_others_run"
    monkeypatch.setattr(pause, lambda: found.append((one._decoding.locked(), one.used > before)))
    names = [f"group-{number}" for number in range(MANY)]
    wire.send(KEYS["FindCoordinator"], 4, codec.encode("FindCoordinatorRequest", 4, {"coordinator_keys": names}))
    assert wire.received()
    assert found == [(False, False), (False, False), (True, True), (False, False)]
    with gevent.Timeout(WAIT_S):
        while one.used:
            gevent.sleep(0)


@pytest.mark.parametrize(
    ("name", "version", "content"),
    [
        ("Heartbeat", 3, BEAT),
        ("FindCoordinator", 4, codec.encode("FindCoordinatorRequest", 4, {"coordinator_keys": ["g"] * MANY})),
    ],
    ids=["read", "decoded"],
)
def test_a_request_that_waits_for_the_answers_to_others_uses_no_room(
    connect: Open, monkeypatch: pytest.MonkeyPatch, name: str, version: int, content: bytes
) -> None:
    """In `Connection`, wait only when it has been read or decoded: behind a Fetch of ten minutes, it keeps others out.

    Both requests are there before the broker learns of the first.
    """
    if name == "Heartbeat":
        monkeypatch.setattr(connection, "MAX_SMALL_BYTES", 10)
    done: list[str] = []

    class Noted(room.Room):
        def _take(self, size: int, what: str) -> None:
            done.append("took room")
            super()._take(size, what)

    def broker(_header: Header, _content: bytes) -> bytes:
        done.append("answered")
        return b""

    wire = connect(broker)
    wire.desk.room = Noted()
    monkeypatch.setattr(wire.desk, "coordinators", lambda _groups: {})
    asked = ((LIST_OFFSETS, 1, b""), (KEYS[name], version, content))
    requests = [codec.encode_header(Header(key, number, 5, "c")) + rest for key, number, rest in asked]
    wire.client.sendall(b"".join(map(framed, requests)))
    assert [bool(wire.received()) for _ in range(2)] == [True, True]
    assert done[0] == "answered"
    assert "took room" in done


def test_a_join_offers_a_limited_number_of_protocols() -> None:
    """In `Room.decoded`, let it have as many as others: it may wait for half an hour with them."""
    protocols = [{"name": str(number)} for number in range(101)]
    some, all_of_them = (codec.encode("JoinGroupRequest", 5, {"protocols": protocols[:count]}) for count in (100, 101))
    with room.Room().decoded("JoinGroup", 5, some, None) as fields:
        assert len(fields["protocols"]) == 100
    with pytest.raises(FrameError), room.Room().decoded("JoinGroup", 5, all_of_them, None):
        pass


@pytest.mark.parametrize("topics", [2, 3, 10, 90])
def test_all_elements_of_a_request_are_counted_once(topics: int) -> None:
    """In `Room.decoded`, count those of the third list on wrongly: what stays would use up the room some day."""
    one = room.Room()
    partitions = [{"partition_index": number, "committed_offset": 1} for number in range(1_000)]
    wanted = [{"name": f"t{number}", "partitions": partitions} for number in range(topics)]
    content = codec.encode("OffsetCommitRequest", 8, {"topics": wanted})
    for _ in range(2):
        with one.decoded("OffsetCommit", 8, content, None):
            assert one.used == topics * 1_001 * room.ELEMENT_BYTES
        assert one.used == 0


def test_few_elements_need_no_room() -> None:
    """In `Room.decoded`, count all: a full room would refuse every heartbeat and commit."""
    one = room.Room()
    most = MAX_SMALL_BYTES // room.ELEMENT_BYTES
    for count in (most, most + 1):
        partitions = [{"partition_index": number, "committed_offset": 1} for number in range(count - 1)]
        content = codec.encode("OffsetCommitRequest", 8, {"topics": [{"name": "t", "partitions": partitions}]})
        with one.decoded("OffsetCommit", 8, content, None):
            assert one.used == (count * room.ELEMENT_BYTES if count > most else 0)
