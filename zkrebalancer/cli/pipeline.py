"""`zkrebalancer pipeline`: what Spark makes of events, rates and grids."""

from __future__ import annotations

import click

from zkrebalancer.cli.sweep import sweep


@click.group()
def pipeline() -> None:
    """Analyse with Spark, on this machine or on a cluster.

    \b
    Example:
      zkrebalancer pipeline sweep --out sweep
    """


pipeline.add_command(sweep)
