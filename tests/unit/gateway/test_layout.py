"""Slots and numbers stay what they were."""

from __future__ import annotations

import pytest

from zkrebalancer.gateway.addresses import MAX_GATEWAYS, MAX_SLOTS
from zkrebalancer.gateway.layout import Layout, TooManyError, decode, decode_alive, encode, encode_alive
from zkrebalancer.gateway.nodes import node_name
from zkrebalancer.protocol.errors import NodeContentError


def test_a_broker_keeps_its_slot_while_others_come_and_go() -> None:
    first = Layout().with_brokers([1001, 3])
    assert first.brokers == {3: 0, 1001: 1}
    assert first.with_brokers([1]).with_brokers([3]).brokers == {3: 0, 1001: 1, 1: 2}


def test_a_broker_beyond_the_last_slot_has_none() -> None:
    full = Layout().with_brokers(range(MAX_SLOTS))
    assert full.with_brokers([*range(MAX_SLOTS), 500]) == full


def test_slots_of_brokers_that_are_gone_are_given_again_once_all_are_taken() -> None:
    """Brokers that are replaced get new ids: a cluster would run out of slots within some years."""
    full = Layout().with_brokers(range(MAX_SLOTS))
    alive = [number for number in range(MAX_SLOTS) if number not in {7, 3}]
    grown = full.with_brokers([*alive, 500, 501, 502])
    assert {one: slot for one, slot in grown.brokers.items() if one >= 500} == {500: 3, 501: 7}
    assert grown.brokers.keys() == {*alive, 500, 501}
    assert {one: grown.brokers[one] for one in alive} == {one: full.brokers[one] for one in alive}


def test_a_gateway_that_comes_back_has_its_number() -> None:
    two = Layout().with_gateway("a:1", []).with_gateway("b:1", [0])
    assert two.gateways == {"a:1": 0, "b:1": 1}
    assert two.with_gateway("a:1", [1]) == two


def test_numbers_of_gateways_that_are_gone_are_given_again_once_all_are_taken() -> None:
    full = Layout({}, {f"pod-{number}:1": number for number in range(MAX_GATEWAYS)})
    alive = [0, 2]
    assert full.with_gateway("new:1", alive).gateways == {"pod-0:1": 0, "pod-2:1": 2, "new:1": 1}
    with pytest.raises(TooManyError, match="are alive"):
        full.with_gateway("new:1", range(MAX_GATEWAYS))


def test_what_is_written_is_read() -> None:
    layout = Layout({1001: 1, 3: 0}, {"a:1": 0}, "zookeeper")
    assert decode(encode(layout)) == layout


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        b'{"version":1,"brokers":{}}',
        b'{"version":1,"brokers":{"x":0},"gateways":{}}',
        b'{"version":1,"brokers":{"1":9999},"gateways":{}}',
        b'{"version":1,"brokers":{"1":0.5},"gateways":{}}',
        b'{"version":1,"brokers":{"1":true},"gateways":{}}',
        b'{"version":1,"brokers":{"1":0,"2":0},"gateways":{}}',
        b'{"version":1,"brokers":{"2147483648":0},"gateways":{}}',
        b'{"version":1,"brokers":{},"gateways":{"a:1":100}}',
        b'{"version":1,"brokers":{},"gateways":{},"offsets":1}',
    ],
)
def test_what_is_no_layout_is_refused(content: bytes) -> None:
    with pytest.raises(NodeContentError, match="layout cannot be read"):
        decode(content)


def test_nodes_of_another_version_are_refused_by_their_path() -> None:
    with pytest.raises(NodeContentError, match=r"gateways/layout is of version 2, this program knows version 1"):
        decode(b'{"version":2}')
    with pytest.raises(NodeContentError, match=r"gateways/alive/3 is of version 'x'"):
        decode_alive("3", b'{"version":"x"}')


@pytest.mark.parametrize("name", ["-1", "100", "9" * 5_000, "x", "\u00b2", "\u0663", "03", ""])
def test_a_gateway_whose_number_is_none_is_refused(name: str) -> None:
    with pytest.raises(NodeContentError, match="is not a number below"):
        decode_alive(name, encode_alive("h", 1))


@pytest.mark.parametrize(
    "where", ['"host":"h","port":65536', '"host":"h","port":"1"', '"host":"","port":1', '"port":1']
)
def test_a_gateway_without_an_address_is_refused(where: str) -> None:
    assert decode_alive("7", encode_alive("h", 1)) == (7, ("h", 1))
    with pytest.raises(NodeContentError, match="alive/7 cannot be read"):
        decode_alive("7", f'{{"version":1,{where}}}'.encode())


@pytest.mark.parametrize(
    ("group", "name"),
    [("orders", "orders"), ("a/b", "a%2Fb"), (".", "%2E"), ("..", "%2E%2E"), ("a.b", "a.b"), ("ü\0", "%C3%BC%00")],
)
def test_any_name_of_a_group_is_a_legal_node(group: str, name: str) -> None:
    assert node_name(group) == name
