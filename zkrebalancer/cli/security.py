"""`zkrebalancer security`: who may do what in the ZooKeeper tree."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict

import click
from rich.table import Table

from zkrebalancer.cli import options
from zkrebalancer.cli.plain import plain
from zkrebalancer.cli.progress import node_bar
from zkrebalancer.cli.tables import console
from zkrebalancer.operations import secure_tree
from zkrebalancer.operations.secure_tree import Finding, Outcome
from zkrebalancer.protocol import paths, rights
from zkrebalancer.protocol.errors import ConfigurationError
from zkrebalancer.protocol.zookeeper_security import from_variables
from zkrebalancer.runtime.zk import BlockingZk
from zkrebalancer.runtime.zk_login import Login

MAX_SHOWN = 50  # findings in a table; --json has all


@click.group()
def security() -> None:
    """Secure the ZooKeeper tree, and check what is open in it.

    \b
    Example:
      zkrebalancer security check --zookeeper localhost:2181/kafka
    """


@security.command()
@click.option("--coordinator", "coordinators", multiple=True, metavar="SCHEME:NAME", help="Runs coordinators.")
@click.option("--operator", "operators", multiple=True, metavar="SCHEME:NAME", help="Creates and changes groups.")
@click.option("--gateway", "gateways", multiple=True, metavar="SCHEME:NAME", help="Runs gateways.")
@click.option(
    "--broker", "brokers", multiple=True, metavar="SCHEME:NAME", help="Writes /brokers: Kafka, or `topics mirror`."
)
@click.option(
    "--group", "groups", multiple=True, metavar="GROUP=SCHEME:NAME", help="Runs consumers of a group; `GROUP=` revokes."
)
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@options.zookeeper_option
@options.json_option
@options.log_level_option
def init(
    coordinators: tuple[str, ...],
    operators: tuple[str, ...],
    gateways: tuple[str, ...],
    brokers: tuple[str, ...],
    groups: tuple[str, ...],
    dry_run: bool,
    zookeeper: str,
    as_json: bool,
) -> None:
    """Secure the tree, or complete and change what is secured.

    Log in as a coordinator. Give all programs their logins first: a program without one can no longer write
    afterwards. Roles and groups that are named replace the former ones, all others stay; each option can be repeated.
    Run it again whenever `security check` finds something, unless that tells you to restart a consumer.

    \b
    Example:
      zkrebalancer security init --operator sasl:admin --group payments=sasl:payments --zookeeper localhost:2181/kafka
    """
    roles = {"coordinators": coordinators, "operators": operators, "gateways": gateways, "brokers": brokers}
    given = _groups(groups)
    identity = _identity()
    with BlockingZk(zookeeper) as zk:
        before, version = secure_tree.read_principals(zk)
        who = secure_tree.changed_principals(before, identity, roles, given)
        with node_bar() as report:
            if dry_run:
                outcome = secure_tree.walk(zk, who, repair=False, report=report)
            else:
                outcome = secure_tree.secure(zk, who, report, version)
    changed = [finding for finding in outcome.findings if finding.excess or finding.missing]
    if as_json:
        counts = {"nodes": outcome.nodes, "changed": len(changed) - len(outcome.left), "dry_run": dry_run}
        lists = {"left": outcome.left, "unreadable": outcome.unreadable, "of_group": _of_group(outcome)}
        lists["unknown"] = _of_unknown(outcome)
        click.echo(json.dumps({**counts, **lists, "principals": json.loads(rights.encode(who))}))
        return
    verb = "would change" if dry_run else "changed"
    click.echo(f"{outcome.nodes} nodes, rights {verb} at {len(changed) - len(outcome.left)}")
    _print_rest(outcome, _of_group(outcome), _of_unknown(outcome))


@security.command()
@options.zookeeper_option
@options.json_option
@options.log_level_option
def check(zookeeper: str, as_json: bool) -> None:
    """Show which nodes are open to others than intended, or closed to a coordinator; exit code 1 if there are any.

    \b
    Example:
      zkrebalancer security check --zookeeper localhost:2181/kafka --json
    """
    with BlockingZk(zookeeper) as zk:
        who, _ = secure_tree.read_principals(zk)
        with node_bar() as report:
            outcome = Outcome() if who is None else secure_tree.walk(zk, who, repair=False, report=report)
    is_secured = who is not None and not outcome.findings and not outcome.unreadable
    if as_json:
        findings = [asdict(finding) for finding in outcome.findings]
        click.echo(
            json.dumps(
                {
                    "secured": is_secured,
                    "nodes": outcome.nodes,
                    "findings": findings,
                    "unreadable": outcome.unreadable,
                    "principals": None if who is None else json.loads(rights.encode(who)),
                }
            )
        )
    elif who is None:
        click.echo(f"The tree is open: there is no {paths.SECURITY}. Secure it with: zkrebalancer security init")
    else:
        click.echo(f"{outcome.nodes} nodes, {len(outcome.findings)} not as intended")
        _print_findings(outcome.findings)
        _print_rest(outcome, [], [])  # the table has them
    if not is_secured:
        raise SystemExit(1)


@security.command()
@options.zookeeper_option
@options.log_level_option
def identity(zookeeper: str) -> None:  # noqa: ARG001  # its option brings those of the login
    """Print the name of this login, in the form for the options of `security init`. Connects to no server.

    \b
    Example:
      zkrebalancer security identity --zookeeper-user me --zookeeper-password-file word --zookeeper localhost:2181
    """
    click.echo(_identity())


def _identity() -> str:
    found = Login(from_variables(os.environ)).identity
    if found is None:
        raise ConfigurationError("a login is needed: --zookeeper-user and --zookeeper-password-file")
    return found


def _groups(pairs: tuple[str, ...]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for pair in pairs:
        group, equals, principal = pair.partition("=")
        if not equals:
            raise click.BadParameter("must be GROUP=SCHEME:NAME", param_hint="--group")
        groups.setdefault(group, []).extend([principal] if principal else [])
    return groups


def _of_group(outcome: Outcome) -> list[str]:
    return [finding.path for finding in outcome.findings if finding.is_of_group]


def _of_unknown(outcome: Outcome) -> list[str]:
    return [finding.path for finding in outcome.findings if finding.unknown]


def _print_findings(findings: list[Finding]) -> None:
    if not findings:
        return
    table = Table("node", "too much", "missing", "")
    for finding in findings[:MAX_SHOWN]:
        table.add_row(finding.path, _shown(finding.excess), _shown(finding.missing), _note(finding))
    console().print(table)
    if len(findings) > MAX_SHOWN:
        click.echo(f"… and {len(findings) - MAX_SHOWN} more")


def _note(finding: Finding) -> str:
    if finding.unknown:
        return f"made before {', '.join(finding.unknown)} was named, and closed to it; restart the consumer"
    return "its whole group may write it; restart the consumer" if finding.is_of_group else ""


def _shown(rights_of: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {letters}" for name, letters in rights_of.items())


def _print_rest(outcome: Outcome, of_group: list[str], unknown: list[str]) -> None:
    notes = {
        "changed meanwhile, or only its owner may change it": outcome.left,
        "rights may not be read": outcome.unreadable,
        "its whole group may write it until its consumer is restarted": of_group,
        "a coordinator that is named now may not use it until its consumer is restarted": unknown,
    }
    for text, names in notes.items():
        for path in names[:MAX_SHOWN]:
            click.echo(f"{plain(path)}: {text}", err=True)
