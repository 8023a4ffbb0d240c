"""The tables about ownership, plans, steps and costs: events that do not grow with the records, run by run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.pipeline.facts.of_run import SCHEMAS, RunFacts
from zkrebalancer.pipeline.facts.one_pass import one_pass
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
    *("rss_bytes", "requests", "bytes_in", "bytes_out"),
)


def tables_of_runs(
    events: DataFrame, arrivals: DataFrame | None = None
) -> AbstractContextManager[Callable[[str], DataFrame]]:
    """Give a function from the name of a table in SCHEMAS to the table; all come from one pass over the events.

    `arrivals`: the deliveries that tables about steps need (`steps.arrivals`).
    """
    wanted = events.where(F.col("kind").isin(*KINDS)).select(*_KEYS)
    if arrivals is not None:
        wanted = wanted.unionByName(arrivals, allowMissingColumns=True)
    return one_pass(wanted, ("run",), ORDER, SCHEMAS, RunFacts)
