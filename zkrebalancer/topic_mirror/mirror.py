"""Keeps `/brokers/topics` and `/brokers/ids` equal to Kafka's metadata, for brokers that do not write them (KRaft).

Each round reads both sides; the pure `plan` returns the transactions that make them equal. Lost sessions, failed writes
and restarts need no special handling: the next round does the rest. Once a round has found nothing to do, the next ones
read the names of nodes, and no contents, while neither these names nor Kafka's metadata change, for LOOK_S.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

import gevent
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import (
    ABSENT,
    Children,
    Content,
    Create,
    Delete,
    Get,
    ListChildren,
    Multi,
    Operation,
    Refusal,
    Refused,
    Reply,
    SetContent,
)
from zkrebalancer.protocol.complaints import Complaints, undescribed
from zkrebalancer.protocol.errors import ZooKeeperRefusedError, ZooKeeperUnavailableError
from zkrebalancer.runtime import clock, http_server
from zkrebalancer.runtime.http_server import Pages
from zkrebalancer.runtime.kafka import BOOTSTRAP, ConnectionErrors, new_client
from zkrebalancer.runtime.notify import Notifier
from zkrebalancer.runtime.vitals import STATE_LOG, Health, Vitals
from zkrebalancer.runtime.zk import BlockingZk
from zkrebalancer.topic_mirror.kafka_metadata import PLAINTEXT, Broker, KafkaMetadata, Topic, read_kafka
from zkrebalancer.topic_mirror.metrics import Seen, registry
from zkrebalancer.topic_mirror.topic_ids import TopicIds

ROUND_LIMIT_S = 30.0
LOOK_S = 30.0  # after this time, contents of nodes and racks are read again, whatever seems to have changed
SESSION_TIMEOUT_MS = 10_000
TOPIC_NODE_VERSION = 3  # as written by Kafka 3.x
BROKER_NODE_VERSION = 5
CONTROLLER = "/controller"  # ephemeral in ZooKeeper mode; persistent, or absent, once Kafka has moved to KRaft
CLUSTER = "/cluster"
CLUSTER_ID = f"{CLUSTER}/id"  # whose nodes these are: brokers in ZooKeeper mode write it, and otherwise the mirror
OF_BROKERS = "brokers keep their metadata in ZooKeeper, and write these nodes themselves: end this mirror"
MAX_DELETES = 500  # in one transaction
PARENTS = (paths.BROKER_IDS, paths.BROKER_TOPICS)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Nodes:
    """The contents of the nodes below `/brokers/ids` and `/brokers/topics`, by name.

    `refused`: path -> why ZooKeeper does not show it. These nodes stay as they are.
    """

    brokers: Mapping[str, bytes]
    topics: Mapping[str, bytes]
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Found:
    """The state of both sides: Kafka's metadata, and the names of the nodes below each of PARENTS."""

    kafka: KafkaMetadata
    listed: tuple[tuple[str, ...], ...]


def plan(kafka: KafkaMetadata, nodes: Nodes, missing_before: AbstractSet[str], now_ms: int) -> list[Multi]:
    """Return the transactions that make ZooKeeper equal to Kafka.

    A lagging broker may answer with older metadata. Therefore a topic is deleted only if it was missing in the
    previous round too (`missing_before`), and a topic with the same id never loses partitions. `now_ms`: epoch
    milliseconds.
    """
    changes: list[tuple[Operation, ...]] = []
    for number, broker in sorted(kafka.brokers.items()):
        path = f"{paths.BROKER_IDS}/{number}"
        existing = nodes.brokers.get(str(number))
        if path in nodes.refused:
            continue
        if existing is None:
            changes.append((Create(path, _encode_broker(broker, now_ms), ephemeral=True),))
        elif _broker_address(existing) != ([broker.endpoint], broker.rack):
            changes.append((SetContent(path, _encode_broker(broker, now_ms)),))
    gone = [f"{paths.BROKER_IDS}/{name}" for name in nodes.brokers if name not in map(str, kafka.brokers)]
    gone += [paths.topic(name) for name in missing_topics(kafka, nodes) & missing_before]
    changes += [(Delete(path),) for path in sorted(gone)]
    changes += [
        _topic_change(paths.topic(name), topic, nodes.topics.get(name))
        for name, topic in sorted(kafka.topics.items())
        if paths.topic(name) not in nodes.refused
    ]
    return [Multi(operations) for operations in changes if operations]


