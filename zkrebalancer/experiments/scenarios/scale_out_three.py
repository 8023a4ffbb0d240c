"""scale-out-three: scale-out, with three brokers and three ZooKeeper servers, none of which fails.

What ZooKeeper writes has to reach a second server, and records have three replicas.
"""

from __future__ import annotations

from dataclasses import replace

from zkrebalancer.experiments.scenarios import scale_out

SCENARIO = replace(
    scale_out.SCENARIO,
    name="scale-out-three",
    about="three members join, one after the other; three brokers and three ZooKeeper servers, none fails",
    servers=3,
)
