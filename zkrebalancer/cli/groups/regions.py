"""Says that a consistent region keeps its states when its group's offsets are set from outside."""

from __future__ import annotations

import click

from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import ABSENT, Content, Get
from zkrebalancer.runtime.zk import BlockingZk


def note_states(zk: BlockingZk, group: str) -> None:
    """Print a note if the group has a region that recovers as a group; raises ZooKeeperRefusedError.

    Regions of other kinds have no node: their copies, or their sinks, go with the offsets.
    """
    node = zk.perform(Get(paths.region(group)), ABSENT) if paths.is_legal_name(group) else None
    if isinstance(node, Content) and node.content:
        text = "its members keep the states that they have, and its next reset goes back to its last checkpoint"
        click.echo(f"note: group {group} has a consistent region: {text}; `region.reset(None)` begins anew", err=True)
