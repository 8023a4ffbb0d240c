"""Every command's help ends with an example, and every command has `--log-level`."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from consumer_agent.sidecar.cli import consumer_agent
from zkrebalancer.cli.main import zkrebalancer


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield a command and all its subcommands, each with what the user types."""
    yield path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            below = command.get_command(click.Context(command), name)
            assert below is not None
            yield from commands(below, f"{path} {name}")


def lacks_example(command: click.Command, path: str) -> bool:
    """Whether the last paragraph of the command's help is not an example of it."""
    last = (command.help or "").strip().split("\n\n")[-1].replace("\b", "")
    return not (last.strip().startswith("Example") and path in last)


ALL = [*commands(zkrebalancer, "zkrebalancer"), *commands(consumer_agent, "consumer-agent")]


@pytest.mark.parametrize(("path", "command"), ALL, ids=[path for path, _command in ALL])
def test_the_help_ends_with_an_example(path: str, command: click.Command) -> None:
    assert not lacks_example(command, path)


@pytest.mark.parametrize(("path", "command"), ALL, ids=[path for path, _command in ALL])
def test_every_command_has_a_log_level(path: str, command: click.Command) -> None:
    options = {option for parameter in command.params for option in parameter.opts}
    assert isinstance(command, click.Group) or "--log-level" in options, path


def test_a_missing_example_is_found() -> None:
    assert lacks_example(click.Command("x", help="Do it."), "z x")
    assert lacks_example(click.Command("x", help="Do it.\n\n\b\nExample:\n  z y"), "z x")
    assert not lacks_example(click.Command("x", help="Do it.\n\n\b\nExample:\n  z x --now"), "z x")
