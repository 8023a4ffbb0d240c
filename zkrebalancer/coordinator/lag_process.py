"""The process that reads lag as time for service levels: `python -m zkrebalancer.coordinator.lag_process`.

It reads a record of each partition, as `groups describe --lag-time` does, which may take seconds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from typing import Any

from zkrebalancer.coordinator.asked_process import answer_all
from zkrebalancer.coordinator.held_session import HeldSession
from zkrebalancer.observe import inspection
from zkrebalancer.operations import group_lag
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.runtime.zk import BlockingZk


def main() -> None:
    """Answer until the coordinator closes the pipe."""
    with closing(HeldSession()) as session:
        answer_all(partial(lag, session))


def lag(session: HeldSession, zookeeper: str, kafka: Mapping[str, str], group: str) -> dict[str, Any]:
    """Return `lag_s`: how long the oldest unread record waits, None if a partition is unknown; or why it is not read.

    `at_least_s`: the same of the partitions that are known, None without one.
    """
    try:
        report = session.read(zookeeper, partial(_report, group=group))
        known = group_lag.read_lag(report, kafka)
        times = group_lag.read_lag_times(known, kafka, int(time.time() * 1_000))
    except RebalancerError as error:
        return {"error": str(error)}
    empty = {partition for partition, its in known.items() if its.stored is None and its.log_end_offset == 0}
    waits = [0.0 if partition in empty else seconds for partition, seconds in times.items()]
    at_least_s = max((seconds for seconds in waits if seconds is not None), default=None)
    return {"lag_s": None if None in waits else at_least_s, "at_least_s": at_least_s}


def _report(zk: BlockingZk, group: str) -> inspection.GroupReport:
    report = inspection.read_group(zk, group)
    inspection.read_offsets(zk, report)
    return report


if __name__ == "__main__":
    main()
