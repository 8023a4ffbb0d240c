"""slow-disk-5ms: as scale-out, with servers, of ZooKeeper and of Kafka, whose syncs to disk take at least 5 ms."""

from __future__ import annotations

from dataclasses import replace

from zkrebalancer.experiments.scenarios import scale_out

SCENARIO = replace(
    scale_out.SCENARIO,
    name="slow-disk-5ms",
    about="three members join, one after the other; syncs of servers to disk take at least 5 ms",
    sync_ms=5.0,
)
