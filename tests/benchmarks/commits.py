"""`python -m tests.benchmarks.commits`: the time of a commit of one partition and of a thousand, in each store.

One ZooKeeper, one broker, one consumer that owns all partitions. For comparison, in the same run: one ZooKeeper call
per partition, all in flight at once; and confluent-kafka's `commit`. `--sync-ms` makes syncs of both servers to disk
take at least so long.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import gevent
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import TopicPartition as KafkaPartition

from consumer_agent import Consumer
from tests.benchmarks.filling import fill_topic
from tests.benchmarks.servers import led
from tests.benchmarks.transactions import count_transactions
from zkrebalancer.experiments import disk
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.experiments.trust import find_doubts_of_disk
from zkrebalancer.localcluster import zookeeper
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Check, Multi, SetContent
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.settings import GroupSettings

STORAGES = ("zookeeper", "kafka", "dual")
POLL_S = 0.5
READ_DEADLINE_S = 120.0


def milliseconds(action: Callable[[int], object], rounds: int) -> list[float]:
    """Return the time of each round; the action gets its number, 1 to `rounds`."""
    taken = []
    for number in range(1, rounds + 1):
        began = time.perf_counter()
        action(number)
        taken.append((time.perf_counter() - began) * 1_000)
    return taken


def read_everything(consumer: Consumer, records: int) -> None:
    """Poll until all records were returned."""
    give_up_at = time.monotonic() + READ_DEADLINE_S
    while records > 0:
        records -= len(consumer.poll(POLL_S))
        if time.monotonic() > give_up_at:
            raise SystemExit(f"{records} records were not read")


def measure(lab: Lab, storage: str, topic: str, partitions: int, rounds: int) -> dict[str, object]:
    """Commit all partitions, then one, `rounds` times each."""
    group = f"commits-{storage}"
    cluster = lab.cluster
    settings: dict[str, Any] = {"zookeeper": cluster.zookeeper, "bootstrap": cluster.bootstrap, "group": group}
    everything = [(topic, number) for number in range(partitions)]
    with Consumer(**settings, offsets_storage=storage, enable_auto_commit=False, max_poll_records=-1) as consumer:
        consumer.subscribe([topic])
        read_everything(consumer, partitions * rounds)
        consumer.commit(dict.fromkeys(everything, 0))  # creates the nodes
        zxid = zookeeper.zxid(lab.cluster.zookeeper)
        of_all = milliseconds(lambda offset: consumer.commit(dict.fromkeys(everything, offset)), rounds)
        counts = count_transactions(lab.cluster.directory, zxid, zookeeper.zxid(lab.cluster.zookeeper))
        of_one = milliseconds(lambda offset: consumer.commit({everything[0]: offset}), rounds)
    return {
        "storage": storage,
        "partitions": partitions,
        "all_ms": summary(of_all),
        "one_ms": summary(of_one),
        "zookeeper_transactions_per_commit": round(counts["periodic commit"] / rounds, 1),
    }


def a_call_each(lab: Lab, topic: str, partitions: int, rounds: int) -> dict[str, object]:
    """Write the same nodes with one transaction per partition, all in flight at once."""
    owners = paths.group("commits-zookeeper")
    nodes = [paths.offsets("commits-zookeeper", topic, number) for number in range(partitions)]

    def write(offset: int) -> None:
        lab.zk.perform_all([Multi((Check(owners, -1), SetContent(node, str(offset).encode()))) for node in nodes])

    return {"storage": "zookeeper, one call per partition", "all_ms": summary(milliseconds(write, rounds))}


def confluent(lab: Lab, topic: str, partitions: int, rounds: int) -> dict[str, object]:
    """Commit with confluent-kafka."""
    settings = {"bootstrap.servers": lab.cluster.bootstrap, "group.id": "commits-confluent"}
    client = KafkaConsumer(settings)

    def write(wanted: list[TopicPartition], offset: int) -> None:
        client.commit(offsets=[KafkaPartition(*partition, offset) for partition in wanted], asynchronous=False)

    everything = [(topic, number) for number in range(partitions)]
    write(everything, 0)
    of_all = milliseconds(lambda offset: write(everything, offset), rounds)
    of_one = milliseconds(lambda offset: write(everything[:1], offset), rounds)
    client.close()
    return {"storage": "confluent-kafka", "all_ms": summary(of_all), "one_ms": summary(of_one)}


def summary(taken: list[float]) -> dict[str, float]:
    """Return median and maximum."""
    return {"median": round(statistics.median(taken), 2), "max": round(max(taken), 2)}


def require_slow(cluster: LocalCluster, sync_ms: float) -> None:
    """End if syncs of a server take less."""
    if sync_ms:
        doubts = find_doubts_of_disk(sync_ms, disk.shortest_write_ms(cluster.zookeeper), disk.quick_servers(cluster))
        if doubts:
            raise SystemExit("; ".join(doubts))


def main() -> None:
    """Measure every storage and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--sync-ms", type=float, default=0.0)
    arguments = parser.parse_args()
    size = (arguments.partitions, arguments.rounds)
    with led(10_000, chroot="/bench", sync_ms=arguments.sync_ms) as lab:
        require_slow(lab.cluster, arguments.sync_ms)
        lab.create_topic("commits", arguments.partitions)
        for storage in STORAGES:
            lab.configure(f"commits-{storage}", GroupSettings())
        aside = gevent.get_hub().threadpool.apply  # keeps this hub free for the lab's ZooKeeper session
        aside(
            fill_topic,
            (lab.cluster.bootstrap, "commits", arguments.partitions, arguments.partitions * arguments.rounds, 0),
        )
        results = [aside(measure, (lab, storage, "commits", *size)) for storage in STORAGES]
        results += [a_call_each(lab, "commits", *size), aside(confluent, (lab, "commits", *size))]
    print(json.dumps([{**result, "sync_ms": arguments.sync_ms} for result in results], indent=1))


if __name__ == "__main__":
    main()
