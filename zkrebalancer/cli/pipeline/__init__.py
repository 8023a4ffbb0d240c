"""`zkrebalancer pipeline`: Spark jobs over events, rates and grids."""

from __future__ import annotations

import click

from zkrebalancer.cli.pipeline.facts import run_pipeline, watch
from zkrebalancer.cli.pipeline.fleet import fleet
from zkrebalancer.cli.pipeline.sweep import sweep
from zkrebalancer.cli.pipeline.weights import weights


@click.group()
def pipeline() -> None:
    """Analyse events with Spark, on this machine or on a cluster.

    \b
    Example:
      zkrebalancer pipeline run --events results --out facts
    """


pipeline.add_command(fleet)
pipeline.add_command(run_pipeline)
pipeline.add_command(sweep)
pipeline.add_command(weights)
pipeline.add_command(watch)
