"""The gateway process: ports, connections, and greenlets that follow ZooKeeper and the brokers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from ssl import SSLEOFError

import gevent
from gevent.event import Event
from gevent.lock import RLock
from gevent.pool import Pool
from gevent.server import StreamServer
from gevent.socket import socket
from gevent.ssl import SSLContext

from zkrebalancer.gateway import metrics
from zkrebalancer.gateway.addresses import Addresses, Node
from zkrebalancer.gateway.agents import Agents
from zkrebalancer.gateway.connection import Connection
from zkrebalancer.gateway.dialing import Address, Dialer, LinkError, name_of, prepare
from zkrebalancer.gateway.group_requests import GroupRequests
from zkrebalancer.gateway.groups import Groups, now_ms
from zkrebalancer.gateway.lanes import OffsetStore
from zkrebalancer.gateway.links import Links
from zkrebalancer.gateway.membership import Membership, UnfinishedRestoreError
from zkrebalancer.gateway.metrics import Metrics, Present
from zkrebalancer.gateway.offsets import UpstreamOffsets
from zkrebalancer.gateway.rewriting import nodes
from zkrebalancer.gateway.room import Room
from zkrebalancer.gateway.security import Upstream
from zkrebalancer.gateway.session import Session
from zkrebalancer.gateway.topic_reader import TopicReader, partition_counts
from zkrebalancer.gateway.turns import in_turns, note_name
from zkrebalancer.gateway.zookeeper_offsets import ZooKeeperOffsets
from zkrebalancer.group_protocol.effects import Fenced, Targeted, TopicsRead
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.placement import bucket_of, gateway_of
from zkrebalancer.group_protocol.settings import GroupProtocolSettings
from zkrebalancer.kafka_protocol.schema import Versions
from zkrebalancer.observe.events import EventLog
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Connected, Lost, Suspended
from zkrebalancer.protocol.complaints import Complaints, LineRate
from zkrebalancer.protocol.errors import ConfigurationError, NodeContentError, ZooKeeperUnavailableError
from zkrebalancer.runtime import clock, http_server
from zkrebalancer.runtime.http_server import Pages
from zkrebalancer.runtime.notify import Notifier
from zkrebalancer.runtime.vitals import STATE_LOG, Health, Vitals

MAX_CONNECTIONS = 20_000
REFRESH_S = 5.0  # how often brokers are looked up, so that a broker that hangs is soon avoided
RETRY_S = 1.0
REFUSED_RETRY_S = 10.0  # after a right was missing
FIRST_RETRY_S = 0.05  # until there is a lease, and until this gateway is listed in ZooKeeper
# How long after the start the gateway delays its answers about the cluster's nodes until it is one of them. A client
# that learned only of brokers would list no groups until it asks for the nodes again, minutes later.
JOIN_WAIT_S = 5.0
HANDSHAKE_TIMEOUT_S = 10.0  # of TLS with a client
BACKLOG = 1_024
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """The gateway's addresses for listening and for clients, and the brokers to which it relays."""

    zookeeper: str
    listen: Address
    advertised_host: str
    upstream: list[Address]
    http: Address | None
    session_timeout_ms: int
    events_directory: Path | None = None
    tls: SSLContext | None = None  # of the gateway's own ports
    offsets: str = "upstream"  # where they are kept: there, or in "zookeeper"
    security: Upstream = Upstream()  # noqa: RUF009  # it cannot be changed
    notifier: Notifier = field(default_factory=lambda: Notifier({}))
    metrics_per_group: bool = False


