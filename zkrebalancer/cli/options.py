"""Options that several commands share, with their checks."""

from __future__ import annotations

import logging
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from zkrebalancer.protocol import addresses, zookeeper_security
from zkrebalancer.protocol.addresses import KAFKA_VARIABLES
from zkrebalancer.runtime import logs

Command = TypeVar("Command", bound=Callable[..., object])
_MASTER = r"local(-cluster)?(\[.+\])?|yarn|\w+://.+"
_SIZE = r"[1-9][0-9]*[kKmMgGtT]"
LOG_LEVELS = ("debug", "info", "warning", "error")


class Address(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """Server addresses in the form `name`; `fault` returns the fault of a text."""

    def __init__(self, name: str, fault: Callable[[str], str | None]) -> None:
        """Keep the form and its check."""
        self.name = name
        self._fault = fault

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Reject malformed addresses before anything connects."""
        fault = self._fault(value)
        if fault is not None:
            self.fail(fault, param, ctx)
        return value


class FiniteRange(click.FloatRange):
    """A range of numbers, in which Python also sees `nan`, and often `inf`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401
        """Reject what is no number."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is not a finite number", param, ctx)
        return number


ZOOKEEPER = Address("HOST:PORT[,…][/CHROOT]", addresses.zookeeper_fault)
KAFKA = Address("HOST:PORT[,…]", addresses.servers_fault)
KAFKA_PAIRS = f"{__name__}.kafka"  # the key under which click keeps the values of `--kafka` for `--bootstrap`
KAFKA_FILE = f"{__name__}.kafka_file"  # and those of the table `kafka` of a file
KAFKA_PARAMETER = "kafka_pairs"
PRINTS_CONFIG = "prints_config"
SERVER = Address("HOST:PORT", addresses.server_fault)


def zookeeper_option(command: Command) -> Command:
    """Add `--zookeeper`, and the flags of TLS and of the login (`--zookeeper-user`, …).

    The latter become environment variables, which the clients of this process and of its children read.
    """
    for name, metavar, text in reversed(zookeeper_security.FLAGS):
        shown = {"is_flag": True, "default": None} if metavar is None else {"metavar": metavar}
        command = click.option(
            f"--{zookeeper_security.PREFIX}{name}".replace("_", "-"),
            envvar=zookeeper_security.VARIABLES + name.upper(),
            is_eager=True,  # it is processed before `--zookeeper`, which checks the whole
            expose_value=False,
            callback=_export,
            help=text,
            **shown,
        )(command)
    return click.option(
        "--zookeeper",
        required=True,
        type=ZOOKEEPER,
        envvar="ZKREBALANCER_ZOOKEEPER",
        show_envvar=True,
        callback=_check_security,
        help="The ZooKeeper servers, with the chroot that Kafka uses.",
    )(command)


def _export(ctx: click.Context, param: click.Parameter, value: object) -> None:
    """Set the variable of a flag while the command runs."""
    variable = str(param.envvar)
    before = os.environ.get(variable)
    text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    if text == (before or ""):
        return
    os.environ[variable] = text
    ctx.call_on_close(lambda: _set_variable(variable, before))


def _set_variable(variable: str, text: str | None) -> None:
    if text is None:
        os.environ.pop(variable, None)
    else:
        os.environ[variable] = text


def _check_security(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    zookeeper_security.from_variables(os.environ)
    return value


def kafka_options(
    help_text: str, *, required: bool = False, option: str = "--bootstrap"
) -> Callable[[Command], Command]:
    """Add `--bootstrap` and `--kafka`; the command gets `kafka`: librdkafka's settings, None without `--bootstrap`.

    These include `bootstrap.servers` and the settings of the environment. Invalid settings are a usage error.
    `option`: another name for `--bootstrap`.
    """

    def add(command: Command) -> Command:
        note = click.option(
            "--kafka",
            KAFKA_PARAMETER,
            multiple=True,
            metavar="KEY=VALUE",
            is_eager=True,  # it is processed before `option`, which uses it
            expose_value=False,
            callback=_note_kafka_pairs,
            help=f"With {option}: a librdkafka setting such as security.protocol=SASL_SSL; repeatable. Put secrets in"
            f" the environment: {KAFKA_VARIABLES}SASL_PASSWORD=….",
        )
        take = click.option(option, "kafka", type=KAFKA, required=required, callback=_gather_kafka, help=help_text)
        return take(note(command))

    return add


def events_option(command: Command) -> Command:
    """Add `--events`: a folder for telemetry, created if missing."""
    return click.option(
        "--events",
        "events_directory",
        type=click.Path(path_type=Path, file_okay=False),
        callback=_make_directory,
        help="Write telemetry events to this folder, as *.jsonl files.",
    )(command)


def log_level_option(command: Command) -> Command:
    """Add `--log-level`; the log goes to stderr."""
    return _log_level("warning")(command)


def talking_log_level_option(command: Command) -> Command:
    """Add `--log-level` for a process that logs what it does, by default."""
    return _log_level("info")(command)


def _log_level(default: str) -> Callable[[Command], Command]:
    return click.option(
        "--log-level",
        type=click.Choice(LOG_LEVELS),
        default=default,
        show_default=True,
        expose_value=False,
        callback=_set_up_logging,
        help="The least severe messages to log, on stderr.",
    )


def http_option(command: Command) -> Command:
    """Add `--http`, as (host, port), None without it."""
    return click.option(
        "--http",
        type=SERVER,
        callback=lambda _ctx, _param, value: None if value is None else split_address(value),
        help="Serve /liveness, /readiness, /leader and /metrics here.",
    )(command)


def split_address(text: str) -> tuple[str, int]:
    """Return host and port; brackets of an IPv6 address are removed."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def json_option(command: Command) -> Command:
    """Add `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")(command)


def out_option(command: Command) -> Command:
    """Add `--out`: a folder for results, created if missing."""
    return click.option(
        "--out",
        required=True,
        type=click.Path(path_type=Path, file_okay=False),
        callback=_make_directory,
        help="Folder for the results; files of the same name are replaced.",
    )(command)


def spark_options(command: Command) -> Command:
    """Add `--master`, `--memory`, and `--conf` as a mapping `settings`."""
    master = click.option(
        "--master",
        metavar="URL",
        default="local[*]",
        show_default=True,
        callback=_checked(_MASTER, "is not one of local[N], spark://…, yarn, k8s://…"),
        help="Spark's master: local[N], spark://…, yarn, k8s://….",
    )
    memory = click.option(
        "--memory",
        metavar="SIZE",
        callback=_checked(_SIZE, "is not a size such as 512m or 2g"),
        help="Heap limit of the driver, such as 2g; with a local master, the driver does all the work.  [default: 1g]",
    )
    conf = click.option(
        "--conf",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        callback=_spark_settings,
        help="A setting of Spark, such as spark.executor.memory=4g or spark.ui.enabled=true; may be repeated.",
    )
    return master(memory(conf(command)))


def _spark_settings(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    settings = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key.startswith("spark."):
            raise click.BadParameter(f"{text!r} is not spark.KEY=VALUE", ctx, param)
        settings[key] = value
    return settings


def _checked(pattern: str, fault: str) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """Return a callback that rejects values before Spark starts."""

    def check(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        if value is not None and re.fullmatch(pattern, value) is None:
            raise click.BadParameter(f"{value!r:.80} {fault}", ctx, param)
        return value

    return check


def make_folder(folder: Path, option: str) -> None:
    """Create a folder if missing; raises BadParameter, naming the option, if it is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):  # without a name: others may try the same folder at this moment
            pass
    except OSError as error:
        raise click.BadParameter(f"{folder}: {error.strerror}", param_hint=option) from None


