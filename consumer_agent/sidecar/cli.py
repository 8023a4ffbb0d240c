"""`consumer-agent run`: reads a group's partitions and prints the records, or hands them to an application."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import click

from consumer_agent.config import ConsumerConfig
from consumer_agent.consumer import Consumer
from consumer_agent.records import Record
from consumer_agent.sidecar.child import command_line
from consumer_agent.sidecar.dead_letters import open_dead_letters
from consumer_agent.sidecar.frames import record_document
from consumer_agent.sidecar.health import Watch, vitals_of
from consumer_agent.sidecar.run_counts import RunCounts
from consumer_agent.sidecar.settings import (
    KINDS,
    LOG_LEVELS,
    Settings,
    as_toml,
    effective,
    find_faults,
    fit_revoke_timeout,
    gather,
    subscription_arguments,
)
from consumer_agent.sidecar.sidecar import Sidecar, SidecarSettings, StoppedInFlightError
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import ABSENT, Content, Get
from zkrebalancer.protocol.errors import ConfigurationError, NodeContentError, RebalancerError
from zkrebalancer.protocol.registration import BLACK_LIST, WHITE_LIST
from zkrebalancer.protocol.settings import GroupSettings, decode
from zkrebalancer.protocol.zookeeper_security import FLAGS
from zkrebalancer.runtime import logs
from zkrebalancer.runtime.notify import Notifier
from zkrebalancer.runtime.vitals import Vitals
from zkrebalancer.runtime.zk import BlockingZk

POLL_TIMEOUT_S = 0.2  # how soon a signal is noticed
_log = logs.named(__name__)
RecordPrinter = Callable[[Record], None]


def zookeeper_security_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the flags of TLS and of the login, which all commands share."""
    for name, metavar, text in reversed(FLAGS):
        command = click.option(f"--zookeeper-{name.replace('_', '-')}", metavar=metavar or "true|false", help=text)(
            command
        )
    return command


class FaultsError(ConfigurationError):
    """Settings that are not allowed, one line each."""

    def __init__(self, faults: list[str]) -> None:
        """Store the lines."""
        super().__init__("; ".join(faults))
        self.faults = faults


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="zkrebalancer")
def consumer_agent() -> None:
    """Read Kafka partitions that the central coordinator assigns.

    \b
    Example:
      consumer-agent run --bootstrap localhost:9092 --zookeeper localhost:2181/kafka --group g --topic orders
    """


