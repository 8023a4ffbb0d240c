"""`zkrebalancer coordinator`: one coordinator process; run one on every broker host."""

from __future__ import annotations

import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import click
import gevent

from zkrebalancer.assignment import STRATEGIES
from zkrebalancer.cli import options
from zkrebalancer.cli.configuration import ConfiguredCommand, Reload
from zkrebalancer.cli.extras import require
from zkrebalancer.coordinator.planner import PLAN_TIMEOUT_S
from zkrebalancer.coordinator.service import CoordinatorService, Shown
from zkrebalancer.observe.events import EventLog, JsonValue
from zkrebalancer.protocol.shards import MAX_CAPACITY
from zkrebalancer.rebalance.election import Identity
from zkrebalancer.runtime.notify import Notifier
from zkrebalancer.runtime.zk import BlockingZk

MIN_SESSION_TIMEOUT_MS = 100
MAX_SESSION_TIMEOUT_MS = 600_000


def announce(text: str) -> None:
    """Print a line, unless standard output takes none: a full disk, or a reader that is gone, ends no server."""
    with suppress(OSError):
        click.echo(text)


class AnnouncingLog(EventLog):
    """An event log that also prints a line when this coordinator leads."""

    def write(
        self,
        kind: str,
        *,
        group: str | None = None,
        generation: int | None = None,
        cause_id: str | None = None,
        mono_us: int | None = None,
        **fields: JsonValue,
    ) -> None:
        """Write the event as `EventLog` does."""
        if kind == "leader_elected":
            shard = f" shard {fields['shard']}" if "shard" in fields else ""
            announce(f"coordinator {fields['brokerid']} leads{shard} (epoch {fields['epoch']})")
        super().write(kind, group=group, generation=generation, cause_id=cause_id, mono_us=mono_us, **fields)


@click.command(cls=ConfiguredCommand)
@options.zookeeper_option
@click.option(
    "--broker-id",
    required=True,
    type=click.IntRange(min=0),
    help="Id of the broker on this host; unique among the coordinators.",
)
@click.option(
    "--host", default=socket.gethostname, help="This host's name, as shown to others.  [default: the host name]"
)
@click.option(
    "--session-timeout-ms",
    type=click.IntRange(MIN_SESSION_TIMEOUT_MS, MAX_SESSION_TIMEOUT_MS),
    default=6_000,
    show_default=True,
    help="ZooKeeper session timeout: how long after a crash a standby takes over.",
)
@click.option(
    "--plan-timeout-s",
    type=click.IntRange(1, 3_600),
    default=PLAN_TIMEOUT_S,
    show_default=True,
    help="Longest time to compute a plan; after that, it is retried at growing intervals.",
)
@click.option(
    "--capacity",
    type=click.IntRange(1, MAX_CAPACITY),
    default=1,
    show_default=True,
    help="With several shards of groups: this host's share of them, in proportion to the other hosts' capacities.",
)
@options.kafka_options(
    "Kafka brokers, to read lag and rates for `balanced`; without it, all partitions weigh the same."
)
@options.http_option
@click.option(
    "--traces",
    "traces_url",
    metavar="URL",
    help="Send rebalances as OpenTelemetry traces (OTLP over HTTP), to http://HOST:4318/v1/traces. [extra: traces]",
)
@click.option("--metrics-per-group", is_flag=True, help="With --http: also metrics with a label for each group.")
@options.events_option
@options.talking_log_level_option
def coordinator(
    zookeeper: str,
    broker_id: int,
    host: str,
    session_timeout_ms: int,
    plan_timeout_s: int,
    capacity: int,
    kafka: Mapping[str, str] | None,
    http: tuple[str, int] | None,
    traces_url: str | None,
    metrics_per_group: bool,
    events_directory: Path | None,
) -> None:
    """Run one coordinator: it leads, or is a standby until the leader is gone.

    On SIGTERM and Ctrl-C it resigns, and a standby leads at once. SIGHUP reads the settings again: --log-level,
    --plan-timeout-s and --metrics-per-group can change. SIGUSR1 writes the state of all groups to the log.

    Each option can also come from a file (`broker_id = 1`; librdkafka's settings in its table `kafka`) or a variable
    (ZKREBALANCER_COORDINATOR_BROKER_ID).

    \b
    Example:
      zkrebalancer coordinator --zookeeper localhost:2181/kafka --broker-id 1
    """
    if traces_url is not None:
        require("traces")
    with BlockingZk(zookeeper):
        pass  # fails on a wrong address or chroot, instead of waiting for it for ever
    event_log = AnnouncingLog(events_directory, f"coordinator-{broker_id}")
    announce(f"coordinator {broker_id} is running")
    shown = Shown(http, Notifier(), metrics_per_group, traces_url)
    identity = Identity(broker_id, host, None if http is None else f"{host}:{http[1]}")
    service = CoordinatorService(
        zookeeper, identity, session_timeout_ms, STRATEGIES, event_log, kafka, plan_timeout_s, shown, capacity
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        gevent.signal_handler(number, service.stop)
    changes = {"plan_timeout_s": service.limit_plans, "metrics_per_group": service.monitor.show_groups}
    gevent.signal_handler(signal.SIGHUP, Reload(click.get_current_context(), changes))
    gevent.signal_handler(signal.SIGUSR1, service.monitor.log_state)
    service.run()