def _note_kafka_pairs(ctx: click.Context, param: click.Parameter, pairs: tuple[str, ...]) -> None:
    for pair in pairs:
        if "=" not in pair:
            raise click.BadParameter("must be KEY=VALUE", ctx, param)  # not quoted: it may be a secret
    ctx.meta[KAFKA_PAIRS] = pairs


def _gather_kafka(ctx: click.Context, param: click.Parameter, bootstrap: str | None) -> dict[str, str] | None:
    pairs: tuple[str, ...] = ctx.meta[KAFKA_PAIRS]
    table: Mapping[str, tuple[str, str]] = ctx.meta.get(KAFKA_FILE, {})
    if bootstrap is None and (pairs or table):
        raise click.UsageError(f"--kafka has no meaning without {param.opts[0]}")
    if bootstrap is None:
        return None
    variables = {name: text for name, text in sorted(os.environ.items()) if name.startswith(KAFKA_VARIABLES)}
    given = _kafka_settings(table, variables, pairs) if table or variables or pairs else {}
    return {**given, "bootstrap.servers": bootstrap}


def _kafka_settings(
    table: Mapping[str, tuple[str, str]], variables: Mapping[str, str], pairs: Iterable[str]
) -> dict[str, str]:
    """Return librdkafka's settings; flags override environment variables, which override the `table` of a file.

    `table`: key -> (value, file).
    """
    from consumer_agent import kafka_config  # noqa: PLC0415  # most commands do not use Kafka
    from zkrebalancer.runtime import kafka  # noqa: PLC0415

    by_variable = {kafka_config.kafka_key(name.removeprefix(KAFKA_VARIABLES)): name for name in variables}
    origins = {key: f"kafka in {path}" for key, (_text, path) in table.items()} | by_variable
    settings = {
        **{key: text for key, (text, _path) in table.items()},
        **{key: variables[name] for key, name in by_variable.items()},
    }
    flags = dict(pair.split("=", maxsplit=1) for pair in pairs)
    settings |= flags
    origins |= {key: f"--kafka {key}" for key in flags}
    fault = next(iter(kafka_config.kafka_config_faults(settings)), None) or kafka.fault(settings)
    if fault is not None:
        named = max((key for key in origins if key in fault), key=len, default=None)
        raise click.BadParameter(fault, param_hint="--kafka" if named is None else origins[named])
    return settings


def _make_directory(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    if value is not None and not ctx.params.get(PRINTS_CONFIG):  # with `--print-config`, the user may be another one
        make_folder(value, param.opts[0])
    return value


def _set_up_logging(_ctx: click.Context, _param: click.Parameter, value: str) -> None:
    logging.basicConfig(handlers=[logs.to_stderr()])
    logging.getLogger().setLevel(value.upper())
