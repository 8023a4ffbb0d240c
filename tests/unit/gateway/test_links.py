"""The gateway's own connections, to brokers that the test plays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest
from gevent.event import Event
from gevent.server import StreamServer
from gevent.socket import socket

from tests.support.deadlines import WITHIN_S
from zkrebalancer.gateway import dialing
from zkrebalancer.gateway.dialing import Address, Dialer, LinkError
from zkrebalancer.gateway.frames import FrameReader, framed
from zkrebalancer.gateway.links import FORGET_S, KEYS, Link, Links
from zkrebalancer.gateway.sasl import Credentials
from zkrebalancer.gateway.security import Upstream
from zkrebalancer.kafka_protocol import codec
from zkrebalancer.kafka_protocol.schema import apis

Fields = dict[str, Any]
OFFERED = {"api_keys": [{"api_key": key, "min_version": 0, "max_version": 1} for key in KEYS.values()]}
HOST = "127.0.0.1"
SECURED = Dialer(Upstream(None, Credentials("PLAIN", "u", "w")))


class Broker:
    """Gives prepared answers, and records the requests."""

    def __init__(self, answers: dict[str, Fields]) -> None:
        self.answers = {"ApiVersions": OFFERED, **answers}
        self.asked: list[str] = []
        self.goes_on = Event()
        self.goes_on.set()
        self._server = StreamServer((HOST, 0), self._serve)
        self._server.start()

    @property
    def address(self) -> Address:
        return HOST, int(self._server.server_port or 0)

    def _serve(self, client: socket, _where: object) -> None:
        reader = FrameReader(client)
        while (size := reader.next_size()) is not None:
            header, _at = codec.decode_header(reader.take(size))
            name = apis()[header.api_key]
            self.asked.append(name)
            self.goes_on.wait()
            begin = codec.answer_header(header.api_key, header.version, header.correlation_id)
            client.sendall(framed(begin + codec.encode(f"{name}Response", header.version, self.answers[name])))

    def stop(self) -> None:
        self._server.stop(timeout=0)


Play = Callable[..., Broker]


@pytest.fixture
def play() -> Iterator[Play]:
    """Return a function that starts a broker."""
    brokers: list[Broker] = []

    def start(**answers: Fields) -> Broker:
        brokers.append(Broker(answers))
        return brokers[-1]

    yield start
    for broker in brokers:
        broker.stop()


def logins(answer: Fields) -> dict[str, Fields]:
    return {"SaslHandshake": {"error_code": 0}, "SaslAuthenticate": {"auth_bytes": b"", **answer}, "Metadata": {}}


def test_a_link_logs_in_once(play: Play) -> None:
    broker = play(**logins({}))
    links = Links([broker.address], SECURED)
    for _ in range(2):
        links.ask_any("Metadata", {"topics": []})
    assert broker.asked == ["ApiVersions", "SaslHandshake", "SaslAuthenticate", "Metadata", "Metadata"]
    links.close()


def test_a_link_logs_in_anew_before_the_broker_wants_it(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = play(**logins({"session_lifetime_ms": 10_000}))
    now_us = [0]
    monkeypatch.setattr("zkrebalancer.gateway.links.clock.steady_us", lambda: now_us[0])
    links = Links([broker.address], SECURED)
    for now_s in (0, 7.9, 8.1):
        now_us[0] = int(now_s * 1e6)
        links.ask_any("Metadata", {"topics": []})
    assert broker.asked.count("SaslAuthenticate") == 2
    assert broker.asked.count("Metadata") == 3
    links.close()


@pytest.mark.parametrize(
    ("handshake", "login", "text"),
    [
        (33, {}, "does not offer PLAIN"),
        (0, {"error_code": 58, "error_message": "no entry"}, "refuses the login: no entry"),
    ],
)
def test_a_login_that_fails_is_told_with_its_reason(play: Play, handshake: int, login: Fields, text: str) -> None:
    broker = play(**{**logins(login), "SaslHandshake": {"error_code": handshake}})
    with pytest.raises(LinkError, match=text):
        Link(broker.address, SECURED)


def test_a_link_lasts_longer_than_the_numbers_of_its_requests(play: Play) -> None:
    """In `Link.ask`, count on: after 2^31 requests no other one could be written, and the gateway would end."""
    broker = play(Metadata={})
    link = Link(broker.address, Dialer(Upstream()))
    link._last_id = 0x7FFFFFFF - 1
    for _ in range(3):
        link.ask("Metadata", {"topics": []})
    assert broker.asked == ["ApiVersions", "Metadata", "Metadata", "Metadata"]
    link.close()


def test_links_with_numbers_are_connections_of_their_own(play: Play) -> None:
    broker = play()
    links = Links([broker.address], Dialer(Upstream()))
    found = [links.to(broker.address, number) for number in (None, 1, 2, 1)]
    assert found[1] is found[3]
    assert len(set(found)) == 3
    assert broker.asked == ["ApiVersions"] * 3
    links.close()
    assert all(link.is_closed for link in found)


def test_a_link_that_is_given_up_leaves_nobody_waiting(play: Play) -> None:
    """In `Links.to`, note a LinkError only: whoever asked for this broker later waited for ever."""
    broker = play(Metadata={})
    broker.goes_on.clear()
    links = Links([broker.address], Dialer(Upstream()))
    first = gevent.spawn(links.to, broker.address)
    with gevent.Timeout(WITHIN_S):
        while not broker.asked:
            gevent.sleep(0)
    second = gevent.spawn(links.to, broker.address)
    gevent.sleep(0)
    first.kill()
    second.join(WITHIN_S)
    assert isinstance(second.exception, LinkError)
    broker.goes_on.set()
    links.to(broker.address)
    links.close()


def test_a_broker_that_hangs_is_asked_last(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialing, "HEAD_START_S", 0.01)
    first, second = play(Metadata={}), play(Metadata={})
    links = Links([first.address, second.address], Dialer(Upstream()))
    first.goes_on.clear()
    links.ask_any("Metadata", {"topics": []})
    assert links.addresses_to_try() == [second.address, first.address]
    monkeypatch.setattr(dialing, "HEAD_START_S", 20)
    first.asked.clear()
    links.ask_any("Metadata", {"topics": []})
    assert (first.asked, second.asked.count("Metadata")) == ([], 2)
    links.close()


def test_a_broker_that_is_missing_for_long_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Links.learn`, forget it at once, count from when it was last there, or count earlier times as well."""
    now_us = [0]
    monkeypatch.setattr("zkrebalancer.gateway.links.clock.steady_us", lambda: now_us[0])
    links = Links([("bootstrap", 1)], Dialer(Upstream()))
    stays, leaves = {1: ("b", 1)}, {2: ("b", 2)}
    found = []
    for part, answer in (
        (0, stays | leaves),
        (1, stays),
        (1.9, stays),
        (2, stays | leaves),
        (3, stays),
        (3.9, stays),
        (4, stays),
    ):
        now_us[0] = int(part * FORGET_S * 1e6)
        links.learn(answer)
        found.append(sorted(links.brokers))
    assert found == [[1, 2]] * 6 + [[1]]
    assert links.addresses_to_try() == [("b", 1), ("bootstrap", 1)]