@consumer_agent.command()
@click.option(
    "--config", multiple=True, metavar="FILE", help="Settings in TOML, overridden by environment and flags; repeatable."
)
@click.option("--zookeeper", metavar="HOST:PORT[,…][/CHROOT]", help="The ZooKeeper servers; or ZKREBALANCER_ZOOKEEPER.")
@zookeeper_security_options
@click.option("--bootstrap", metavar="HOST:PORT[,…]", help="The Kafka brokers.")
@click.option("--group", metavar="NAME", help="The consumer group.")
@click.option("--topic", "topics", multiple=True, metavar="NAME[:THREADS]", help="A topic to read; repeatable.")
@click.option("--pattern", metavar="RE", help="Topics by a regular expression (RE2).")
@click.option("--pattern-type", metavar=f"{WHITE_LIST}|{BLACK_LIST}", help=f"Default: {WHITE_LIST}.")
@click.option("--exec", metavar="CMD", help="Pass records to this command and read its acknowledgements.")
@click.option("--frames", metavar="json|msgpack", help="Format of the exchange: lines (default), or length-prefixed.")
@click.option("--dead-letter", metavar="topic:NAME|file:PATH", help="Destination of records that CMD cannot process.")
@click.option("--max-failures", metavar="N", help="Failures of one record before it is a dead letter. Default: 3.")
@click.option("--max-restarts", metavar="N", help="Restarts of CMD in a row without an answer. Default: 10.")
@click.option("--max-in-flight-records", metavar="N", help="Most unacknowledged records. Default: 500.")
@click.option("--max-in-flight-bytes", metavar="N", help="Most unacknowledged bytes. Default: 16 MiB.")
@click.option("--revoke-timeout-ms", metavar="N", help="Time for CMD to release partitions. Default: 20000.")
@click.option("--drain-timeout-ms", metavar="N", help="Time for CMD to finish when the agent stops. Default: 5000.")
@click.option("--http", metavar="HOST:PORT", help="Serve /liveness, /readiness, /metrics, /assignment here.")
@click.option("--events", "events_directory", metavar="DIR", help="Write telemetry events to this folder.")
@click.option("--client-id", metavar="NAME", help="First part of the member's name. Default: the host name.")
@click.option("--instance-id", "group_instance_id", metavar="NAME", help="Makes this a static member.")
@click.option("--rack", metavar="NAME", help="Where this agent runs, for the strategy balanced.")
@click.option("--capacity", metavar="NUMBER", help="Relative share of the load, for balanced; 0 drains. Default: 1.")
@click.option("--session-timeout-ms", metavar="N", help="ZooKeeper session timeout. Default: 10000.")
@click.option("--max-poll-records", metavar="N", help="Most records of a poll. Default: 500.")
@click.option("--max-poll-interval-ms", metavar="N", help="Longest time without a poll. Default: 300000.")
@click.option("--stop-timeout-ms", metavar="N", help="Time for a stop of partitions. Default: --max-poll-interval-ms.")
@click.option("--poll-fairness", metavar="greedy|proportional", help="Shares of partitions in a poll. Default: greedy.")
@click.option("--prefetch", metavar="total|per_partition", help="What to buffer. Default: total.")
@click.option("--suspended-policy", metavar="pause|continue", help="While ZooKeeper is unreachable. Default: pause.")
@click.option("--enable-auto-commit", metavar="true|false", help="Store finished offsets. Default: true.")
@click.option("--auto-commit-interval-ms", metavar="N", help="Time between automatic commits. Default: 5000.")
@click.option(
    "--auto-offset-reset", metavar="WHERE", help="Start without an offset: earliest (default), latest, none, or a time."
)
@click.option("--offsets-storage", metavar="zookeeper|kafka|dual", help="Where offsets are stored. Default: zookeeper.")
@click.option(
    "--ignore-kafka-offsets", metavar="true|false", help="Begin anew despite offsets in Kafka. Default: false."
)
@click.option("--kafka", "kafka_config", multiple=True, metavar="KEY=VALUE", help="A librdkafka setting; repeatable.")
@click.option("--print-config", is_flag=True, help="Print the effective settings with their origins, and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print each record as a JSON line.")
@click.option("--quiet", is_flag=True, help="Print only the number of records.")
@click.option("--log-level", metavar="|".join(LOG_LEVELS), help="Default: warning.")
def run(*, config: tuple[str, ...], print_config: bool, as_json: bool, quiet: bool, **flags: Any) -> None:  # noqa: ANN401
    """Read until SIGTERM or SIGINT; then finish, commit and leave the group.

    Each setting can also come from the file (`session_timeout_ms = 6000`) or the environment
    (CONSUMER_AGENT_SESSION_TIMEOUT_MS=6000); librdkafka's settings from the file's table kafka_config, or
    CONSUMER_AGENT_KAFKA_SASL_PASSWORD=….

    \b
    Example:
      consumer-agent run --bootstrap localhost:9092 --zookeeper localhost:2181/kafka --group g --topic orders
    """
    given = {key: list(value) if key == "topics" else value for key, value in flags.items() if value not in {None, ()}}
    settings = gather(config, os.environ, given)
    faults = find_faults(settings)
    if faults:
        raise FaultsError(faults)
    if print_config:
        shown = effective(settings)
        document = {key: {"value": value, "origin": origin} for key, (value, origin) in shown.items()}
        click.echo(json.dumps(document, default=str) if as_json else as_toml(shown))
        return
    if sys.stdout is None and not (quiet or "exec" in settings.values):
        raise click.UsageError("standard output is closed; with --quiet, no records are printed")
    level = settings.values.get("log_level", "warning").upper()
    logging.basicConfig(level=level, handlers=[logs.to_stderr()])
    # This program always polls, so that its last line says why it leaves.
    logging.getLogger().handlers[0].addFilter(lambda record: " leaves its group: " not in record.getMessage())
    for name in settings.ignored:
        _log.warning("%s is not a setting and is ignored", name)
    printer = _silent if quiet else _print_json if as_json else _print_line
    run_counts = RunCounts()
    _run(settings, lambda: gather(config, os.environ, given), printer, run_counts)
    if quiet or "exec" in settings.values:
        counts = {"records": run_counts.records, "partitions": len(run_counts.partitions)}
        click.echo(
            json.dumps(counts)
            if as_json
            else f"records: {run_counts.records} of {len(run_counts.partitions)} partitions"
        )


def _run(
    settings: Settings, gather_again: Callable[[], Settings], printer: RecordPrinter, run_counts: RunCounts
) -> None:
    subscribe = subscription_arguments(settings.values)
    own = settings.group_of(SidecarSettings)
    with_child = "exec" in settings.values
    config = ConsumerConfig(**settings.group_of(ConsumerConfig), enable_auto_finish=not with_child)
    if with_child:
        command_line(settings.values["exec"])  # a missing program is reported before anything connects
    if config.zookeeper_security is not None:
        with BlockingZk(config.zookeeper, security=config.zookeeper_security):
            pass  # fails at once on a refused login, instead of waiting for the connection
    consumer = Consumer(config)
    signals = _Signals()
    vitals = vitals_of(consumer, config, Notifier())
    watch = Watch(consumer, vitals, lambda: click.echo(f"joined group {config.group}", err=True))

    def on_poll() -> None:
        watch()
        wishes = signals.take_wishes()
        if signal.SIGHUP in wishes:
            _read_again(settings, gather_again)
        if signal.SIGUSR1 in wishes:
            watch.log_state()

    with _served(settings.values.get("http"), consumer, config, run_counts, vitals):
        if not with_child:
            _read(consumer, subscribe, printer, run_counts, signals, on_poll)
            return
        own["revoke_timeout_ms"] = _revoke_timeout_ms(settings, config)
        target = settings.values.get("dead_letter")
        letters = None if target is None else open_dead_letters(target, config)
        sidecar_settings = SidecarSettings(command=settings.values["exec"], **own)
        try:
            Sidecar(sidecar_settings, consumer, letters, lambda: signals.count, run_counts, on_poll).run(subscribe)
        except StoppedInFlightError as error:
            click.echo(f"warning: {error}", err=True)


