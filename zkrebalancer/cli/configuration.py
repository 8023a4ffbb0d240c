"""`--config` and `--print-config` of a command, and what SIGHUP changes: one mechanism for all options of click.

A key of the file is the long name of an option: `session_timeout_ms = 6000`; the table `kafka` has librdkafka's
settings. The environment overrides the file, and flags override both.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

import click
from click.core import ParameterSource

from zkrebalancer.cli import options
from zkrebalancer.protocol.errors import ConfigurationError, RebalancerError
from zkrebalancer.protocol.suggestions import unknown
from zkrebalancer.runtime.kafka import BOOTSTRAP
from zkrebalancer.runtime.toml_file import read_toml

TABLE = "kafka"  # of librdkafka's settings
CONFIG, PRINT = "config_files", options.PRINTS_CONFIG
MASK = "********"
ARGUMENTS, ORIGINS = f"{__name__}.arguments", f"{__name__}.origins"  # under which click keeps them
_TYPES: dict[type, tuple[type, ...]] = {int: (int,), float: (int, float), bool: (bool,), str: (str,)}
_log = logging.getLogger(__name__)
Values = Mapping[str, Any]


class ConfiguredCommand(click.Command):
    """A command whose options can also come from files (`--config`) and from variables PREFIX_OPTION."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:  # noqa: ANN401  # click's own
        """Add the two options, before all others: their values are defaults of the others."""
        super().__init__(*arguments, **settings)
        self.prefix = f"ZKREBALANCER_{(self.name or '').upper().replace('-', '_')}_"
        for key, option in settings_of(self).items():
            option.envvar = option.envvar or f"{self.prefix}{key.upper()}"
        config = click.Option(
            ["--config", CONFIG],
            metavar="FILE",
            multiple=True,
            envvar=f"{self.prefix}CONFIG",
            is_eager=True,
            expose_value=False,
            callback=_read_files,
            help="Settings in TOML; repeatable. Later files override earlier ones; environment and flags override all.",
        )
        shows = click.Option(
            ["--print-config", PRINT],
            is_flag=True,
            is_eager=True,
            help="Print the effective settings with their origins, and exit.",
        )
        self.params = [config, shows, *self.params]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read all settings; with `--print-config`, print them and exit."""
        ctx.meta[ARGUMENTS] = list(args)
        rest = super().parse_args(ctx, args)
        self._warn_of_variables()
        if ctx.params.pop(PRINT, False):
            click.echo(as_toml(self, ctx))
            ctx.exit()
        return rest

    def _warn_of_variables(self) -> None:
        """Warn of variables that look like settings of this command but are not."""
        known = {one.envvar for one in self.params}
        for name in sorted(os.environ):
            if name.startswith(self.prefix) and name not in known:
                _log.warning("%s is not a setting and is ignored", name)

    def again(self, ctx: click.Context) -> Values:
        """Read all settings again, as at the start; return the values of the command's parameters.

        Raises:
            click.ClickException, RebalancerError: one of them is wrong.

        """
        return self.make_context(ctx.info_name, list(ctx.meta[ARGUMENTS]), parent=ctx.parent).params


class Reload:
    """After SIGHUP, applies settings that may change, and warns of others; `changes`: parameter -> how to apply it."""

    def __init__(self, ctx: click.Context, changes: Mapping[str, Callable[[Any], object]]) -> None:
        """Begin with the context of the running command."""
        self._context = ctx
        self._command = ctx.command
        self._changes = changes
        self._values = dict(ctx.params)

    def __call__(self) -> None:
        """Read all settings again; if one of them is wrong, all stay as they are."""
        if not isinstance(self._command, ConfiguredCommand):
            raise TypeError(f"{self._command.name} has no --config")
        try:
            new = self._command.again(self._context)
        except (click.ClickException, RebalancerError) as error:
            text = error.format_message() if isinstance(error, click.ClickException) else str(error)
            _log.warning("the former settings stay in force: %s", " ".join(text.split()))
            return
        changed = [name for name in new if new[name] != self._values.get(name)]
        for name in changed:
            if name in self._changes:
                self._changes[name](new[name])
                self._values[name] = new[name]
        late = [_key_of(self._command, name) for name in changed if name not in self._changes]
        if late:
            _log.warning("a restart is needed for the new values of %s", ", ".join(late))


# ---- reading


def settings_of(command: click.Command) -> dict[str, click.Option]:
    """Return key -> option, for all that can be set in a file."""
    hidden = {CONFIG, PRINT, options.KAFKA_PARAMETER}
    found = [one for one in command.params if isinstance(one, click.Option) and one.name not in hidden]
    return {_key(one): one for one in found}


def _key(option: click.Option) -> str:
    return max(option.opts, key=len).lstrip("-").replace("-", "_")


def _key_of(command: click.Command, parameter: str) -> str:
    return next((key for key, one in settings_of(command).items() if one.name == parameter), parameter)


def _read_files(ctx: click.Context, _param: click.Parameter, paths: tuple[str, ...]) -> None:
    known = settings_of(ctx.command)
    has_kafka = any(one.name == options.KAFKA_PARAMETER for one in ctx.command.params)
    values: dict[str, Any] = {}
    origins: dict[str, str] = ctx.meta.setdefault(ORIGINS, {})
    kafka: dict[str, tuple[str, str]] = {}
    for path in paths:
        for key, value in _document(path).items():
            if key == TABLE and has_kafka:
                kafka.update(_kafka_table(path, value))
            elif key in known:
                values[known[key].name or ""] = _checked(ctx, path, key, known[key], value)
                origins[key] = path
            else:
                raise click.UsageError(f"{path}: {unknown(key, [*known, *([TABLE] if has_kafka else [])])}")
    ctx.default_map = {**(ctx.default_map or {}), **values}
    ctx.meta[options.KAFKA_FILE] = kafka


def _document(path: str) -> dict[str, Any]:
    try:
        return read_toml(path)
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from None


def _kafka_table(path: str, value: object) -> dict[str, tuple[str, str]]:
    if not isinstance(value, Mapping) or not all(isinstance(one, str | int | float | bool) for one in value.values()):
        # Its values are secrets, so they are not shown.
        raise click.UsageError(
            f'{path}: {TABLE}: must be a table of texts and numbers; put quotes around "keys.with.dots"'
        )
    return {name: (str(one).lower() if isinstance(one, bool) else str(one), path) for name, one in value.items()}


def _checked(ctx: click.Context, path: str, key: str, option: click.Option, value: object) -> object:
    """Return a value of a file if the option accepts it; raises UsageError, naming file and key."""
    wanted = bool if option.is_flag else {"integer": int, "float": float}.get(_kind(option), str)
    is_one = isinstance(value, _TYPES[wanted]) and (wanted is bool or not isinstance(value, bool))
    if not is_one:
        name = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}[wanted]
        raise click.UsageError(f"{path}: {key}: must be {name}, not {value!r:.80}")
    try:
        option.type_cast_value(ctx, value)
    except click.BadParameter as error:
        raise click.UsageError(f"{path}: {key}: {error.message}") from None
    return value


def _kind(option: click.Option) -> str:
    return option.type.name.removesuffix(" range")


# ---- showing


def as_toml(command: ConfiguredCommand, ctx: click.Context) -> str:
    """Format all settings as a file for `--config`; comments name the origins, librdkafka's secrets are masked."""
    from consumer_agent.kafka_config import is_secret  # noqa: PLC0415  # imports Kafka's client

    given, _, _ = command.make_parser(ctx).parse_args(list(ctx.meta[ARGUMENTS]))
    origins: Mapping[str, str] = ctx.meta.get(ORIGINS, {})
    lines = []
    for key, option in settings_of(command).items():
        value, source = option.consume_value(ctx, given)
        shown = option.type_cast_value(ctx, value) if isinstance(value, str | int | float) else None  # it is not set
        text = json.dumps(shown, default=str, ensure_ascii=False)
        origin = {
            ParameterSource.COMMANDLINE: max(option.opts, key=len),
            ParameterSource.ENVIRONMENT: str(option.envvar),
            ParameterSource.DEFAULT_MAP: origins.get(key, ""),
        }.get(source, "default")
        lines.append(f"# {key} = " if shown is None else f"{key} = {text}  # {origin}")
    kafka: Mapping[str, str] = ctx.params.get(TABLE) or {}
    table = {name: MASK if is_secret(name) else text for name, text in kafka.items() if name != BOOTSTRAP}
    lines += ["", f"[{TABLE}]"] if table else []
    lines += [f"{json.dumps(name)} = {json.dumps(text, ensure_ascii=False)}" for name, text in table.items()]
    return "\n".join(lines)
