"""`zkrebalancer group-coordinator`: the gateway for unmodified Kafka clients."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import click
import gevent

from zkrebalancer.cli import options
from zkrebalancer.cli.configuration import ConfiguredCommand, Reload
from zkrebalancer.cli.coordinator import MAX_SESSION_TIMEOUT_MS, MIN_SESSION_TIMEOUT_MS, announce
from zkrebalancer.cli.open_files import allow_open_files
from zkrebalancer.gateway import security
from zkrebalancer.gateway.addresses import MAX_SLOTS
from zkrebalancer.gateway.service import MAX_CONNECTIONS, Gateway, GatewayConfig
from zkrebalancer.group_protocol.settings import GroupProtocolSettings
from zkrebalancer.protocol import addresses
from zkrebalancer.runtime.kafka import BOOTSTRAP
from zkrebalancer.runtime.notify import Notifier
from zkrebalancer.runtime.zk import BlockingZk

ANY_HOST = frozenset({"0.0.0.0", "::"})  # noqa: S104  # they are refused as an address for clients
CENTRAL_HEARTBEAT_MS, CENTRAL_URGENT_HEARTBEAT_MS = 1_000, 200  # a client learns of a command with its next heartbeat
FILE = click.Path(path_type=Path)
OPEN_FILES = 2 * MAX_CONNECTIONS + 1_000  # a relayed connection has two sockets


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def group_settings(
    settings: GroupProtocolSettings, assign: str, heartbeat_interval_ms: int | None
) -> GroupProtocolSettings:
    """Return settings for this kind of assignment; members of central groups learn of commands with heartbeats."""
    if assign == "central":
        settings = replace(
            settings,
            assigns_centrally=True,
            consumer_heartbeat_interval_ms=CENTRAL_HEARTBEAT_MS,
            consumer_urgent_heartbeat_interval_ms=CENTRAL_URGENT_HEARTBEAT_MS,
        )
    if heartbeat_interval_ms is not None:
        urgent_ms = min(heartbeat_interval_ms, settings.consumer_urgent_heartbeat_interval_ms)
        settings = replace(
            settings,
            consumer_heartbeat_interval_ms=heartbeat_interval_ms,
            consumer_urgent_heartbeat_interval_ms=urgent_ms,
        )
    interval_ms, session_ms = settings.consumer_heartbeat_interval_ms, settings.consumer_session_timeout_ms
    if interval_ms >= session_ms:
        raise click.UsageError(
            f"--consumer-session-timeout-ms {session_ms} is not longer than the heartbeat interval, {interval_ms} ms"
        )
    return settings


def _places(listen: str, advertise: str | None) -> tuple[tuple[str, int], str]:
    """Return where to listen, and the host for clients."""
    where = options.split_address(listen)
    announced = where[0] if advertise is None else advertise
    if announced in ANY_HOST:
        raise click.UsageError(f"--listen {listen}: set the host name for clients with --advertise")
    if advertise is not None and addresses.server_fault(f"{_bracketed(advertise)}:1"):
        raise click.UsageError(f"--advertise {advertise!r:.80}: expected a host name or an address, without a port")
    if where[1] + MAX_SLOTS > addresses.MAX_PORT:
        highest = addresses.MAX_PORT - MAX_SLOTS
        raise click.UsageError(f"--listen {listen}: brokers get the {MAX_SLOTS} ports after it; use {highest} at most")
    return where, announced


@click.command(name="group-coordinator", cls=ConfiguredCommand)
@click.option(
    "--listen", required=True, type=options.SERVER, help="Where clients bootstrap; brokers get the ports after it."
)
@options.kafka_options("The Kafka brokers, at least one of them.", required=True, option="--upstream")
@click.option("--tls-certificate", type=FILE, help="Serve TLS: a PEM file with the certificate and its chain.")
@click.option("--tls-key", type=FILE, help="PEM file with the certificate's key.  [default: the same file]")
@click.option("--tls-client-ca", type=FILE, help="Clients need a certificate from one of these authorities (PEM file).")
@options.zookeeper_option
@click.option("--advertise", metavar="HOST", help="The host name for clients.  [default: the host of --listen]")
@click.option(
    "--assign",
    type=click.Choice(["client", "central"]),
    default="central",
    show_default=True,
    help="Assigns partitions: central (`zkrebalancer coordinator`), or client, as in Kafka (a classic group's leader; "
    "for KIP-848, the gateway).",
)
@click.option(
    "--offsets",
    type=click.Choice(["upstream", "zookeeper"]),
    default="upstream",
    show_default=True,
    help="Keeps the groups' offsets: upstream, the brokers, as Kafka does, or zookeeper, where agents keep theirs.",
)
@options.events_option
@options.http_option
@click.option("--metrics-per-group", is_flag=True, help="With --http: also metrics with a label for each group.")
@click.option(
    "--session-timeout-ms",
    type=click.IntRange(MIN_SESSION_TIMEOUT_MS, MAX_SESSION_TIMEOUT_MS),
    default=6_000,
    show_default=True,
    help="ZooKeeper session timeout: how long after a crash another gateway takes over.",
)
@click.option(
    "--initial-rebalance-delay-ms",
    type=click.IntRange(0, 60_000),
    default=GroupProtocolSettings().group_initial_rebalance_delay_ms,
    show_default=True,
    help="How long the first join of an empty group waits for more members.",
)
@click.option(
    "--consumer-heartbeat-interval-ms",
    type=click.IntRange(50, 60_000),
    help="How often clients of KIP-848 report while nothing is pending.  [default: 1000; with --assign client 5000]",
)
@click.option(
    "--consumer-session-timeout-ms",
    type=click.IntRange(1_000, 1_800_000),
    default=GroupProtocolSettings().consumer_session_timeout_ms,
    show_default=True,
    help="After how much silence a client of KIP-848 is fenced.",
)
@options.log_level_option
def group_coordinator(
    listen: str,
    kafka: dict[str, str],
    tls_certificate: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    zookeeper: str,
    advertise: str | None,
    assign: str,
    offsets: str,
    events_directory: Path | None,
    http: tuple[str, int] | None,
    metrics_per_group: bool,
    session_timeout_ms: int,
    initial_rebalance_delay_ms: int,
    consumer_heartbeat_interval_ms: int | None,
    consumer_session_timeout_ms: int,
) -> None:
    """Run a gateway, to which Kafka clients connect instead of the brokers, and which coordinates their groups.

    Everything else is relayed. Each broker gets a port of its own, from the one after --listen on. `zkrebalancer
    coordinator` assigns partitions to the clients as it does to agents, and both may share a group. With
    `--assign client`, no coordinator is needed, and groups work as at Kafka's brokers. SIGTERM and Ctrl-C end it.
    SIGHUP reads --log-level and --metrics-per-group again. SIGUSR1 writes the state of all groups to the log.

    Each option can also come from a file (`session_timeout_ms = 6000`; librdkafka's settings in its table `kafka`) or
    a variable (ZKREBALANCER_GROUP_COORDINATOR_SESSION_TIMEOUT_MS).

    \b
    Example:
      zkrebalancer group-coordinator --listen localhost:9192 --upstream localhost:9092 --zookeeper localhost:2181/kafka
    """
    where, announced = _places(listen, advertise)
    settings = group_settings(
        GroupProtocolSettings(
            group_initial_rebalance_delay_ms=initial_rebalance_delay_ms,
            consumer_session_timeout_ms=consumer_session_timeout_ms,
        ),
        assign,
        consumer_heartbeat_interval_ms,
    )
    with BlockingZk(zookeeper):
        pass  # fails on a wrong address or chroot, instead of waiting for it for ever
    config = GatewayConfig(
        zookeeper,
        where,
        announced,
        [options.split_address(one) for one in kafka[BOOTSTRAP].split(",")],
        http,
        session_timeout_ms,
        events_directory,
        tls=security.listener(tls_certificate, tls_key, tls_client_ca),
        notifier=Notifier(),
        offsets=offsets,
        security=security.upstream({name: text for name, text in kafka.items() if name != BOOTSTRAP}),
        metrics_per_group=metrics_per_group,
    )
    gateway = Gateway(config, settings)
    _prepare_process(gateway)
    gateway.run(lambda: announce(f"gateway at {listen} is running"))


def _prepare_process(gateway: Gateway) -> None:
    allow_open_files(OPEN_FILES)
    for number in (signal.SIGTERM, signal.SIGINT):
        gevent.signal_handler(number, gateway.stop)
    changes = {"metrics_per_group": gateway.show_groups}
    gevent.signal_handler(signal.SIGHUP, Reload(click.get_current_context(), changes))
    gevent.signal_handler(signal.SIGUSR1, gateway.log_state)