def test_a_broker_that_does_not_even_read_holds_nobody_up(play: Play) -> None:
    """In `Link.ask`, limit only the wait for the answer: requests of all groups wait until that broker ends."""
    broker = play(Metadata={})
    link = Link(broker.address, Dialer(Upstream()))
    broker.goes_on.clear()
    first = gevent.spawn(ask, link, [], WITHIN_S)
    while "Metadata" not in broker.asked:
        gevent.sleep(0)
    large = gevent.spawn(ask, link, [{"name": "x" * 30_000}] * 1_000, 0.2)
    for asked in (large, first):
        assert isinstance(asked.get(timeout=WITHIN_S / 2), LinkError)
    assert link.is_closed
    broker.goes_on.set()


def ask(link: Link, topics: list[Fields], timeout_s: float) -> LinkError | None:
    try:
        link.ask("Metadata", {"topics": topics}, timeout_s=timeout_s)
    except LinkError as error:
        return error
    return None


def test_what_all_brokers_know(play: Play) -> None:
    """In `Links.versions`, return what one of them offers, or count links to brokers that were removed."""
    ranges = ({3: (0, 13), 22: (0, 5)}, {3: (0, 12), 22: (6, 9), 9: (1, 9)}, {3: (0, 4)})
    brokers = [
        play(ApiVersions={"api_keys": [
            {"api_key": key, "min_version": least, "max_version": most} for key, (least, most) in one.items()
        ]})
        for one in ranges
    ]  # fmt: skip
    links = Links([brokers[2].address], Dialer(Upstream()))
    for broker in brokers:
        links.to(broker.address)
    links.learn({1: brokers[0].address, 2: ("nowhere", 1)})
    assert links.versions() == ranges[0]
    links.learn({1: brokers[0].address, 2: brokers[1].address})
    assert links.versions() == {3: (0, 12), 22: (6, 5)}
