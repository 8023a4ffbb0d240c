"""Reads Kafka's brokers and topics, for the topic mirror.

Kafka leaves topics that the login may not describe out of a list of all topics, as if they did not exist. About a topic
that it is asked for by name, it says which of the two it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

REQUEST_TIMEOUT_S = 5.0
PLAINTEXT = "PLAINTEXT"
_URL_SAFE = str.maketrans("+/", "-_")  # topic ids: Kafka uses URL-safe base64, librdkafka standard base64


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker's address for clients, its rack, and its security protocol."""

    host: str
    port: int
    rack: str | None
    protocol: str = PLAINTEXT

    @property
    def endpoint(self) -> str:
        """The address as Kafka writes it: PROTOCOL://HOST:PORT."""
        return f"{self.protocol}://{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic's id, and partition -> broker ids of its replicas, the preferred leader first."""

    topic_id: str
    replicas: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class KafkaMetadata:
    """Brokers and topics in Kafka; `names` are all topics, `topics` those with a description.

    `refused`: topic -> why Kafka does not describe it. `cluster_id`: None if Kafka has not told it.
    """

    brokers: Mapping[int, Broker]
    names: frozenset[str]
    topics: Mapping[str, Topic]
    refused: Mapping[str, str] = field(default_factory=dict)
    cluster_id: str | None = None


def read_kafka(
    admin: AdminClient,
    protocol: str,
    unlisted: AbstractSet[str] = frozenset(),
    known: Mapping[int, Broker] | None = None,
) -> KafkaMetadata:
    """Read brokers, topics and replicas; `protocol` is the security protocol to reach the brokers.

    `unlisted`: topics that exist too, unless Kafka says of them by name that they do not.
    `known`: brokers as they were read before. While their addresses are the same, Kafka is not asked for racks.

    Raises:
        KafkaException: Kafka did not answer a request within REQUEST_TIMEOUT_S.

    """
    cluster = admin.list_topics(timeout=REQUEST_TIMEOUT_S)
    brokers = _with_racks(admin, cluster.brokers.values(), protocol, known)
    listed = frozenset(cluster.topics)
    names = listed | unlisted
    topics: dict[str, Topic] = {}
    refused: dict[str, str] = {}
    gone: set[str] = set()
    if names:
        described = admin.describe_topics(TopicCollection(sorted(names)), request_timeout=REQUEST_TIMEOUT_S)
        for name, future in described.items():
            try:
                description = future.result()
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    gone.add(name)
                    continue
                if len(refused) + 1 == len(described) and code != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise  # none can be described
                refused[name] = error.args[0].str()
                continue
            replicas = {entry.id: tuple(node.id for node in entry.replicas) for entry in description.partitions}
            topics[name] = Topic(str(description.topic_id).translate(_URL_SAFE), replicas)
    return KafkaMetadata(brokers, names - (gone - listed), topics, refused, cluster.cluster_id)


def _with_racks(
    admin: AdminClient, listed: Iterable[Any], protocol: str, known: Mapping[int, Broker] | None
) -> dict[int, Broker]:
    """Return the brokers; their list has no racks, which need another request."""
    found = {one.id: (one.host, one.port) for one in listed}  # confluent_kafka types them as None
    if known is not None and found == {number: (one.host, one.port) for number, one in known.items()}:
        return dict(known)
    nodes = admin.describe_cluster(request_timeout=REQUEST_TIMEOUT_S).result().nodes
    racks = {node.id: node.rack for node in nodes}
    return {number: Broker(host, port, racks.get(number), protocol) for number, (host, port) in found.items()}
