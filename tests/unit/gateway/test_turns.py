"""Long requests leave others their turn."""

from __future__ import annotations

import gevent
import pytest

from tests.unit.gateway.test_group_requests import answered
from tests.unit.gateway.wire import Wire
from zkrebalancer.gateway.links import KEYS
from zkrebalancer.gateway.turns import ITEMS_PER_TURN, in_turns
from zkrebalancer.group_protocol.answers import OffsetCheckAnswer
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.kafka_protocol import codec
from zkrebalancer.kafka_protocol.codec import Header
from zkrebalancer.kafka_protocol.readers import ELEMENTS_PER_TURN

MANY = 5 * ITEMS_PER_TURN


class Other:
    """Something else that the gateway has to do all the time, such as to renew its lease."""

    def __init__(self) -> None:
        self.turns = 0
        self._work = gevent.spawn(self._run)
        gevent.sleep(0)

    def _run(self) -> None:
        while True:
            self.turns += 1
            gevent.sleep(0)

    def stop(self) -> int:
        self._work.kill()
        return self.turns


def test_others_run_between_items() -> None:
    """In `in_turns`, do not pause."""
    other = Other()
    assert list(in_turns(range(MANY))) == [*range(MANY)]
    assert other.stop() >= 5


def test_others_run_while_a_large_request_is_read_and_while_its_answer_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In `GroupRequests.answer`, decode or encode without pauses: 100,000 partitions take a tenth of a second each."""
    partitions = [{"partition_index": number, "committed_offset": 1} for number in range(MANY)]
    pauses: list[int] = []
    monkeypatch.setattr("zkrebalancer.gateway.group_requests.let_others_run", lambda: pauses.append(1))
    offsets = {"topics": [{"name": "t", "partitions": partitions}]}
    answered("OffsetCommit", offsets, OffsetCheckAnswer(ErrorCode.NONE), is_elsewhere=False)
    assert len(pauses) == 2 * MANY // ELEMENTS_PER_TURN


def test_others_run_while_a_client_asks_for_many_coordinators(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Connection._find_coordinator`, or for rights in `_ask`, read or write without pauses."""

    def broker(_header: Header, content: bytes) -> bytes:
        asked = codec.decode("DescribeGroupsRequest", 5, content)["groups"]
        described = [{"group_id": group, "error_code": 0} for group in asked]
        return b"\0" + codec.encode("DescribeGroupsResponse", 5, {"groups": described})

    pauses: list[int] = []
    monkeypatch.setattr("zkrebalancer.gateway.connection.let_others_run", lambda: pauses.append(1))
    many = [f"g{number}" for number in range(2 * ELEMENTS_PER_TURN)]
    wire = Wire(broker, with_tls=False, asks_for_rights=True)
    try:
        wire.send(KEYS["FindCoordinator"], 4, codec.encode("FindCoordinatorRequest", 4, {"coordinator_keys": many}))
        assert len(codec.decode("FindCoordinatorResponse", 4, wire.received()[5:])["coordinators"]) == len(many)
    finally:
        wire.close()
    assert len(pauses) == 4 * 2, "of the request, the question for rights, and both answers"
