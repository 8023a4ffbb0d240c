"""Rewrites answers of brokers for clients of the gateway: with the gateway's addresses and versions. Pure.

Each function gets the version of an answer, and its content after the header.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any

from zkrebalancer.gateway.addresses import Addresses, Node
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.kafka_protocol import codec
from zkrebalancer.kafka_protocol.codec import API_VERSIONS
from zkrebalancer.kafka_protocol.schema import Versions, apis, message

PRODUCE, FETCH, METADATA = 0, 1, 3
FIND_COORDINATOR, SASL_HANDSHAKE, SASL_AUTHENTICATE, DESCRIBE_CLUSTER = 10, 17, 36, 60
GROUP_KEY_TYPE = 0
BATCHED_FROM = 4  # the version of FindCoordinator that asks for several keys
# Answers of later versions may have addresses of brokers (KIP-951), which would have to be found and replaced.
HIGHEST_VERSIONS = {PRODUCE: 9, FETCH: 15}
# With 2 (KIP-890), producers rely on Produce 12 and TxnOffsetCommit 5 to add partitions to a transaction.
TRANSACTION_VERSION, HIGHEST_TRANSACTION_VERSION = "transaction.version", 1
# In older versions, the `acks` of a Produce cannot be found, and frames without a header follow a SaslHandshake.
LOWEST_VERSIONS = {PRODUCE: 3, SASL_HANDSHAKE: 1}
# Share groups and streams groups: a broker would coordinate them.
LEFT_OUT = frozenset({76, 77, 78, 79, 88, 89, 90, 91, 92, 93})
DECODED = frozenset({METADATA, FIND_COORDINATOR, API_VERSIONS, DESCRIBE_CLUSTER})


def api_versions(version: int, content: bytes, served: Mapping[int, Versions]) -> bytes:
    """Return an ApiVersions answer; `served`: the requests that the gateway answers itself, with their versions."""
    form = _form_of_api_versions(version, content)
    fields = codec.decode("ApiVersionsResponse", form, content)
    relayed = [_limited(api) for api in fields["api_keys"] if api["api_key"] not in {*served, *LEFT_OUT}]
    own = [
        {"api_key": key, "min_version": versions.first, "max_version": versions.last}
        for key, versions in served.items()
    ]
    fields["api_keys"] = sorted([*relayed, *own], key=lambda api: int(api["api_key"]))
    for feature in fields["finalized_features"]:
        if feature["name"] == TRANSACTION_VERSION:
            feature["max_version_level"] = min(feature["max_version_level"], HIGHEST_TRANSACTION_VERSION)
            feature["min_version_level"] = min(feature["min_version_level"], HIGHEST_TRANSACTION_VERSION)
    return codec.encode("ApiVersionsResponse", form, fields)


def lasting_api_versions(version: int, answer: bytes) -> bytes | None:
    """Return what of an answer of `api_versions` is true for any client; None if only this one is refused."""
    form = _form_of_api_versions(version, answer)
    fields = codec.decode("ApiVersionsResponse", form, answer)
    if fields["error_code"] not in {ErrorCode.NONE, ErrorCode.UNSUPPORTED_VERSION}:
        return None
    return codec.encode("ApiVersionsResponse", form, {**fields, "throttle_time_ms": 0})


def known_to_all(
    version: int, answer: bytes, served: Collection[int], versions: Mapping[int, tuple[int, int]]
) -> bytes:
    """Return an answer of `api_versions` without versions that a broker lacks; `versions`: see `Links.versions`."""
    known = tuple(sorted(versions.items()))
    return _known_to_all(version, answer, frozenset(served), known) if known else answer


@lru_cache(maxsize=16)  # all clients need it
def _known_to_all(
    version: int, answer: bytes, served: frozenset[int], known: tuple[tuple[int, tuple[int, int]], ...]
) -> bytes:
    form = _form_of_api_versions(version, answer)
    fields, limits = codec.decode("ApiVersionsResponse", form, answer), dict(known)
    apis = []
    for api in fields["api_keys"]:
        own = (api["min_version"], api["max_version"])
        least, most = own if api["api_key"] in served else limits.get(api["api_key"], (0, -1))
        if (least := max(least, own[0])) <= (most := min(most, own[1])):
            apis.append({**api, "min_version": least, "max_version": most})
    return codec.encode("ApiVersionsResponse", form, {**fields, "api_keys": apis})


def _form_of_api_versions(version: int, answer: bytes) -> int:
    """Return the version of an answer: a broker that does not know the client's answers with v0."""
    error = int.from_bytes(answer[:2], "big", signed=True)
    return 0 if error == ErrorCode.UNSUPPORTED_VERSION else version