class Gateway:
    """One gateway; `run` until `stop`."""

    def __init__(self, config: GatewayConfig, settings: GroupProtocolSettings) -> None:
        """Prepare everything; open nothing yet."""
        self._config = config
        self._changed = Event()
        self._is_stopped = False
        self.is_per_group = config.metrics_per_group
        self.metrics = Metrics()
        self._session = Session(config.zookeeper, config.session_timeout_ms, self._session_changed, self._watched)
        self._vitals = Vitals(config.session_timeout_ms, config.notifier, stalled=self._session.stalled)
        self._membership = Membership(self._session, config.advertised_host, config.listen[1], config.offsets)
        self._dialer = Dialer(config.security)
        self._links = Links(config.upstream, self._dialer)
        self.asks_for_rights = config.security.credentials is not None
        self._topics = topics = TopicReader(self._links, lambda found: self._groups.step(TopicsRead(found)))
        self._events = EventLog(config.events_directory, f"gateway-{config.listen[1]}")
        self._agents: Agents | None = None
        if settings.assigns_centrally:
            self._agents = Agents(self._session, self._events, self._give, now_ms)
        self._groups = Groups(
            self._session, settings, self.metrics, self._changed.set, topics.want, self._agents, topics.remember
        )
        self._offsets: OffsetStore = UpstreamOffsets(
            self._links, self.metrics, self._groups.fence, self._groups.figures, self._groups.is_read
        )
        if config.offsets == "zookeeper":
            counts = partial(partition_counts, self._links)
            self._offsets = ZooKeeperOffsets(self._session, self.metrics, self._groups.fence, counts)
        self.room = Room()
        self._requests = GroupRequests(self._groups, self._offsets, self.metrics, self.room)
        self._ports: dict[int, StreamServer] = {}  # slot -> its server
        self._closed_slots: set[int] = set()  # whose port cannot be opened
        self._learn_again_us = 0  # not before that, a broker without port is looked after
        self._connections = Pool(MAX_CONNECTIONS)
        self._complaints = Complaints()
        self._lines = LineRate()  # a client may have any number of addresses
        self._joined = Event()  # set once this gateway is listed in ZooKeeper
        self._waiting = ""  # for the end of a restore
        self._join_until_ms = now_ms() + int(JOIN_WAIT_S * 1_000)
        self._learning = RLock()
        self._is_upstream_known: bool | None = None  # None: not asked yet
        self.api_versions: dict[int, bytes] = {}
        self._last_session_id = 0
        self._workers: list[gevent.Greenlet[..., None]] = []
        self._next_try: gevent.Greenlet[..., None] | None = None  # to keep up
        self._failed: BaseException | None = None
        self.served: Mapping[int, Versions] = self._requests.served
        self.answer, self.broker_versions = self._requests.answer, self._links.versions

    def run(self, when_listening: Callable[[], None]) -> None:
        """Serve until `stop` is called; `when_listening` is called once the gateway listens.

        Raises:
            ConfigurationError: it cannot listen at an address.
            DisplacedError, NodeContentError, OtherOffsetsError, TooManyError: it cannot be listed in ZooKeeper.

        """
        http = None
        main = self._listening(self._config.listen, None)
        try:
            if self._config.http is not None:
                registry = metrics.registry(self.metrics, self._present)
                http = http_server.serve(self._config.http, Pages(self._health, registry))
            when_listening()
            self._session.start()
            for work in (
                self._session.renew_lease,
                self._groups.wake_timers,
                self._keep_brokers_known,
                self._topics.run,
                self._offsets.watch,
                self._beat,
            ):
                self._begin(work)
            if self._agents is not None:
                self._begin(self._agents.wake_timers)
            while not self._is_stopped:
                self._changed.clear()
                self._keep_up()
                self._changed.wait()
            if self._failed is not None:
                raise self._failed
        finally:
            gevent.killall(self._workers)
            for server in (main, http, *self._ports.values()):
                if server is not None:
                    server.stop(timeout=0)
            self._connections.kill()
            self._links.close()
            self._session.close()
            self._events.close()

    def _begin(self, work: Callable[[], None]) -> None:
        """Run work without which the gateway cannot serve: if it fails, the gateway ends."""

        def failed(worker: gevent.Greenlet[..., None]) -> None:
            self._failed = worker.exception
            self.stop()

        worker = gevent.spawn(work)
        worker.link_exception(failed)
        self._workers.append(worker)

    def stop(self) -> None:
        """End `run`; callable from a signal handler of gevent."""
        self._vitals.stopping()
        self._is_stopped = True
        self._changed.set()

    # ---- ZooKeeper

    def _session_changed(self, event: Connected | Suspended | Lost) -> None:
        self.metrics.session_losses += isinstance(event, Lost)
        if isinstance(event, Connected):
            self.metrics.sessions += event.session_id != self._last_session_id
            self._last_session_id = event.session_id
        if self._session.session_id == 0 and not self._is_stopped:  # which ends all of it, without a warning
            self._groups.lose_all()
        if self._agents is not None:
            self._agents.session_changed(event)
        self._changed.set()

    def _give(self, event: Targeted | Fenced) -> None:
        self._groups.step(event)

    def _watched(self, path: str) -> None:
        if self._agents is None or not self._agents.watched(path):
            self._changed.set()

    def _keep_up(self) -> None:
        """Adapt to the present session and the live gateways."""
        if self._session.session_id == 0:
            return
        if not self._session.has_lease:
            self._keep_up_later(FIRST_RETRY_S)
            return
        try:
            self._membership.refresh()
            self._waiting = ""
            self._joined.set()
            self._open_ports()
            if self._membership.number is not None:
                self._groups.serve(self._membership.number, list(self._membership.addresses().gateways))
            if self._membership.was_refused:  # no watch tells that it may be read again
                self._keep_up_later(REFUSED_RETRY_S)
        except UnfinishedRestoreError as error:
            self._waiting = str(error)
            if (text := self._complaints.text(paths.RESTORE, self._waiting, now_ms() / 1_000)) is not None:
                _log.warning("%s", text)
            self._keep_up_later(RETRY_S)
        except ZooKeeperUnavailableError as error:
            if (text := self._complaints.text(paths.GATEWAYS, str(error), now_ms() / 1_000)) is not None:
                _log.warning("%s", text)
            self._keep_up_later(RETRY_S)

    def _keep_up_later(self, pause_s: float) -> None:
        """Try again after a pause; of several tries, only the last one is to come, however often events ask for one."""
        if self._next_try is not None:
            self._next_try.kill(block=False)
        self._next_try = gevent.spawn_later(pause_s, self._changed.set)

    # ---- brokers

    def _keep_brokers_known(self) -> None:
        while True:
            if self._membership.number is None:
                gevent.sleep(FIRST_RETRY_S)
                continue
            try:
                answer = self._links.ask_any("Metadata", {"topics": []}).fields()
                self.learn(nodes(answer["brokers"], "node_id"))
                self._is_upstream_known = True
                gevent.sleep(REFRESH_S)
            except LinkError as error:
                if self._is_upstream_known is not False:  # logged once
                    _log.warning("no broker answers: %s", error)
                self._is_upstream_known = False
                gevent.sleep(RETRY_S)

    def learn(self, brokers: list[Node]) -> Addresses:
        """Note the brokers' own addresses, open their ports, and return all addresses as clients see them."""
        self._joined.wait(max(0, self._join_until_ms - now_ms()) / 1_000)
        self._links.learn({one.node_id: (one.host, one.port) for one in brokers})
        ids = {one.node_id for one in brokers}
        if self._has_portless(ids) and clock.steady_us() >= self._learn_again_us:
            with self._learning:
                try:
                    self._membership.add_brokers(ids)
                except (ZooKeeperUnavailableError, NodeContentError) as error:
                    if (text := self._complaints.text("brokers", str(error), now_ms() / 1_000)) is not None:
                        _log.warning("a new broker gets no port yet: %s", text)
                self._open_ports()
            if self._has_portless(ids):  # every client asks for metadata
                self._learn_again_us = clock.steady_us() + int(RETRY_S * 1e6)
        return self.addresses()

    def _has_portless(self, ids: Iterable[int]) -> bool:
        slots = self._membership.addresses().slots
        return any(slots.get(broker_id) not in self._ports for broker_id in ids)

    def _open_ports(self) -> None:
        """Open the port of every broker that has a slot."""
        known = self._membership.addresses()
        for broker_id, slot in known.slots.items():
            if slot not in self._ports:
                try:
                    self._ports[slot] = self._listening((self._config.listen[0], known.broker_port(slot)), slot)
                    self._closed_slots.discard(slot)
                except ConfigurationError as error:
                    if slot not in self._closed_slots:  # logged once
                        _log.error("broker %d cannot be reached through this gateway: %s", broker_id, error)
                    self._closed_slots.add(slot)

    def addresses(self) -> Addresses:
        """Return the addresses of the brokers whose port is open, and of the live gateways."""
        known = self._membership.addresses()
        opened = {broker_id: slot for broker_id, slot in known.slots.items() if slot in self._ports}
        return Addresses(known.host, known.port, opened, known.gateways)

    def connect(self, broker_id: int | None) -> socket:
        """Connect to a broker, or to any; raises OSError."""
        try:
            if broker_id is None:
                return self._dialer.dial_any(self._links.addresses_to_try())
            address = self._links.brokers.get(broker_id)
            if address is None:
                raise LinkError(f"broker {broker_id} is not known yet")
            return self._dialer.dial(address)
        except OSError:
            self.metrics.errors["upstream"] += 1
            raise

    # ---- connections

    def _listening(self, address: Address, slot: int | None) -> StreamServer:
        """Serve the port of a broker's slot, or that of the gateway itself."""

        def serve(client: socket, where: tuple[str, int]) -> None:
            self.metrics.connections += 1
            broker_id = None if slot is None else self._membership.addresses().broker_at(slot)
            try:
                prepare(client)
                secured = client if self._config.tls is None else self._secured(client, self._config.tls, where[0])
                if secured is not None and (slot is None or broker_id is not None):
                    Connection(secured, where[0], broker_id, self).run()
            finally:
                self.metrics.connections -= 1

        server = StreamServer(address, serve, spawn=self._connections, backlog=BACKLOG)
        try:
            server.start()
        except OSError as error:
            raise ConfigurationError(f"{name_of(address)} cannot be listened at: {error.strerror}") from None
        return server

    def _secured(self, client: socket, tls: SSLContext, client_host: str) -> socket | None:
        """Return the connection with TLS, None if the handshake failed."""
        try:
            with gevent.Timeout(HANDSHAKE_TIMEOUT_S, TimeoutError(f"no TLS within {HANDSHAKE_TIMEOUT_S:g} s")):
                return tls.wrap_socket(client, server_side=True)
        except (SSLEOFError, ConnectionError) as error:  # somebody checked whether the port is open
            _log.debug("the connection of %s has ended: %r", client_host, error)
        except OSError as error:
            self.note_malformed(client_host, error)
        client.close()
        return None

    def note_malformed(self, client_host: str, error: Exception) -> None:
        """Count a connection that was closed because of an invalid frame, and log it, but not too often."""
        self.metrics.malformed += 1
        now_s = now_ms() / 1_000
        text = self._complaints.text(client_host, str(error), now_s, self._lines)
        if text is not None:
            _log.warning("the connection of %s was ended: %s", client_host, text)

    def coordinators(self, groups: list[str]) -> dict[str, tuple[int, Node | None]]:
        """Return group -> (error code, the gateway that serves it)."""
        addresses = self.addresses()
        names = [str(number) for number in addresses.gateways]
        if not names or not self._session.has_lease:
            return dict.fromkeys(groups, (int(ErrorCode.COORDINATOR_NOT_AVAILABLE), None))
        found: dict[str, tuple[int, Node | None]] = {}
        places: dict[int, Node | None] = {}  # bucket -> its gateway: a request may name 100,000 groups
        for group in in_turns(groups):
            note_name(group)
            error, bucket = self._offsets.coordinator_error(group), bucket_of(group)
            if bucket not in places:
                places[bucket] = addresses.gateway(int(gateway_of(bucket, names)))
            found[group] = (error, None) if error else (error, places[bucket])
        return found

    # ---- health and metrics

    def _faults(self) -> list[str]:
        return [*self._reasons_to_wait(), *self._groups.refusals()]

    def _reasons_to_wait(self) -> list[str]:
        """Return the faults that concern more than some buckets."""
        found = []
        if not self._session.has_lease:
            found.append("ZooKeeper does not answer")
        elif self._waiting:
            found.append(self._waiting)
        elif not self._groups.is_settled or self._membership.number is None:
            found.append("groups are being taken over")
        if not self._is_upstream_known:
            found.append("no broker answers")
        return found

    def _health(self) -> Health:
        faults, buckets = self._faults(), self._groups.served_buckets
        return Health(
            self._vitals.death(), faults, buckets > 0, {"buckets": buckets, "groups": self._groups.group_count}
        )

    def _beat(self) -> None:
        """Check once a second that the loop makes progress, and tell systemd: relays go on without ZooKeeper."""
        while True:
            due_us = clock.steady_us() + int(self._vitals.beat_s * 1e6)
            gevent.sleep(self._vitals.beat_s)
            self.metrics.observe_lag(max(0, clock.steady_us() - due_us) / 1e6)
            self._vitals.looped()
            faults = self._faults()
            status = "; ".join(faults) or f"{self._groups.group_count} groups, {self.metrics.connections} clients"
            # systemd would end a gateway that is not ready in time, and what it serves with it.
            self._vitals.report(is_ready=not self._reasons_to_wait(), status=status)
            if self._connections.full() and self._complaints.text("full", "", now_ms() / 1_000) is not None:
                _log.warning("%d connections are open: others wait until one is closed", MAX_CONNECTIONS)

    def _present(self) -> Present:
        gauges = {
            "connections": self.metrics.connections,
            "members": 0 if self._agents is None else self._agents.count,
            "buckets": self._groups.served_buckets,
            "brokers": len(self._ports),
            "ready": not self._faults(),
            "layout_readable": not self._membership.fault,
            "undescribed_topics": self._topics.undescribed,
            "session_connected": self._session.session_id != 0,
            "lease_seconds": self._session.lease_s,
            "calls_under_way": self._session.calls_under_way,
            "pieces_bytes": self.room.pieces.used,
            "large_bytes": self.room.used,
        }
        return Present(gauges, self._groups.figures(), self.is_per_group)

    def log_state(self) -> None:
        """Write the state of this gateway and of all its groups to the log."""
        shown = self._health().facts
        STATE_LOG.info("gateway %s: %s; faults: %s", name_of(self._config.listen), shown, self._faults() or "none")
        for one in self._groups.figures():
            STATE_LOG.info(
                "group %s: %s (%s), %d members, generation %d",
                one.group,
                one.state,
                one.group_type,
                one.members,
                one.generation,
            )

    def show_groups(self, is_wanted: bool) -> None:
        """Change whether metrics have labels per group."""
        self.is_per_group = is_wanted
