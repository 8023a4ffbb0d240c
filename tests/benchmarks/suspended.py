"""`python -m tests.benchmarks.suspended`: the cost of both values of `suspended_policy`, `pause` and `continue`.

Two groups of two consumers read the same records, one group with each policy. First, ZooKeeper is down for all: killed,
and started again after the given time. Then one consumer of each group loses its connection to ZooKeeper silently, for
longer than its session, while the others continue. The events show what was delivered.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import gevent

from tests.benchmarks.servers import led
from tests.campaign.links import Links
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.experiments.tail import EventTail
from zkrebalancer.localcluster import faults
from zkrebalancer.protocol.errors import ZooKeeperUnavailableError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.settings import INCREMENTAL, GroupSettings

POLICIES = ("pause", "continue")
TOPIC = "suspended"
PARTITIONS = 12
REST_S = 3.0  # before and after a fault; events of this time are included
Event = dict[str, Any]


def start(lab: Lab, links: Links, tail: EventTail, records_per_s: int, rest_s: float) -> None:
    """Start the producer, and two consumers per policy; the first of these has a breakable link."""
    lab.create_topic(TOPIC, PARTITIONS)
    for policy in POLICIES:
        lab.configure(policy, GroupSettings(mode=INCREMENTAL))
        own: dict[str, object] = {"--suspended-policy": policy, "--auto-commit-interval-ms": 1_000}
        lab.start_agent(f"{policy}-1", policy, (TOPIC,), options={**own, "--zookeeper": links.address(policy)})
        lab.start_agent(f"{policy}-2", policy, (TOPIC,), options=own)
    settle(lab)
    lab.start_producer("producer", {TOPIC: PARTITIONS}, records_per_s)
    waiting = set(POLICIES)

    def are_served() -> bool:
        waiting.difference_update(event["group"] for event in tail.read() if event["kind"] == "delivered")
        return not waiting

    lab.wait_for("records for all", are_served)
    gevent.sleep(rest_s)


def settle(lab: Lab) -> None:
    """Wait until the two consumers of each group share all partitions, and the lab can see it."""
    lab.wait_for("ZooKeeper", partial(_answers, lab))
    for policy in POLICIES:
        lab.wait_settled(policy, {TOPIC: PARTITIONS}, f"{policy}-1", f"{policy}-2")


def _answers(lab: Lab) -> bool:
    try:
        lab.leader()
    except ZooKeeperUnavailableError:  # the lab has lost its connection, too
        return False
    return True


def without_zookeeper(lab: Lab, seconds: float) -> None:
    """Kill ZooKeeper and start it again."""
    (server,) = lab.cluster.zookeeper_servers
    faults.stop_zookeeper(server)
    gevent.sleep(seconds)
    server.start()


def cut_off(links: Links, seconds: float) -> None:
    """Cut the links of one consumer per group silently."""
    for policy in POLICIES:
        links.break_(policy, "silent")
    gevent.sleep(seconds)
    for policy in POLICIES:
        links.break_(policy, "open")


def figures(events: Iterable[Event], policy: str, began_us: int, ended_us: int) -> dict[str, object]:
    """Return a group's records delivered during a fault, its longest wait for records, and its duplicates."""
    last_us: dict[TopicPartition, int] = {}
    longest_us, during = 0, 0
    times: Counter[tuple[int, int]] = Counter()
    for event in events:
        if event["kind"] != "delivered" or event["group"] != policy:
            continue
        partition, at_us = (event["topic"], event["partition"]), event["mono_us"]
        times.update((event["partition"], offset) for offset in range(event["first_offset"], event["last_offset"] + 1))
        if partition in last_us and at_us > began_us:
            longest_us = max(longest_us, at_us - last_us[partition])
        last_us[partition] = at_us
        during += event["count"] if began_us <= at_us <= ended_us else 0
    doubled = sum(count - 1 for count in times.values())
    return {"policy": policy, "delivered_meanwhile": during, "longest_wait_s": longest_us / 1e6, "doubled": doubled}


def main() -> None:
    """Cause both faults and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gone-s", type=float, default=10.0)
    parser.add_argument("--cut-off-s", type=float, default=20.0)
    parser.add_argument("--session-timeout-ms", type=int, default=10_000)
    parser.add_argument("--records-per-s", type=int, default=600)
    parser.add_argument("--rest-s", type=float, default=REST_S)
    options = parser.parse_args()
    results: dict[str, object] = {
        "records_per_s": options.records_per_s,
        "session_timeout_ms": options.session_timeout_ms,
    }
    with led(options.session_timeout_ms, chroot="/bench") as lab, Links(lab.cluster) as links:
        tail = EventTail(lab.events)
        start(lab, links, tail, options.records_per_s, options.rest_s)
        faults_to_cause: dict[str, Callable[[], None]] = {
            "zookeeper is down": lambda: without_zookeeper(lab, options.gone_s),
            "one consumer is cut off": lambda: cut_off(links, options.cut_off_s),
        }
        for name, cause in faults_to_cause.items():
            began_us = time.monotonic_ns() // 1_000
            cause()
            ended_us = time.monotonic_ns() // 1_000
            settle(lab)
            gevent.sleep(options.rest_s)
            events = [event for event in tail.read() if event["mono_us"] > began_us - options.rest_s * 1_000_000]
            results[name] = [figures(events, policy, began_us, ended_us) for policy in POLICIES]
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