def _read_again(settings: Settings, gather_again: Callable[[], Settings]) -> None:
    """After SIGHUP, use the new log level; warn of other settings that have changed, which need a restart."""
    new = gather_again()
    faults = find_faults(new)
    if faults:
        _log.warning("the former settings stay in force: %s", "; ".join(faults))
        return
    level = new.values.get("log_level", "warning")
    logging.getLogger().setLevel(level.upper())
    changed = [key for key in KINDS if new.values.get(key) != settings.values.get(key) and key != "log_level"]
    if changed:
        _log.warning("a restart is needed for the new values of %s", ", ".join(changed))


def _revoke_timeout_ms(settings: Settings, config: ConsumerConfig) -> int:
    """Read from ZooKeeper how long a revoke may take in this group.

    If there is no group, or its settings are invalid, the defaults apply, as for the coordinator.
    """
    with BlockingZk(config.zookeeper, security=config.zookeeper_security) as zk:
        reply = zk.perform(Get(paths.group(config.group)), ABSENT)
    group = GroupSettings()
    with contextlib.suppress(NodeContentError):
        group = decode(reply.content) if isinstance(reply, Content) else group
    timeout_ms, faults = fit_revoke_timeout(settings, config.registered_stop_timeout_ms, group.rebalance_timeout_ms)
    if faults:
        raise FaultsError(faults)
    return timeout_ms


def _served(
    address: str | None, consumer: Consumer, config: ConsumerConfig, run_counts: RunCounts, vitals: Vitals
) -> AbstractContextManager[object]:
    if address is None:
        return contextlib.nullcontext()
    from consumer_agent.sidecar.http_endpoints import Endpoints  # noqa: PLC0415  # only this needs prometheus_client

    labels = {"group": config.group, "client_id": config.client_id}
    return Endpoints(consumer, run_counts, labels, vitals).serving(address)


def main() -> NoReturn:
    """Run the command line; exit codes: 0 done, 1 failed, 2 wrong usage or bad input, 130 interrupted."""
    try:
        consumer_agent.main(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    except FaultsError as error:
        for line in error.faults[:-1]:
            click.echo(_error_line(line), err=True)
        _fail(error.faults[-1], error.exit_code)
    except RebalancerError as error:
        _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        _fail("interrupted", 130)
    except OSError as error:
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would try again when it exits
        if isinstance(error, BrokenPipeError):  # the reader of our output has gone
            sys.exit(1)
        _fail(f"the output cannot be written: {error.strerror or error}", 1)
    sys.exit(0)


def _fail(line: str, code: int) -> NoReturn:
    click.echo(_error_line(line), err=True)
    sys.exit(code)


def _error_line(line: str) -> str:
    return f"Error: {' '.join(line.split())}"


class _Signals:
    """Counts SIGTERM and SIGINT, and notes SIGHUP and SIGUSR1; loops look from time to time."""

    def __init__(self) -> None:
        self.count = 0
        self._wishes: set[int] = set()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)
        for number in (signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, self._wish)

    def take_wishes(self) -> set[int]:
        """Return the signals that ask for something, once."""
        if not self._wishes:
            return self._wishes
        wishes, self._wishes = self._wishes, set()
        return wishes

    def _wish(self, number: int, _frame: object) -> None:
        self._wishes.add(number)

    def _note(self, _number: int, _frame: object) -> None:
        self.count += 1


def _read(
    consumer: Consumer,
    subscribe: dict[str, Any],
    printer: RecordPrinter,
    run_counts: RunCounts,
    signals: _Signals,
    on_poll: Callable[[], None],
) -> None:
    with consumer:
        consumer.subscribe(**subscribe)
        while not signals.count:
            batch = consumer.poll(POLL_TIMEOUT_S)
            run_counts.add(batch)
            on_poll()
            for record in batch:
                printer(record)
            if batch and sys.stdout is not None:
                sys.stdout.flush()


def _silent(_record: Record) -> None:
    pass


def _print_json(record: Record) -> None:
    sys.stdout.write(json.dumps(record_document(record), separators=(",", ":")) + "\n")


def _print_line(record: Record) -> None:
    key, value = (_readable(data) for data in (record.key, record.value))
    line = f"{record.topic}/{record.partition} {record.offset} {key} {value}\n"
    encoding = sys.stdout.encoding  # of a terminal that cannot show each character
    sys.stdout.write(line.encode(encoding, "backslashreplace").decode(encoding))


def _readable(data: bytes | None) -> str:
    if data is None:
        return "-"
    text = data.decode(errors="backslashreplace")
    return text if text.isprintable() else repr(text)[1:-1]


if __name__ == "__main__":
    main()
