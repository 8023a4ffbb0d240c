"""Changes of a group's settings, with the plan that each would cause shown first; options of these commands."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import click
from rich.table import Table

from zkrebalancer.cli import options, questions
from zkrebalancer.cli.plain import plain
from zkrebalancer.cli.tables import console, setting
from zkrebalancer.observe import inspection
from zkrebalancer.operations import configure as operation
from zkrebalancer.operations.configure import Altered
from zkrebalancer.operations.foresight import Foreseen, foresee
from zkrebalancer.protocol.calls import Content
from zkrebalancer.protocol.cluster_nodes import Topic
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.runtime.zk import BlockingZk

MAX_MOVES_SHOWN = 20

kafka_options = options.kafka_options("Kafka brokers, to read lag if the strategy weighs it.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Only show the resulting plan.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation; never asked without a terminal.")
required_yes_option = click.option(
    "--yes", is_flag=True, help="Do not ask for confirmation; required without a terminal."
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What an operator asked for beside the change itself; `kafka`: settings of librdkafka, to read lag."""

    dry_run: bool
    yes: bool
    kafka: Mapping[str, str] | None
    as_json: bool

    @property
    def asks(self) -> bool:
        """Whether the answer is open, and there is a terminal."""
        return not (self.dry_run or self.yes) and questions.can_ask(as_json=self.as_json)

    def is_confirmed(self, question: str) -> bool:
        """Ask, if the answer is open and there is a terminal."""
        return not self.dry_run and (not self.asks or questions.is_confirmed(question))


def change_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a command that changes a group; the command gets them as `asked` and `zookeeper`."""

    @functools.wraps(command)
    def run(*, dry_run: bool, yes: bool, kafka: Mapping[str, str] | None, as_json: bool, **others: object) -> None:
        command(asked=Asked(dry_run, yes, kafka, as_json), **others)

    with_output = options.zookeeper_option(options.json_option(options.log_level_option(run)))
    return dry_run_option(yes_option(kafka_options(with_output)))


@dataclass(frozen=True, slots=True)
class Change:
    """New settings of one group, not written yet, and the plan that they would cause."""

    group: str
    node: Content
    after: GroupSettings
    changes: Mapping[str, Mapping[str, object]]
    foreseen: Foreseen

    def document(self, *, applied: bool) -> dict[str, object]:
        """Return the change for `--json`."""
        shown = {"group": self.group, "applied": applied, "changes": self.changes, "settings": asdict(self.after)}
        return {**shown, "plan": foreseen_document(self.foreseen)}

    def show(self) -> None:
        """Print the change for people."""
        table = Table("setting", "before", "after")
        for key, change in self.changes.items():
            table.add_row(key, *(setting(key, value) for value in change.values()))
        if self.changes:
            console().print(table)
        show_foreseen(self.foreseen)


def prepare(
    zk: BlockingZk,
    group: str,
    altered: Altered,
    kafka: Mapping[str, str] | None,
    topics: Mapping[str, Topic] | None = None,
) -> Change:
    """Return what would change in a group; `topics`: see `foresee`.

    Raises:
        ConfigurationError: the new settings are not allowed.
        And what reading the group, and `altered`, raise.

    """
    before, node = operation.read_settings(zk, group)
    report = inspection.read_group(zk, group)
    after = operation.checked(altered(report))
    old, new = asdict(before), asdict(after)
    changes = {key: {"before": old[key], "after": new[key]} for key in new if old[key] != new[key]}
    return Change(group, node, after, changes, foresee(zk, report, after, kafka, topics))


def write(zk: BlockingZk, change: Change) -> None:
    """Write the new settings, and who changed what."""
    named = change.changes.items()
    values = [f"{key} from {json.dumps(of['before'])} to {json.dumps(of['after'])}" for key, of in named]
    operation.write_settings(zk, change.group, change.node, change.after, f"changed {', '.join(values)}")


def apply_settings(zookeeper: str, group: str, altered: Altered, result: str, asked: Asked) -> None:
    """Change a group's settings after showing the plan, and log who did it.

    `result`: what the group is afterwards, for people.
    """
    with BlockingZk(zookeeper) as zk:
        change = prepare(zk, group, altered, asked.kafka)
        if not asked.as_json:
            with questions.shown_first(dry_run=asked.dry_run):
                change.show()
        is_applied = not asked.dry_run and (not change.changes or asked.is_confirmed("Apply?"))
        if is_applied and change.changes:
            write(zk, change)
    if asked.as_json:
        click.echo(json.dumps(change.document(applied=is_applied)))
    elif not is_applied:
        click.echo("no setting was changed")
    else:
        click.echo(f"{group} is {result}" if change.changes else f"{group} already has these settings")


def foreseen_document(foreseen: Foreseen) -> dict[str, object]:
    """Return a plan for `--json`."""
    moves = [
        {"topic": topic, "partition": partition, "from": giver, "to": taker}
        for (topic, partition), giver, taker in foreseen.moves
    ]
    return {**asdict(foreseen), "moves": moves}


def show_foreseen(foreseen: Foreseen) -> None:
    """Print a plan for people."""
    to = console()
    if foreseen.moves:
        moves = Table("topic", "partition", "from", "to")
        for (topic, partition), giver, taker in foreseen.moves[:MAX_MOVES_SHOWN]:
            moves.add_row(topic, str(partition), giver or "-", taker or "-")
        to.print(moves)
        if len(foreseen.moves) > MAX_MOVES_SHOWN:
            to.print(f"and {len(foreseen.moves) - MAX_MOVES_SHOWN} more; --json lists all")
        shares = Table("member", "partitions now", "after")
        for name, count in foreseen.before.items():
            shares.add_row(name, str(count), str(foreseen.after[name]))
        to.print(shares)
    to.print(f"{len(foreseen.moves)} partitions would move, {foreseen.unassigned} would have no owner")
    for note in foreseen.notes:
        click.echo(f"note: {plain(note)}", err=True)
