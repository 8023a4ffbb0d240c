"""`zkrebalancer backup` and `restore`: the tree in ZooKeeper, in a file."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from zkrebalancer.cli import options
from zkrebalancer.cli.interrupts import interrupts_end_here
from zkrebalancer.cli.progress import node_bar
from zkrebalancer.operations import backup as operation
from zkrebalancer.operations import backup_file
from zkrebalancer.runtime import clock
from zkrebalancer.runtime.zk import BlockingZk


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@options.zookeeper_option
@options.json_option
@options.log_level_option
def backup(file: Path, zookeeper: str, as_json: bool) -> None:
    """Save groups, settings, offsets and generations to a new file, also while everything runs.

    Members and pending commands are left out: they end with their sessions. Kafka's own nodes are also left out.

    \b
    Example:
      zkrebalancer backup groups.backup --zookeeper localhost:2181/kafka
    """
    backup_file.require_new(file)  # fails before anything connects
    began_s = time.monotonic()
    with interrupts_end_here(), BlockingZk(zookeeper) as zk, node_bar() as progress:
        nodes = operation.back_up(zk, file, clock.epoch_ms(), progress)
    facts = {"file": str(file), "nodes": nodes, "bytes": file.stat().st_size}
    if as_json:
        click.echo(json.dumps({**facts, "elapsed_s": round(time.monotonic() - began_s, 3)}))
    else:
        click.echo(f"wrote {nodes} nodes to {file}, {facts['bytes']} bytes")


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True), required=False)
@click.option("--overwrite", is_flag=True, help="Restore even if there are groups; nodes that the backup lacks stay.")
@click.option("--adopt-topics", is_flag=True, help="Keep offsets of topics that have other ids here, or none.")
@click.option(
    "--accept-partial", is_flag=True, help="Restore nothing; let coordinators lead what an interrupted restore left."
)
@options.zookeeper_option
@options.json_option
@options.log_level_option
def restore(
    file: Path | None, overwrite: bool, adopt_topics: bool, accept_partial: bool, zookeeper: str, as_json: bool
) -> None:
    """Put a backup back, also into another ensemble. Stop coordinators, agents and gateways first.

    Generations continue above all before, so that none is used twice; for that, the clock here has to be right.
    Offsets stay with their topics: if a topic here has another id than the one in the backup, the command refuses,
    because the leader would delete its offsets.
    No coordinator leads before it is complete: if it is interrupted, run it again with --overwrite.

    \b
    Example:
      zkrebalancer restore groups.backup --zookeeper localhost:2182/kafka
    """
    if accept_partial:
        if file is not None or overwrite or adopt_topics:
            raise click.UsageError("--accept-partial restores nothing, so it takes no file and no other option")
        _accept_partial(zookeeper, as_json=as_json)
        return
    if file is None:
        raise click.UsageError("Missing argument 'FILE'.")
    began_s = time.monotonic()
    with interrupts_end_here(), BlockingZk(zookeeper) as zk, node_bar() as progress:
        done = operation.restore(
            zk, file, overwrite=overwrite, adopt_topics=adopt_topics, now_ms=clock.epoch_ms(), progress=progress
        )
    facts = {"file": str(file), "created": done.created, "replaced": done.replaced, "unchanged": done.unchanged}
    if as_json:
        click.echo(json.dumps({**facts, "elapsed_s": round(time.monotonic() - began_s, 3)}))
    else:
        click.echo(f"created {done.created} nodes, replaced {done.replaced}; {done.unchanged} were the same")


def _accept_partial(zookeeper: str, *, as_json: bool) -> None:
    with BlockingZk(zookeeper) as zk:
        was_partial = operation.accept_partial(zk)
    if as_json:
        click.echo(json.dumps({"was_partial": was_partial}))
    else:
        click.echo("coordinators may lead the tree as it is" if was_partial else "no restore was interrupted here")
