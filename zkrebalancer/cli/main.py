"""The command `zkrebalancer`; each subcommand is imported only when it runs.

An expected error becomes one line on stderr and an exit code; only a bug shows a traceback.
"""

from __future__ import annotations

import difflib
import importlib
import io
import signal
import sys
from types import FrameType
from typing import NoReturn

import click
from click.shell_completion import CompletionItem

from zkrebalancer.protocol.errors import RebalancerError

INTERRUPTED = 130  # the shell convention for a program that Ctrl-C has ended
COMMANDS = {
    "assign": "Run one assignment strategy on a JSON document.",
    "backup": "Save the tree in ZooKeeper to a file.",
    "cluster": "Run ZooKeeper and Kafka, as processes or on Docker hosts.",
    "coordinator": "Run one coordinator process.",
    "demo": "Watch groups being rebalanced, with a verdict at the end.",
    "events": "Show events from files.",
    "experiment": "Compare with client-side protocols on real servers.",
    "group-coordinator": "Coordinate the groups of unmodified Kafka clients.",
    "groups": "Inspect and operate consumer groups.",
    "pipeline": "Analyse events with Spark.",
    "restore": "Put the tree of a backup back into ZooKeeper.",
    "security": "Secure the ZooKeeper tree and check it.",
    "shards": "Show and change the shards of groups.",
    "topics": "Create, fill and mirror topics.",
}
OTHER_NAMES = {"gateway": "group-coordinator"}  # what people may call a command


class LazyCommands(click.Group):
    """A group that knows its commands by name and imports `zkrebalancer.cli.<name>` only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """Return the names."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # click's signature
        """Import and return one command."""
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        command = getattr(importlib.import_module(f"zkrebalancer.cli.{name}"), name)
        if not isinstance(command, click.Command):
            raise TypeError(f"zkrebalancer.cli.{name}.{name} is not a command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but suggest a command for a wrong name: click would only know commands that are imported."""
        name = args[0]
        if name not in COMMANDS and not ctx.resilient_parsing:
            close = [OTHER_NAMES[name]] if name in OTHER_NAMES else difflib.get_close_matches(name, COMMANDS, 1)
            if close:
                ctx.fail(f"No such command {name!r}. Did you mean {close[0]!r}?")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the names without importing the commands, which would take a second."""
        found = [CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="zkrebalancer")
def zkrebalancer() -> None:
    """A central rebalancer for Kafka consumer groups, coordinated through ZooKeeper.

    \b
    Example:
      zkrebalancer demo
    """


def main() -> NoReturn:
    """Run the command line."""
    run(zkrebalancer)


def run(command: click.Command) -> NoReturn:
    """Run a click command; exit codes: 0 done, 1 failed, 2 wrong usage or bad input, 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may know few characters, and files names that are no text
            stream.reconfigure(errors="backslashreplace")
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # it is ignored, as in a shell's background
        _run(command)
        sys.exit(0)
    signal.signal(signal.SIGINT, raise_in_command)
    try:
        _run(command)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(0)


def _run(command: click.Command) -> None:
    try:
        command.main(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _fail(f"{error.format_message()}", error.exit_code)
    except RebalancerError as error:
        _fail(str(error), error.exit_code)
    except OSError as error:  # a full disk, a missing file
        _fail(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error), 1)
    except (KeyboardInterrupt, click.Abort):
        if signal.getsignal(signal.SIGINT) is raise_in_command:  # a second Ctrl-C would be a traceback
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        _fail("interrupted", INTERRUPTED)


def raise_in_command(_number: int = signal.SIGINT, _frame: FrameType | None = None) -> None:
    """Raise KeyboardInterrupt in the command, not in whichever greenlet runs: its connection would die of it."""
    if "gevent" in sys.modules:
        import gevent  # noqa: PLC0415  # only commands that use it pay

        hub = gevent.get_hub()
        main = hub.parent
        if main is not None and gevent.getcurrent() is not main:
            hub.loop.run_callback(main.throw, KeyboardInterrupt)
            return
    raise KeyboardInterrupt


def _fail(line: str, code: int) -> NoReturn:
    from zkrebalancer.cli.plain import plain  # noqa: PLC0415  # only failures need it

    click.echo(f"Error: {plain(' '.join(line.split()))}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
