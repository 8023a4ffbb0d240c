"""The protocols that are compared: their brokers, kinds of member, and settings.

`default` is what a user gets without any settings of the protocol. `tuned` makes each quicker, as far as is known, with
sessions of 6 s and heartbeats of 500 ms, which is a choice: shorter ones are quicker still. Where topics appear or
grow, all look for them every 250 ms (here the topic mirror does). `docs/experiments.md` has both as a table.
`heartbeat-N` is `tuned` with heartbeats every N ms, for protocols whose members learn of a rebalance from a heartbeat:
the shorter, the sooner and the costlier. How records are fetched is no part of a protocol: every client of librdkafka
always has the agent's settings for that, and the Java client the same where it has such settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from consumer_agent.config import ConsumerConfig
from consumer_agent.kafka.client import DATA_PATH, RECONNECT, kafka_settings
from consumer_agent.kafka_config import LOGGER
from zkrebalancer.localcluster.cluster import BrokerKind
from zkrebalancer.protocol.settings import EAGER, INCREMENTAL, GroupSettings

TUNED_HEARTBEAT_MS = 500
HEARTBEATS_MS: Mapping[str, int] = {f"heartbeat-{ms}": ms for ms in (20, 50, 100, 200, 1_000, 3_000)}
SWEPT = tuple(name for name, ms in HEARTBEATS_MS.items() if ms >= 50)  # together with "tuned" one frontier
TUNINGS = ("default", "tuned", *HEARTBEATS_MS)  # names of settings
EVERY_BROKER: tuple[BrokerKind, ...] = ("kafka-3.9", "kafka-4")
KAFKA_4: tuple[BrokerKind, ...] = ("kafka-4",)
HELIX_SESSION, HELIX_SESSION_MS = "zk.session.timeout", "30000"  # the setting, and Helix's default
# A group counts as at rest after this silence, which is longer than the heartbeat interval.
QUIET_S: Mapping[str, float] = {"default": 6.0, "tuned": 2.0} | {
    name: max(2.0, 2 * ms / 1_000) for name, ms in HEARTBEATS_MS.items()
}
# Then a drawn part of this passes before the next step: a step at a fixed time after the last change would always meet
# the members' heartbeats in the same phase. A multiple of each heartbeat interval, and while tuned of ZooKeeper's tick.
PHASE_S: Mapping[str, float] = {"default": 15.0, "tuned": 4.0} | {
    name: max(4.0, 2 * ms / 1_000) for name, ms in HEARTBEATS_MS.items()
}
BACKLOG_PHASE_S = 0.5  # the same where the group reads a backlog meanwhile: one heartbeat while tuned


# Of each client of librdkafka, as it takes them.
CLIENT: Mapping[str, str] = {key: str(value).lower() for key, value in {**DATA_PATH, **RECONNECT}.items()}


def agents_client() -> Mapping[str, str]:
    """Return every setting that an agent gives its client by itself, but who and where it is, and where it logs."""
    given = kafka_settings(ConsumerConfig(zookeeper="z:1", bootstrap="b:1", group="g"))
    own = {"bootstrap.servers", "client.id", "group.id", LOGGER}
    return {key: str(value).lower() for key, value in given.items() if key not in own}


# The same of Kafka's Java client; it has no settings for its queue or for pauses after errors of a fetch.
JAVA_CLIENT: Mapping[str, str] = {
    "fetch.max.wait.ms": CLIENT["fetch.wait.max.ms"],
    "reconnect.backoff.max.ms": CLIENT["reconnect.backoff.max.ms"],
}


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of each member's client, of the broker, and of the group if this project's coordinator manages it.

    `gateway`: options of the gateway that members use instead of the broker; None: they use the broker. `controller`:
    settings of the protocol's own controllers, a leader and a standby; None: it has none. `discovery`: how often a
    controller, or else each member's client, looks for new topics and partitions, if there may be any. `weighing`: with
    what a controller uses weights of partitions, if there are any; empty: it cannot, or does not.
    """

    member: Mapping[str, str] = field(default_factory=dict)
    broker: Mapping[str, str] = field(default_factory=dict)
    group: GroupSettings | None = None
    gateway: Mapping[str, str] | None = None
    controller: Mapping[str, str] | None = None
    discovery: Mapping[str, str] = field(default_factory=dict)
    weighing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Protocol:
    """One protocol; `brokers` are those it runs on, its default first; `kind` selects the member program.

    `settings`: by name, of TUNINGS; those of heartbeats only where members have any. A running group comes to this
    protocol by restarts of each member: `earlier` has the settings that members' clients have before each restart, by
    name as `settings`, and `earlier_mode` the group's mode before, if this project's coordinator manages it.
    """

    name: str
    about: str
    kind: Literal["central", "kafka", "java", "zookeeper", "helix"]
    brokers: tuple[BrokerKind, ...]
    settings: Mapping[str, Settings]
    earlier: Sequence[Mapping[str, Mapping[str, str]]] = ()
    earlier_mode: str = ""

    @property
    def restarts(self) -> int:
        """The number of restarts of each member in an upgrade to this protocol; 0: no upgrade is known."""
        return len(self.earlier)

    def versions(self, tuning: str) -> list[Mapping[str, str]]:
        """Return the settings of members' clients before an upgrade, and after each restart."""
        return [*(of[tuning] for of in self.earlier), self.settings[tuning].member]

    @property
    def is_central(self) -> bool:
        """Whether this project's coordinator rebalances the group."""
        return self.settings["default"].group is not None

    def member(self, tuning: str, *, is_growing: bool) -> Mapping[str, str]:
        """Return the settings of each member's client; `is_growing`: topics appear or grow while it runs."""
        of = self.settings[tuning]
        return {**of.discovery, **of.member} if is_growing and of.controller is None else of.member

    def described(self, tuning: str, *, is_growing: bool) -> Mapping[str, str]:
        """Return the settings of each member's client for the report, those that the agent sets itself included."""
        member = self.member(tuning, is_growing=is_growing)
        return {**agents_client(), **member} if self.kind == "central" else member

    @property
    def has_gateway(self) -> bool:
        """Whether members use a gateway instead of the broker."""
        return self.settings["default"].gateway is not None

    def controller(
        self, tuning: str, *, is_static: bool, is_growing: bool, has_weights: bool = False
    ) -> Mapping[str, str] | None:
        """Return the settings of the protocol's own controllers, None if it has none.

        With static members, partitions wait for as long as a session lasts, as those of Kafka's static members do.
        `has_weights`: weights of the partitions are known.
        """
        of = self.settings[tuning]
        if of.controller is None:
            return None
        delay = {"rebalance.delay.ms": of.member.get(HELIX_SESSION, HELIX_SESSION_MS)} if is_static else {}
        discovery = of.discovery if is_growing else {}
        weighing = of.weighing if has_weights else {}
        return {**of.controller, **delay, **discovery, **weighing}

    def group(self, tuning: str, *, is_skewed: bool, is_before: bool = False) -> GroupSettings | None:
        """Return the group's settings, None unless this project's coordinator manages it.

        A skewed load is tuned with the strategy `balanced`, which has no advantage under an even load. `is_before`: an
        upgrade.
        """
        group = self.settings[tuning].group
        if group is not None and is_before and self.earlier_mode:
            group = replace(group, mode=self.earlier_mode)
        return replace(group, strategy="balanced") if group and tuning != "default" and is_skewed else group


