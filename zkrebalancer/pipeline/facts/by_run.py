"""The tables about ownership, plans, steps and costs: events that do not grow with the records, run by run."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.pipeline.facts.of_run import SCHEMAS, RunFacts
from zkrebalancer.pipeline.facts.one_pass import Pass
from zkrebalancer.pipeline.schema import BOUNDS, ORDER

KINDS = (
    *("fetcher_started", "fetcher_stopped", "ownership_ended", "member_left", "repositioned", "topic_deleted", "step"),
    *("rebalance_requested", "rebalance_planned", "rebalance_finished", "command_sent", "command_acked"),
    *("sampled", "counted"),
)
_KEYS = (
    *("run", *ORDER, *BOUNDS, "kind", "group", "topic", "partition", "member", "generation", "cause_id", "count"),
    *("partitions", "positions", "reason", "trigger", "mode", "member_count", "partition_count", "moved_count"),
    *("outcome", "settled_us", "pause_us_max", "name", "target", "number", "unsettled_ms", "role", "cpu_us"),
    *("rss_bytes", "requests", "bytes_in", "bytes_out", "host", "boot"),
)


def tables_of_runs(events: DataFrame, deliveries: DataFrame | None = None) -> Pass:
    """Return the pass over events that makes the tables of `of_run.SCHEMAS`.

    `deliveries`: what the tables about steps and delays need of them (`reduced`).
    """
    wanted = events.where(F.col("kind").isin(*KINDS)).select(*_KEYS)
    if deliveries is not None:
        wanted = wanted.unionByName(deliveries, allowMissingColumns=True)
    return Pass(wanted, ("run",), ORDER, SCHEMAS, RunFacts)
