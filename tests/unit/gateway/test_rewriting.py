"""Answers of brokers with the gateway's addresses and versions."""

from __future__ import annotations

import pytest

from zkrebalancer.gateway import rewriting
from zkrebalancer.gateway.addresses import VIRTUAL_NODE, Addresses, Node
from zkrebalancer.kafka_protocol import codec
from zkrebalancer.kafka_protocol.schema import Versions

ADDRESSES = Addresses("gw", 9192, {1: 0, 1001: 1}, {0: ("gw", 9192), 3: ("other", 9292)})
GATEWAYS = [(VIRTUAL_NODE, "gw", 9192), (VIRTUAL_NODE + 3, "other", 9292)]
BROKERS = [
    {"node_id": 1001, "host": "b1001", "port": 9092, "rack": "r"},
    {"node_id": 1, "host": "b1", "port": 9093, "rack": None},
]
LEARNED = [Node(1001, "b1001", 9092), Node(1, "b1", 9093)]


@pytest.mark.parametrize("version", [0, 1, 5, 9, 13])
def test_metadata_names_the_gateways_ports_and_the_gateways(version: int) -> None:
    fields = {"throttle_time_ms": 5, "brokers": BROKERS, "topics": [{"name": "t", "partitions": [{"leader_id": 1}]}]}
    content = codec.encode("MetadataResponse", version, fields)
    learned: list[list[Node]] = []

    def learn(brokers: list[Node]) -> Addresses:
        learned.append(brokers)
        return ADDRESSES

    begin, end = rewriting.metadata(version, content, learn)
    read = codec.decode("MetadataResponse", version, begin + content[end:])
    places = [(one["node_id"], one["host"], one["port"]) for one in read["brokers"]]
    assert places == [(1001, "gw", 9194), (1, "gw", 9193), *GATEWAYS]
    assert [one["rack"] for one in read["brokers"][:2]] == (["r", None] if version else [None, None])
    assert read["topics"][0]["partitions"][0]["leader_id"] == 1
    assert learned == [LEARNED]


def test_a_broker_without_a_port_is_left_out() -> None:
    content = codec.encode("MetadataResponse", 9, {"brokers": [{"node_id": 7, "host": "b7", "port": 1}]})
    begin, end = rewriting.metadata(9, content, lambda _brokers: ADDRESSES)
    read = codec.decode("MetadataResponse", 9, begin + content[end:])
    assert [one["node_id"] for one in read["brokers"]] == [node for node, _host, _port in GATEWAYS]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_describe_cluster(version: int) -> None:
    brokers = [{"broker_id": 1, "host": "b1", "port": 9093, "rack": "r"}]
    content = codec.encode("DescribeClusterResponse", version, {"cluster_id": "c", "brokers": brokers})
    changed = rewriting.describe_cluster(version, content, lambda _brokers: ADDRESSES)
    read = codec.decode("DescribeClusterResponse", version, changed)
    places = [(one["broker_id"], one["host"], one["port"]) for one in read["brokers"]]
    assert places == [(1, "gw", 9193), *GATEWAYS]
    assert (read["cluster_id"], read["brokers"][0]["rack"]) == ("c", "r")


@pytest.mark.parametrize("version", range(7))
def test_the_coordinator_of_a_transaction_is_a_broker_at_the_gateway(version: int) -> None:
    place = {"node_id": 1001, "host": "b1001", "port": 9092}
    content = codec.encode("FindCoordinatorResponse", version, {**place, "coordinators": [{"key": "t", **place}]})
    read = codec.decode("FindCoordinatorResponse", version, rewriting.find_coordinator(version, content, ADDRESSES))
    one = read["coordinators"][0] if version >= 4 else read
    assert (one["node_id"], one["host"], one["port"]) == (1001, "gw", 9194)


@pytest.mark.parametrize("version", range(7))
def test_no_client_learns_the_address_of_a_broker_without_a_port(version: int) -> None:
    """In `find_coordinator`, pass its own address on: its clients would look for their group there, too."""
    place = {"node_id": 7, "host": "b7", "port": 9092}
    content = codec.encode("FindCoordinatorResponse", version, {**place, "coordinators": [{"key": "t", **place}]})
    read = codec.decode("FindCoordinatorResponse", version, rewriting.find_coordinator(version, content, ADDRESSES))
    found = read["coordinators"][0] if version >= rewriting.BATCHED_FROM else read
    assert (found["error_code"], found["node_id"], found["host"], found["port"]) == (15, -1, "", -1)