def _central(name: str, about: str, mode: str, earlier_mode: str) -> Protocol:
    group = GroupSettings(mode=mode)
    tuned = Settings(member={"session_timeout_ms": "6000"}, group=group)
    settings = {"default": Settings(group=group), "tuned": tuned}
    return Protocol(name, about, "central", EVERY_BROKER, settings, (_members(settings),), earlier_mode)


def _members(settings: Mapping[str, Settings]) -> Mapping[str, Mapping[str, str]]:
    """Return what members' clients have, by name of the settings."""
    return {tuning: of.member for tuning, of in settings.items()}


_CLASSIC_BROKER = {"group.initial.rebalance.delay.ms": "3000"}  # Kafka's default, which a local cluster overrides
_LINGER = {"group.coordinator.append.linger.ms": "0"}  # by default 5 in 4.1, and adaptive in 4.4
_TUNED_BROKER = {"group.initial.rebalance.delay.ms": "0", **_LINGER}
_DISCOVERY = {"topic.metadata.refresh.interval.ms": "250"}
# librdkafka sends a JoinGroup a second at most, unless metadata came meanwhile, and this protocol needs two of them.
_JOIN_AGAIN = {"topic.metadata.refresh.interval.ms": "250"}
_JAVA_DISCOVERY = {"metadata.max.age.ms": "250"}
# After half of its heartbeats, the Java client 4.1 waits for the longest backoff, 1 s, unless both are equal; 4.4 not.
_TUNED_JAVA_KIP848_MEMBER = {"retry.backoff.ms": "50", "retry.backoff.max.ms": "50"}
_STRATEGY = "partition.assignment.strategy"
_JAVA_RANGE = "org.apache.kafka.clients.consumer.RangeAssignor"
_JAVA_COOPERATIVE = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
# The settings that are tuned, by name -> their heartbeats in milliseconds.
_TUNED: Mapping[str, int] = {"tuned": TUNED_HEARTBEAT_MS, **HEARTBEATS_MS}


