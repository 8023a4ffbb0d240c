"""The plan of one run: its parameters, its cluster, and every setting that its programs get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zkrebalancer.experiments import bulk_producer, java_programs, producer
from zkrebalancer.experiments.lab import session_options
from zkrebalancer.experiments.members import reader
from zkrebalancer.experiments.protocols import BACKLOG_PHASE_S, PHASE_S, QUIET_S, Protocol
from zkrebalancer.experiments.scenarios.model import Cast, Scenario
from zkrebalancer.localcluster import slow_disk
from zkrebalancer.localcluster.cluster import BrokerKind, LocalCluster
from zkrebalancer.localcluster.programs import HEAP, IN_PRODUCTION

CHROOT = "/experiment"
TICK_MS, TUNED_TICK_MS = 2_000, 500  # ZooKeeper's default, and tuned: sessions end up to so much late
COORDINATOR_SESSION_TIMEOUT_MS = 6_000  # the coordinator's default
MIRROR_INTERVAL_S = 1.0  # the default
TUNED_MIRROR_INTERVAL_S = 0.25  # where topics change: as often as tuned clients of Kafka look there
SLOWED = f"a library, preloaded into each server, in which {', '.join(slow_disk.CALLS)} take at least sync_ms"
_JVM = {HEAP: f"{java_programs.HEAP_MB}m"}
# Settings of the members of a kind; those of their protocol are added.
_OF_KIND: Mapping[str, Mapping[str, object]] = {
    "central": {**reader.CENTRAL, "commits of the application, ms": reader.COMMIT_INTERVAL_MS},
    "kafka": reader.KAFKA,
    "java": {**java_programs.JAVA, **_JVM},
    "zookeeper": {**java_programs.OLD, **_JVM},
    "helix": {**java_programs.HELIX, **_JVM},
}


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of one run."""

    protocol: Protocol
    scenario: Scenario
    tuning: str
    cast: Cast
    broker: BrokerKind
    members_per_process: int

    @property
    def folder(self) -> Path:
        """The folder of its results, below the folder of all runs."""
        cast = self.cast
        size = f"{self.tuning}-m{cast.members}-p{cast.partitions}-s{cast.seed}"
        return Path(self.protocol.name, self.scenario.name, size)

    @property
    def title(self) -> str:
        """A short description."""
        return f"{self.protocol.name}, {self.scenario.name} ({self.tuning}, seed {self.cast.seed})"

    def cluster(self) -> LocalCluster:
        """Return its servers, which are not started."""
        return LocalCluster(
            chroot=CHROOT,
            tick_ms=TICK_MS if self.tuning == "default" else TUNED_TICK_MS,
            zookeepers=self.scenario.servers,
            broker=self.broker,
            brokers=self.scenario.servers,
            round_trip_ms=self.scenario.round_trip_ms,
            sync_ms=self.scenario.sync_ms,
            kafka_properties=self.protocol.settings[self.tuning].broker,
            mirror_interval_s=self._mirror_interval_s(),
            jvm_options=IN_PRODUCTION,
        )

    def _mirror_interval_s(self) -> float:
        """Return how often the topic mirror looks: only this project needs one, others would be charged for it."""
        if not self.protocol.is_central:
            return 0.0
        is_quick = self.tuning != "default" and self.scenario.is_growing(self.cast)
        return TUNED_MIRROR_INTERVAL_S if is_quick else MIRROR_INTERVAL_S

    def details(self) -> dict[str, Any]:
        """Return every setting that affects the run and differs from its program's default.

        They are those that start the programs, without addresses, names and folders.
        """
        protocol, tuning, scenario, cast = self.protocol, self.tuning, self.scenario, self.cast
        group = protocol.group(tuning, is_skewed=scenario.hottest > 0)
        controller = protocol.controller(
            tuning,
            is_static=scenario.is_static,
            is_growing=scenario.is_growing(cast),
            has_weights=scenario.has_weights,
        )
        gateway, sessions = protocol.settings[tuning].gateway, session_options(COORDINATOR_SESSION_TIMEOUT_MS)
        servers = self.cluster().server_settings
        return {
            "member": self._member(),
            "broker": {"kind": self.broker, **servers["broker"]},
            "zookeeper": servers["zookeeper"],
            "coordinator": sessions if protocol.is_central else None,
            "group": None if group is None else asdict(group),
            "gateway": None if gateway is None else {**sessions, **gateway},
            "controller": None if controller is None else dict(controller),
            "topic_mirror": servers.get("topic_mirror"),
            "producer": dict(bulk_producer.SETTINGS if scenario.records_s else producer.SETTINGS),
            "servers_of_each_kind": scenario.servers,
            "round_trip_ms": scenario.round_trip_ms,
            "sync_ms": scenario.sync_ms or None,
            "members_per_process": self.members_per_process,
            "records_per_partition_s": scenario.rate(cast),
            "record_bytes": scenario.record_bytes or None,
            "backlog": scenario.backlog,
            "groups": cast.groups,
            "member_before": dict(protocol.versions(tuning)[0]) if scenario.is_upgrade else None,
            "mode_before": (protocol.earlier_mode or None) if scenario.is_upgrade else None,
            "skew": scenario.skew(cast),
            "record_work_us": scenario.record_work_us(cast),
            "quiet_s": QUIET_S[tuning],
            "run": {
                "longest pause before a step, s": PHASE_S[tuning],
                **({"longest pause before the first change, s": BACKLOG_PHASE_S} if scenario.backlog else {}),
                **({} if scenario.records_s else {"first records longer by up to, bytes": producer.INDEX_BYTES}),
                **({"what makes syncs of servers slow": SLOWED} if scenario.sync_ms else {}),
                "options of each JVM": " ".join(IN_PRODUCTION),
            },
        }

    def _member(self) -> dict[str, object]:
        """Return the settings of each member: of its client, and how the application reads."""
        kind, growing = self.protocol.kind, self.scenario.is_growing(self.cast)
        described = self.protocol.described(self.tuning, is_growing=growing)
        return {**_OF_KIND[kind], **described, **self.scenario.reading(self.cast)}
