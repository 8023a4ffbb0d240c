"""Options that several commands share, and what they check."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from zkrebalancer.protocol import addresses

Command = TypeVar("Command", bound=Callable[..., object])
LOG_LEVELS = ("debug", "info", "warning", "error")


class Address(click.ParamType[str]):
    """Servers, written as `name` says; `fault` tells what is wrong with a text."""

    def __init__(self, name: str, fault: Callable[[str], str | None]) -> None:
        """Keep what to check."""
        self.name = name
        self._fault = fault

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse what cannot be an address, before anybody waits for it."""
        fault = self._fault(value)
        if fault is not None:
            self.fail(fault, param, ctx)
        return value


ZOOKEEPER = Address("HOST:PORT[,…][/CHROOT]", addresses.zookeeper_fault)
KAFKA = Address("HOST:PORT[,…]", addresses.servers_fault)


def zookeeper_option(command: Command) -> Command:
    """Add `--zookeeper`."""
    return click.option(
        "--zookeeper",
        required=True,
        type=ZOOKEEPER,
        envvar="ZKREBALANCER_ZOOKEEPER",
        show_envvar=True,
        help="The ZooKeeper servers, and the chroot that Kafka uses.",
    )(command)


def events_option(command: Command) -> Command:
    """Add `--events`: a folder for telemetry, created when it is missing."""
    return click.option(
        "--events",
        "events_directory",
        type=click.Path(path_type=Path, file_okay=False),
        callback=_make_directory,
        help="Folder to which telemetry events are written, as *.jsonl.",
    )(command)


def log_level_option(command: Command) -> Command:
    """Add `--log-level`; the log goes to stderr."""
    return click.option(
        "--log-level",
        type=click.Choice(LOG_LEVELS),
        default="warning",
        show_default=True,
        expose_value=False,
        callback=_set_up_logging,
        help="What is logged, on stderr.",
    )(command)


def json_option(command: Command) -> Command:
    """Add `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")(command)


def out_option(command: Command) -> Command:
    """Add `--out`: a folder for results, created when it is missing."""
    return click.option(
        "--out",
        required=True,
        type=click.Path(path_type=Path, file_okay=False),
        callback=_make_directory,
        help="Folder for what comes out; files of the same names are replaced.",
    )(command)


def master_option(command: Command) -> Command:
    """Add `--master`."""
    return click.option(
        "--master",
        metavar="URL",
        default="local[*]",
        show_default=True,
        help="Spark's master: local[N], spark://…, yarn, k8s://….",
    )(command)


def make_folder(folder: Path, option: str) -> None:
    """Create a folder if it is missing; raises BadParameter, naming the option, if nothing can be written to it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise click.BadParameter(f"{folder}: {error.strerror}", param_hint=option) from None


def _make_directory(_ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    if value is not None:
        make_folder(value, param.opts[0])
    return value


def _set_up_logging(_ctx: click.Context, _param: click.Parameter, value: str) -> None:
    logging.basicConfig(level=value.upper(), format="%(asctime)s %(levelname)s %(message)s")