def missing_topics(kafka: KafkaMetadata, nodes: Nodes) -> frozenset[str]:
    """Return the topics that exist in ZooKeeper but not in Kafka."""
    return frozenset(nodes.topics.keys() - kafka.names)


def _topic_change(path: str, topic: Topic, existing: bytes | None) -> tuple[Operation, ...]:
    content = _encode_topic(topic)
    if existing is None:
        return (Create(path, content),)
    document = _read_document(existing)
    topic_id = document.get("topic_id")
    if not document or topic_id not in (None, topic.topic_id):  # None: Kafka before 2.8 wrote it
        return (Delete(path), Create(path, content))  # recreated in Kafka: the node needs a new creation zxid, too
    partitions = document.get("partitions")
    if isinstance(partitions, dict) and len(partitions) > len(topic.replicas):
        return ()
    return () if document == json.loads(content) else (SetContent(path, content),)


def _encode_topic(topic: Topic) -> bytes:
    document = {
        "partitions": {str(partition): list(brokers) for partition, brokers in sorted(topic.replicas.items())},
        "topic_id": topic.topic_id,
        "adding_replicas": {},
        "removing_replicas": {},
        "version": TOPIC_NODE_VERSION,
    }
    return json.dumps(document, separators=(",", ":")).encode()


def _encode_broker(broker: Broker, now_ms: int) -> bytes:
    is_plain = broker.protocol == PLAINTEXT  # old clients read host and port, which Kafka sets only for PLAINTEXT
    document: dict[str, object] = {
        "features": {},
        "listener_security_protocol_map": {broker.protocol: broker.protocol},
        "endpoints": [broker.endpoint],
        "jmx_port": -1,
        "port": broker.port if is_plain else -1,
        "host": broker.host if is_plain else None,
        "version": BROKER_NODE_VERSION,
        "timestamp": str(now_ms),
    }
    if broker.rack is not None:
        document["rack"] = broker.rack
    return json.dumps(document, separators=(",", ":")).encode()


def _broker_address(content: bytes) -> tuple[object, object]:
    document = _read_document(content)
    return document.get("endpoints"), document.get("rack")


