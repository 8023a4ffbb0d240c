"""`zkrebalancer coordinator`: one coordinator process, as it runs on every broker host."""

from __future__ import annotations

import signal
import socket
from collections.abc import Mapping
from pathlib import Path

import click
import gevent

from zkrebalancer.assignment import STRATEGIES
from zkrebalancer.cli import options
from zkrebalancer.coordinator.service import CoordinatorService
from zkrebalancer.observe.events import EventLog
from zkrebalancer.rebalance.election import Identity
from zkrebalancer.runtime.zk import BlockingZk

MIN_SESSION_TIMEOUT_MS = 100
MAX_SESSION_TIMEOUT_MS = 600_000


@click.command()
@options.zookeeper_option
@click.option("--broker-id", required=True, type=click.IntRange(min=0), help="Id of the broker on this host.")
@click.option("--host", default=socket.gethostname, help="Name under which others see this host.  [default: its own]")
@click.option(
    "--session-timeout-ms",
    type=click.IntRange(MIN_SESSION_TIMEOUT_MS, MAX_SESSION_TIMEOUT_MS),
    default=6_000,
    show_default=True,
    help="After a crash a standby leads once ZooKeeper has waited this long.",
)
@options.kafka_options(
    "Kafka brokers, for strategies that weigh lag and rates; without it all partitions weigh the same."
)
@options.events_option
@options.log_level_option
def coordinator(
    zookeeper: str,
    broker_id: int,
    host: str,
    session_timeout_ms: int,
    kafka: Mapping[str, str] | None,
    events_directory: Path | None,
) -> None:
    """Run one coordinator: it leads, or stands by until the leader is gone.

    SIGTERM and Ctrl-C resign, so that a standby leads at once.

    \b
    Example:
      zkrebalancer coordinator --zookeeper localhost:2181/kafka --broker-id 1
    """
    with BlockingZk(zookeeper):
        pass  # a wrong address or chroot is the user's mistake: say so before standing by for ever
    event_log = EventLog(events_directory, f"coordinator-{broker_id}")
    service = CoordinatorService(zookeeper, Identity(broker_id, host), session_timeout_ms, STRATEGIES, event_log, kafka)
    for number in (signal.SIGTERM, signal.SIGINT):
        gevent.signal_handler(number, service.stop)
    service.run()