def unsupported_api_versions() -> bytes:
    """Return the answer to an ApiVersions request of an unknown version; it names the known versions."""
    known = message("ApiVersionsRequest").versions
    api = {"api_key": API_VERSIONS, "min_version": known.first, "max_version": known.last}
    return codec.encode("ApiVersionsResponse", 0, {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": [api]})


def _limited(api: dict[str, int]) -> dict[str, int]:
    key = api["api_key"]
    lowest, highest = LOWEST_VERSIONS.get(key, 0), HIGHEST_VERSIONS.get(key, api["max_version"])
    if key in DECODED:
        highest = message(f"{apis()[key]}Request").versions.last
    return {**api, "min_version": max(api["min_version"], lowest), "max_version": min(api["max_version"], highest)}


def metadata(version: int, begin: bytes, learn: Callable[[list[Node]], Addresses]) -> tuple[bytes, int]:
    """Return the first part of a Metadata answer, and how many bytes of `begin` it replaces.

    `begin` has at least throttle time and brokers. `learn` gets the brokers' own addresses.
    """
    fields, end = codec.decode_first("MetadataResponse", version, begin, "brokers")
    addresses = learn(nodes(fields["brokers"], "node_id"))
    fields["brokers"] = _placed(fields["brokers"], "node_id", addresses)
    return codec.encode_first("MetadataResponse", version, fields, "brokers"), end


def describe_cluster(version: int, content: bytes, learn: Callable[[list[Node]], Addresses]) -> bytes:
    """Return a DescribeCluster answer; `learn` gets the brokers' own addresses."""
    fields = codec.decode("DescribeClusterResponse", version, content)
    addresses = learn(nodes(fields["brokers"], "broker_id"))
    fields["brokers"] = _placed(fields["brokers"], "broker_id", addresses)
    return codec.encode("DescribeClusterResponse", version, fields)


def nodes(brokers: Iterable[Mapping[str, Any]], id_name: str) -> list[Node]:
    """Return the brokers of an answer, at their own addresses."""
    return [Node(one[id_name], one["host"], one["port"]) for one in brokers]


def _placed(brokers: Collection[dict[str, Any]], id_name: str, addresses: Addresses) -> list[dict[str, Any]]:
    """Return the brokers that have an address here, with that address, and the gateways as further nodes."""
    placed = []
    for broker in brokers:
        node = addresses.broker(broker[id_name])
        if node is not None:
            placed.append({**broker, "host": node.host, "port": node.port})
    placed += [{id_name: node.node_id, "host": node.host, "port": node.port} for node in addresses.all_gateways()]
    return placed


def find_coordinator(version: int, content: bytes, addresses: Addresses) -> bytes:
    """Return a broker's FindCoordinator answer, about transactions."""
    fields = codec.decode("FindCoordinatorResponse", version, content)
    for found in [fields] if version < BATCHED_FROM else fields["coordinators"]:
        node = addresses.broker(found["node_id"])
        if node is not None:
            found["host"], found["port"] = node.host, node.port
        elif not found["error_code"]:  # it has no port yet; the broker itself would coordinate its clients' groups, too
            nowhere = {"node_id": -1, "host": "", "port": -1}
            found.update(error_code=int(ErrorCode.COORDINATOR_NOT_AVAILABLE), **nowhere)
    return codec.encode("FindCoordinatorResponse", version, fields)


def group_coordinators(
    version: int, found: Mapping[str, tuple[int, Node | None]], *, pause: codec.Pause = None
) -> bytes:
    """Return a FindCoordinator answer about groups; `found`: group -> (error code, its coordinator or None)."""
    coordinators = []
    for group, (error, node) in found.items():
        where = node or Node(-1, "", -1)
        place = {"node_id": where.node_id, "host": where.host, "port": where.port}
        coordinators.append({"key": group, "error_code": error, "error_message": None, **place})
    if version < BATCHED_FROM:
        return codec.encode("FindCoordinatorResponse", version, coordinators[0])
    return codec.encode("FindCoordinatorResponse", version, {"coordinators": coordinators}, pause=pause)