def _read_document(content: bytes) -> dict[str, object]:
    """Return a node's JSON object, or {} for invalid content, which is then replaced."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _ids(nodes: Nodes) -> dict[str, str]:
    """Return topic -> id, of the topics that have one in ZooKeeper."""
    found = ((name, _read_document(content).get("topic_id")) for name, content in nodes.topics.items())
    return {name: topic_id for name, topic_id in found if isinstance(topic_id, str)}


class Mirror:
    """One mirror; `run` until it is interrupted."""

    def __init__(
        self,
        kafka: Mapping[str, str],
        zookeeper: str,
        interval_s: float,
        notifier: Notifier,
        http: tuple[str, int] | None = None,
    ) -> None:
        """`kafka` are settings of librdkafka; `http`: where to serve /liveness, /readiness and /metrics."""
        self._kafka = kafka
        self._zookeeper = zookeeper
        self._interval_s = interval_s
        self._http = http
        self._vitals = Vitals(SESSION_TIMEOUT_MS, notifier, ROUND_LIMIT_S)
        self._seen = Seen(due_us=clock.steady_us())  # the first round at once
        self._faults = ["nothing is mirrored yet"]
        self._missing: frozenset[str] = frozenset()
        self._unlisted: frozenset[str] = frozenset()  # topics to ask Kafka for by name: it may not list them
        self._refused: Mapping[str, str] = {}  # topic -> why Kafka does not describe it
        self._ids = TopicIds()
        self._settled: Found | None = None  # the state in the last round, if that had nothing to do
        self._look_us = 0  # when that state is no longer trusted
        self._complaints = Complaints()
        self._is_ready = False  # since the first round that has succeeded

    def run(self) -> None:
        """Mirror until interrupted, one round every interval.

        Raises:
            ConfigurationError: it cannot listen at the address for HTTP, or librdkafka refuses a setting.
            ZooKeeperUnavailableError, ChrootMissingError: at the start only; later errors are logged and retried.

        """
        errors = ConnectionErrors()
        admin = new_client(AdminClient, errors.settings(self._kafka))
        pages = Pages(self.health, registry(self._seen))
        server = None if self._http is None else http_server.serve(self._http, pages)
        try:
            with BlockingZk(self._zookeeper, SESSION_TIMEOUT_MS) as client:
                while True:
                    self._round(client, admin, errors)
                    self.rest(client)
        finally:
            self._vitals.stopping()
            if server is not None:
                server.stop(timeout=0)

    def health(self) -> Health:
        """Return what the probes answer: a mirror never leads."""
        facts = {"topics": self._seen.topics, "brokers": self._seen.brokers}
        return Health(self._vitals.death(), self._faults, leads=False, facts=facts)

    def log_state(self) -> None:
        """Write to the log what is mirrored."""
        STATE_LOG.info("mirror: %s; faults: %s", self._summary(), "; ".join(self._faults) or "none")
        for topic, why in sorted(self._refused.items()):
            STATE_LOG.info("topic %s stays as it is: %s", topic, why)

    def _summary(self) -> str:
        missing = f"; {len(self._missing)} topics are missing in Kafka" if self._missing else ""
        return f"{self._seen.topics} topics, {self._seen.brokers} brokers{missing}"

    def _round(self, client: BlockingZk, admin: AdminClient, errors: ConnectionErrors) -> None:
        began_us = clock.steady_us()
        if began_us >= self._look_us:
            self._settled = None
        protocol = self._kafka.get("security.protocol", PLAINTEXT).upper()
        known = None if self._settled is None else self._settled.kafka.brokers
        # In the thread pool, because the hub must keep the ZooKeeper session alive.
        metadata = gevent.get_hub().threadpool.apply(_try_read_kafka, (admin, protocol, self._unlisted, known))
        suffix = errors.drain(admin)  # in every round, because librdkafka queues errors until then
        if isinstance(metadata, KafkaException):
            reason = f"{metadata.args[0].str()}{suffix}"
            _log.warning("Kafka at %s does not answer: %s; trying again", self._kafka[BOOTSTRAP], reason)
            self._ended("kafka", ["Kafka does not answer"])
            self._ask_zookeeper(client)
        else:
            self.write(client, metadata)
        self._seen.round_s = (clock.steady_us() - began_us) / 1e6
        self._report()

    def rest(self, client: BlockingZk) -> None:
        """Wait until the next round is due, and show meanwhile that this process and ZooKeeper make progress."""
        due_us = clock.steady_us() + int(self._interval_s * 1e6)
        while (left_s := (due_us - clock.steady_us()) / 1e6) > self._vitals.beat_s:
            gevent.sleep(self._vitals.beat_s)
            self._ask_zookeeper(client)
            self._report()
        gevent.sleep(max(0.0, left_s))

    def _report(self) -> None:
        self._vitals.looped()
        self._vitals.report(is_ready=self._is_ready, status="; ".join([self._summary(), *self._faults]))

    def write(self, client: BlockingZk, metadata: KafkaMetadata) -> None:
        """Make ZooKeeper equal to `metadata`; errors are left to the next round."""
        try:
            found = Found(metadata, list_nodes(client))
            refused = {} if found == self._settled else self._make_equal(client, found)
        except (ZooKeeperUnavailableError, ZooKeeperRefusedError) as error:
            _log.warning("%s; trying again", error)
            self._missing = frozenset()
            self._settled = None
            self._ended("zookeeper", ["ZooKeeper does not answer, or refuses"])
            return
        self._refused = metadata.refused
        self._seen.topics, self._seen.brokers = len(metadata.names), len(metadata.brokers)
        self._seen.undescribed, self._seen.refused = len(metadata.refused), len(refused)
        self._seen.due_us = clock.steady_us() + int(self._interval_s * 1e6)
        self._vitals.answered()
        self._is_ready = True
        known = {"ZooKeeper": refused, "Kafka": metadata.refused}
        self._complain(known)
        faults = [f"{server} refuses {len(some)} nodes or topics" for server, some in known.items() if some]
        self._ended("refused" if refused else "done", faults)

    def _make_equal(self, client: BlockingZk, found: Found) -> dict[str, str]:
        """Read every node and write the differences; return path -> why, of what ZooKeeper refuses."""
        nodes = read_nodes(client, found)
        believed = self._without_doubtful(found.kafka, nodes)
        changes = plan(believed, nodes, self._missing, time.time_ns() // 1_000_000)
        others = _whose(client, found.kafka, nodes) if changes else {}
        if others:
            self._settled = None
            return others
        refused = carry_out(client, changes)
        self._missing = missing_topics(found.kafka, nodes)
        unlisted = self._missing | (nodes.topics.keys() & found.kafka.refused.keys())
        self._unlisted = frozenset(filter(paths.is_legal_topic, unlisted))  # Kafka can have no others
        self._seen.changes += len(changes) - len(refused)
        is_settled = believed is found.kafka and not (changes or nodes.refused or self._missing)
        self._settled = found if is_settled else None
        self._look_us = clock.steady_us() + int(LOOK_S * 1e6)
        return {**refused, **nodes.refused}

    def _complain(self, known: Mapping[str, Mapping[str, str]]) -> None:
        """Log what ZooKeeper and Kafka refuse, but not in each round."""
        lines = [(path, f"{path}: {why}; trying again") for path, why in sorted(known["ZooKeeper"].items())]
        lines += [("Kafka", text) for text in undescribed(known["Kafka"])]
        for peer, line in lines:
            if (text := self._complaints.text(peer, line, time.monotonic())) is not None:
                _log.warning("%s", text)

    def _without_doubtful(self, metadata: KafkaMetadata, nodes: Nodes) -> KafkaMetadata:
        """Leave out the topics whose other id does not count yet."""
        doubtful = self._ids.doubtful({name: topic.topic_id for name, topic in metadata.topics.items()}, _ids(nodes))
        if not doubtful:
            return metadata
        return replace(metadata, topics={name: one for name, one in metadata.topics.items() if name not in doubtful})

    def _ask_zookeeper(self, client: BlockingZk) -> None:
        """Show that the session lives; an outage of Kafka is no reason to restart this process."""
        try:
            client.perform(Get(paths.BROKER_TOPICS), frozenset(Refusal))
        except (ZooKeeperUnavailableError, ZooKeeperRefusedError) as error:
            _log.warning("%s; trying again", error)
        else:
            self._vitals.answered()

    def _ended(self, outcome: str, faults: list[str]) -> None:
        self._seen.rounds[outcome] += 1
        self._faults = faults


def _try_read_kafka(
    admin: AdminClient, protocol: str, unlisted: AbstractSet[str], known: Mapping[int, Broker] | None
) -> KafkaMetadata | KafkaException:
    """Return the error instead of raising it, because the thread pool would print a traceback."""
    try:
        return read_kafka(admin, protocol, unlisted, known)
    except KafkaException as error:
        return error


def list_nodes(client: BlockingZk) -> tuple[tuple[str, ...], ...]:
    """Return the names of the nodes below each of PARENTS; create those of PARENTS that are missing."""
    lists = client.perform_all([ListChildren(parent) for parent in PARENTS], ABSENT)
    for parent, listed in zip(PARENTS, lists, strict=True):
        for path in () if isinstance(listed, Children) else (parent.rpartition("/")[0], parent):
            client.perform(Multi((Create(path),)), {Refusal.NODE_EXISTS})
    return tuple(listed.names if isinstance(listed, Children) else () for listed in lists)


def read_nodes(client: BlockingZk, found: Found) -> Nodes:
    """Read the nodes of brokers and topics."""
    refused: dict[str, str] = {}
    listed = zip(PARENTS, found.listed, strict=True)
    brokers, topics = (_contents(client, parent, names, refused) for parent, names in listed)
    return Nodes(brokers, topics, refused)


def _contents(client: BlockingZk, parent: str, names: tuple[str, ...], refused: dict[str, str]) -> dict[str, bytes]:
    """Return the contents of these children, and note those that may not be read."""
    replies = client.perform_all([Get(f"{parent}/{name}") for name in names], frozenset(Refusal))
    known = dict(zip(names, replies, strict=True))
    refused |= {
        f"{parent}/{name}": reply.refusal.value
        for name, reply in known.items()
        if isinstance(reply, Refused) and reply.refusal not in ABSENT
    }
    return {name: reply.content for name, reply in known.items() if isinstance(reply, Content)}


def _whose(client: BlockingZk, kafka: KafkaMetadata, nodes: Nodes) -> dict[str, str]:
    """Return path -> why these nodes are not this mirror's; note whose they are if nobody has done so.

    In ZooKeeper mode, Kafka would lose a broker that starts, or a reassignment. With another cluster behind
    `--bootstrap`, by mistake, all groups would lose their topics, and then their offsets. A topic that has the same id
    on both sides proves that it is none: brokers in ZooKeeper mode, of a former cluster, may have left their name.
    """
    cluster_id = kafka.cluster_id
    controller, noted = client.perform_all([Get(CONTROLLER), Get(CLUSTER_ID)], frozenset(Refusal))
    if isinstance(controller, Content) and controller.stat.ephemeral_owner:
        return {CONTROLLER: OF_BROKERS}
    if cluster_id is None:
        return {}
    if noted == Refused(Refusal.NO_NODE):  # without the right to create it, nothing is known later, as before
        content = json.dumps({"version": "1", "id": cluster_id}, separators=(",", ":")).encode()
        client.perform(Multi((Create(CLUSTER),)), frozenset(Refusal))
        client.perform(Multi((Create(CLUSTER_ID, content),)), frozenset(Refusal))
    known = _read_document(noted.content).get("id") if isinstance(noted, Content) else None
    if not isinstance(known, str) or known == cluster_id:
        return {}
    if not {(name, topic.topic_id) for name, topic in kafka.topics.items()}.isdisjoint(_ids(nodes).items()):
        return {}
    why = f"it names the Kafka cluster {known!r:.80}, and the one behind --bootstrap is {cluster_id}"
    return {CLUSTER_ID: f"{why}: nothing is mirrored; if that one is meant, delete this node"}


def carry_out(client: BlockingZk, transactions: list[Multi]) -> dict[str, str]:
    """Write the changes; return path -> why of those that were refused."""
    sendable = [one for one in transactions if client.request_limit.fits(one.operations)]
    refused = dict.fromkeys({one.operations[0].path for one in transactions}, Refusal.TOO_LARGE.value)
    replies = client.perform_all(sendable, frozenset(Refusal))  # each concerns another topic or broker
    for transaction, first_reply in zip(sendable, replies, strict=True):
        path, reply = transaction.operations[0].path, first_reply
        if isinstance(reply, Refused) and reply.refusal is Refusal.NOT_EMPTY:
            reply = _carry_out_above_others(client, transaction)
        what = " and ".join(f"{type(one).__name__} {one.path}" for one in transaction.operations)
        if isinstance(reply, Refused):
            refused[path] = f"{what} failed ({reply.refusal.value})"
        else:
            del refused[path]
            _log.info("%s", what)
    return refused


def _carry_out_above_others(client: BlockingZk, transaction: Multi) -> Reply:
    """Delete a topic's node with what Kafka left below it in ZooKeeper mode; while Kafka uses that, it is refused."""
    controller = client.perform(Get(CONTROLLER), frozenset(Refusal))
    is_persistent = isinstance(controller, Content) and not controller.stat.ephemeral_owner
    if controller != Refused(Refusal.NO_NODE) and not is_persistent:
        return Refused(Refusal.NOT_EMPTY)
    found = level = [transaction.operations[0].path]
    while level:
        lists = client.perform_all([ListChildren(path) for path in level], frozenset(Refusal))
        known = zip(level, lists, strict=True)
        level = [f"{path}/{name}" for path, listed in known if isinstance(listed, Children) for name in listed.names]
        found = [*found, *level]
    deletes = [Delete(path) for path in found[:0:-1]]
    while deletes:
        count = client.request_limit.fitting(deletes[:MAX_DELETES])
        reply = client.perform(Multi(tuple(deletes[:count])), frozenset(Refusal))
        if isinstance(reply, Refused):
            return reply
        deletes = deletes[count:]
    return client.perform(transaction, frozenset(Refusal))