@pytest.mark.parametrize("version", range(7))
def test_the_coordinator_of_a_group_is_a_gateway(version: int) -> None:
    content = rewriting.group_coordinators(version, {"g": (0, Node(VIRTUAL_NODE, "gw", 9192)), "h": (15, None)})
    read = codec.decode("FindCoordinatorResponse", version, content)
    found = read["coordinators"] if version >= 4 else [read]
    assert (found[0]["node_id"], found[0]["host"], found[0]["port"]) == (VIRTUAL_NODE, "gw", 9192)
    if version >= 4:
        assert [(one["key"], one["error_code"]) for one in found] == [("g", 0), ("h", 15)]


OF_OTHER_GROUPS = {76, 88, 93}  # share groups and streams groups


def offered(version: int, error: int = 0) -> dict[int, tuple[int, int]]:
    broker = [(0, 0, 12), (1, 4, 17), (3, 0, 99), (11, 0, 3), (19, 0, 7), (68, 0, 1)]
    broker += [(key, 0, 1) for key in OF_OTHER_GROUPS]
    apis = [{"api_key": key, "min_version": least, "max_version": most} for key, least, most in broker]
    form = 0 if error else version
    content = codec.encode("ApiVersionsResponse", form, {"error_code": error, "api_keys": apis})
    changed = rewriting.api_versions(version, content, {11: Versions(0, 9), 12: Versions(0, 4), 68: Versions(0, 1)})
    read = codec.decode("ApiVersionsResponse", form, changed)
    assert read["error_code"] == error
    return {one["api_key"]: (one["min_version"], one["max_version"]) for one in read["api_keys"]}


@pytest.mark.parametrize("version", [0, 3, 4])
def test_versions_that_carry_addresses_and_unknown_coordinators_are_not_offered(version: int) -> None:
    found = offered(version)
    assert (found[0], found[1], found[3]) == ((3, 9), (4, 15), (0, 13))
    assert (found[11], found[12], found[19]) == ((0, 9), (0, 4), (0, 7))
    assert not OF_OTHER_GROUPS & set(found)
    assert found[68] == (0, 1)


def test_producers_use_transactions_that_need_no_later_produce() -> None:
    features = [("transaction.version", 2), ("group.version", 1), ("metadata.version", 27)]
    fields = [{"name": name, "max_version_level": level, "min_version_level": level} for name, level in features]
    content = codec.encode("ApiVersionsResponse", 3, {"finalized_features_epoch": 5, "finalized_features": fields})
    read = codec.decode("ApiVersionsResponse", 3, rewriting.api_versions(3, content, {}))
    found = {one["name"]: (one["min_version_level"], one["max_version_level"]) for one in read["finalized_features"]}
    assert found == {"transaction.version": (1, 1), "group.version": (1, 1), "metadata.version": (27, 27)}


def test_a_broker_that_does_not_know_the_version_answers_in_the_first() -> None:
    assert offered(4, error=35)[0] == (3, 9)


def test_an_unknown_version_of_api_versions_is_refused_with_the_known_ones() -> None:
    read = codec.decode("ApiVersionsResponse", 0, rewriting.unsupported_api_versions())
    assert read["error_code"] == 35
    assert [(one["api_key"], one["max_version"]) for one in read["api_keys"]] == [(18, 4)]


@pytest.mark.parametrize(("error", "form"), [(0, 3), (35, 0), (42, 3)])
def test_what_is_true_for_any_client_of_an_answer_about_versions(error: int, form: int) -> None:
    apis = [{"api_key": 3, "min_version": 0, "max_version": 12}]
    content = codec.encode("ApiVersionsResponse", form, {"error_code": error, "api_keys": apis, "throttle_time_ms": 5})
    lasting = rewriting.lasting_api_versions(3, content)
    if error == 42:  # only this client has an invalid name
        assert lasting is None
    else:
        assert lasting is not None
        read = codec.decode("ApiVersionsResponse", form, lasting)
        assert (read["error_code"], len(read["api_keys"]), read["throttle_time_ms"]) == (error, 1, 0)
