"""`zkrebalancer groups`: inspect and operate consumer groups."""

from __future__ import annotations

import click

from zkrebalancer.cli.groups.draining import drain, undrain
from zkrebalancer.cli.groups.eviction import evict
from zkrebalancer.cli.groups.freezing import freeze, resume, unfreeze
from zkrebalancer.cli.groups.lifecycle import create, delete
from zkrebalancer.cli.groups.offsets import group_offsets
from zkrebalancer.cli.groups.pins import pin, unpin
from zkrebalancer.cli.groups.plans import configure, explain, plan, rebalance
from zkrebalancer.cli.groups.reset import reset
from zkrebalancer.cli.groups.views import describe, list_groups


@click.group()
def groups() -> None:
    """Inspect and operate consumer groups.

    \b
    Example:
      zkrebalancer groups describe payments --zookeeper localhost:2181/kafka
    """


for command in (
    configure,
    create,
    delete,
    describe,
    drain,
    evict,
    explain,
    freeze,
    group_offsets,
    list_groups,
    pin,
    plan,
    rebalance,
    reset,
    resume,
    undrain,
    unfreeze,
    unpin,
):
    groups.add_command(command)