def _classic(name: str, about: str, strategy: str, more: Mapping[str, str] | None = None) -> Protocol:
    """Return one of the classic protocols; `more`: tuned settings of its clients besides those of all."""
    member = {**CLIENT, _STRATEGY: strategy}
    tuned = {**member, **(more or {}), "session.timeout.ms": "6000"}
    settings = {"default": Settings(member, _CLASSIC_BROKER)} | {
        tuning: Settings({**tuned, **_woken(ms), "heartbeat.interval.ms": str(ms)}, _TUNED_BROKER, discovery=_DISCOVERY)
        for tuning, ms in _TUNED.items()
    }
    return Protocol(name, about, "kafka", EVERY_BROKER, settings)


def _woken(heartbeat_ms: int) -> Mapping[str, str]:
    """Return what lets librdkafka's classic client send such heartbeats: its main thread sends one when it wakes.

    That is mostly twice a second; each answer with metadata wakes it, too.
    """
    return {"topic.metadata.refresh.interval.ms": str(heartbeat_ms)} if heartbeat_ms < TUNED_HEARTBEAT_MS else {}


def _with_java(
    name: str, about: str, like: Protocol, member: Mapping[str, str], tuned: Mapping[str, str] | None = None
) -> Protocol:
    """Return a protocol with Kafka's own client, `like` that of librdkafka; `member`, `tuned`: settings of clients."""
    kept = ("session.timeout.ms", "heartbeat.interval.ms")
    settings = {
        tuning: replace(
            of,
            member={**JAVA_CLIENT, **member}
            | ({} if tuning == "default" else dict(tuned or {}))
            | {key: of.member[key] for key in kept if key in of.member},
            discovery=_JAVA_DISCOVERY if of.discovery else {},
        )
        for tuning, of in like.settings.items()
    }
    return Protocol(name, about, "java", like.brokers, settings)


def _by_two_restarts(to: Protocol, before: str) -> Protocol:
    """Return a protocol of Java clients with its upgrade from another assignor: first both of them, then its own."""
    stages = (before, f"{_JAVA_COOPERATIVE},{before}")
    earlier = [
        {tuning: {**of.member, _STRATEGY: strategy} for tuning, of in to.settings.items()} for strategy in stages
    ]
    return replace(to, earlier=earlier)


def _consumer_broker(heartbeat_ms: int) -> Mapping[str, str]:
    return {
        "group.consumer.heartbeat.interval.ms": str(heartbeat_ms),
        "group.consumer.min.heartbeat.interval.ms": str(heartbeat_ms),
        "group.consumer.session.timeout.ms": "6000",
        "group.consumer.min.session.timeout.ms": "6000",
        "group.consumer.assignment.interval.ms": "0",  # by default, a second change waits for a second
        "group.consumer.assignor.offload.enable": "false",  # by default, the heartbeat that causes it waits for none
        **_LINGER,
    }


_KIP848_MEMBER = {**CLIENT, "group.protocol": "consumer"}
_RANGE = _classic("classic-range", "JoinGroup and SyncGroup, everything stops; librdkafka's default", "range")
_COOPERATIVE = _classic(
    "classic-cooperative", "JoinGroup and SyncGroup in two rounds", "cooperative-sticky", _JOIN_AGAIN
)
_KIP848 = Protocol(
    "kip848",
    "the broker assigns, members move one by one (KIP-848)",
    "kafka",
    KAFKA_4,
    {
        "default": Settings(_KIP848_MEMBER),
        **{
            tuning: Settings(_KIP848_MEMBER, _consumer_broker(ms), discovery=_DISCOVERY)
            for tuning, ms in _TUNED.items()
        },
    },
    (_members(_RANGE.settings),),  # brokers do not convert groups of librdkafka's cooperative-sticky
)
_JAVA = _by_two_restarts(
    _with_java(
        "java-cooperative",
        "as classic-cooperative, with Kafka's Java client",
        _COOPERATIVE,
        {_STRATEGY: _JAVA_COOPERATIVE},
    ),
    _JAVA_RANGE,
)


