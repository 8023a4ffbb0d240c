"""Reads Kafka's brokers and topics, for the topic mirror.

Kafka leaves topics that the login may not describe out of a list of all topics, as if they did not exist. About a topic
that it is asked for by name, it says which of the two it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

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

    `refused`: topic -> why Kafka does not describe it.
    """

    brokers: Mapping[int, Broker]
    names: frozenset[str]
    topics: Mapping[str, Topic]
    refused: Mapping[str, str] = field(default_factory=dict)


def read_kafka(admin: AdminClient, protocol: str, unlisted: AbstractSet[str] = frozenset()) -> KafkaMetadata:
    """Read brokers, topics and replicas; `protocol` is the security protocol to reach the brokers.

    `unlisted`: topics that exist too, unless Kafka says of them by name that they do not.

    Raises:
        KafkaException: Kafka did not answer a request within REQUEST_TIMEOUT_S.

    """
    cluster = admin.describe_cluster(request_timeout=REQUEST_TIMEOUT_S).result()
    brokers = {node.id: Broker(node.host, node.port, node.rack, protocol) for node in cluster.nodes}
    listed = frozenset(admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics)
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
    return KafkaMetadata(brokers, names - (gone - listed), topics, refused)