def _gateway_options(tuning: str) -> Mapping[str, str]:
    """Return the gateway's own settings, the same as for the brokers."""
    if tuning == "default":
        return {}
    return {
        "--initial-rebalance-delay-ms": "0",
        "--consumer-heartbeat-interval-ms": str(_TUNED[tuning]),
        "--consumer-session-timeout-ms": "6000",
    }


def _behind_gateway(
    name: str, about: str, like: Protocol, assign: Literal["client", "central"], before: Protocol | None = None
) -> Protocol:
    """Return a protocol of Kafka's clients, as `like`, with a gateway between them and the broker.

    A group can come to it from the clients of `before`.
    """
    group = GroupSettings() if assign == "central" else None
    settings = {
        tuning: replace(of, broker={}, group=group, gateway={"--assign": assign, **_gateway_options(tuning)})
        for tuning, of in like.settings.items()
        if tuning in {"default", "tuned", *SWEPT}  # a gateway takes no shorter ones
    }
    earlier = () if before is None else (_members(before.settings),)
    return Protocol(name, about, "kafka", EVERY_BROKER, settings, earlier)


_ZK_CLIENT_SIDE = Protocol(
    "zk-client-side",
    "every member assigns and claims partitions in ZooKeeper; Kafka's old consumer",
    "zookeeper",
    ("kafka-3.9",),
    {
        "default": Settings(),
        "tuned": Settings(
            {
                "rebalance.backoff.ms": "200",
                "rebalance.max.retries": "100",
                "auto.commit.interval.ms": "5000",
            }
        ),
    },
)

# ZooKeeper's default socket sleeps for 100 ms when a session is closed, and Helix opens and closes some in each join.
_HELIX_SOCKET = {"zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty"}
_TUNED_HELIX = {HELIX_SESSION: "6000", **_HELIX_SOCKET}
# Helix's rebalancer that uses weights, and the weights' unit (`helix.weights_option`).
_WAGED = {
    "rebalancer": "org.apache.helix.controller.rebalancer.waged.WagedRebalancer",
    "instance.capacity.key": "records_per_1000_s",
}
_HELIX = Protocol(
    "helix",
    "a controller of Apache Helix assigns through ZooKeeper, with Kafka's Java client",
    "helix",
    EVERY_BROKER,
    {
        "default": Settings(JAVA_CLIENT, controller={}),
        "tuned": Settings(
            {**JAVA_CLIENT, **_TUNED_HELIX},
            controller={
                **_TUNED_HELIX,
                "task.pipeline.disabled": "true",
                "external.view.disabled": "true",
            },
            discovery=_JAVA_DISCOVERY,
            weighing=_WAGED,
        ),
    },
)

PROTOCOLS: Mapping[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        _central("central-incremental", "this project: only partitions that move are stopped", INCREMENTAL, EAGER),
        _central("central-eager", "this project: every partition is stopped, then all are started", EAGER, INCREMENTAL),
        _RANGE,
        _COOPERATIVE,
        _KIP848,
        _JAVA,
        replace(
            _with_java(
                "java-848",
                "as kip848, with Kafka's Java client",
                _KIP848,
                {"group.protocol": "consumer"},
                _TUNED_JAVA_KIP848_MEMBER,
            ),
            earlier=_JAVA.earlier[:1],
        ),
        _behind_gateway("gateway-client", "as classic-range, coordinated by this project's gateway", _RANGE, "client"),
        _behind_gateway("gateway-848", "as kip848, coordinated by the gateway", _KIP848, "client", _RANGE),
        _behind_gateway(
            "gateway-central", "clients of KIP-848, assigned by our coordinator", _KIP848, "central", _RANGE
        ),
        _behind_gateway(
            "gateway-central-classic", "cooperative clients, assigned by our coordinator", _COOPERATIVE, "central"
        ),
        _ZK_CLIENT_SIDE,
        _HELIX,
    )
}
