"""A group of plain Kafka consumers moves behind the gateway, one process at a time, then to `central`, and back.

It does what docs/how-to/move-a-group.md says: only `bootstrap.servers` changes.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import AdminClient

from tests.integration.gateway_process import GatewayProcess
from tests.integration.kafka_clients import CLASSIC, Reader, close_in_turn
from tests.support.deadlines import WITHIN_S
from tests.support.waiting import wait_until
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.observe import inspection
from zkrebalancer.runtime.zk import BlockingZk

PARTITIONS = 6
TOPIC = GROUP = "moved"
T = TypeVar("T")
RECORDS_PER_S = 50
COMMIT_INTERVAL_S = 5  # the clients' default


class Records:
    """Numbered records that are produced all the time."""

    def __init__(self, bootstrap: str) -> None:
        self.count = 0
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._ending.is_set():
            self._producer.produce(TOPIC, f"{self.count}".encode(), partition=self.count % PARTITIONS)
            self.count += 1
            self._producer.poll(0)
            time.sleep(1 / RECORDS_PER_S)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ending.set()

    def stop(self) -> None:
        self.end()
        self._thread.join(WITHIN_S)
        assert self._producer.flush(WITHIN_S) == 0


@pytest.fixture
def lab(shared_cluster: LocalCluster, folder: Path) -> Iterator[Lab]:
    """Open a lab with the topic."""
    with Lab(shared_cluster, folder / "events") as one:
        one.create_topic(TOPIC, PARTITIONS)
        yield one


class Group:
    """The present consumers of the group, and what all that it ever had have read."""

    def __init__(self, lab: Lab, readers: list[Reader]) -> None:
        self.lab = lab
        self.readers = readers
        self._all = list(readers)

    def move(self, number: int, bootstrap: str) -> Reader:
        """Stop a consumer and start it elsewhere."""
        self.readers[number].close()
        one = self.readers[number] = Reader(CLASSIC[number], bootstrap, GROUP, TOPIC)
        self._all.append(one)
        return one

    def settled(self, what: str) -> None:
        """Wait until the consumers share all partitions."""

        def is_so() -> bool:
            held = [partition for reader in self.readers for partition in reader.assigned]
            return sorted(held) == list(range(PARTITIONS)) and all(reader.assigned for reader in self.readers)

        wait_until(is_so, f"{what}: all partitions are shared")

    def read(self) -> Counter[str]:
        """Return how often each record was read."""
        return Counter(value for reader in self._all for value in [*reader.values])

    def read_twice(self) -> int:
        """Return how many records were read again."""
        found = self.read()
        return found.total() - len(found)

    def close(self) -> None:
        close_in_turn(self.readers)


def committed(bootstrap: str) -> int:
    """Return how many records the group's offsets cover."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (answer,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP)]).values()
    return sum(max(0, int(one.offset)) for one in answer.result(WITHIN_S).topic_partitions or ())


@pytest.mark.long
def test_a_group_moves_to_the_gateway_then_to_central_and_back(
    lab: Lab, folder: Path, record_property: Callable[[str, object], None]
) -> None:
    brokers = lab.cluster.bootstrap
    gateway = GatewayProcess(lab.cluster, folder)
    central = GatewayProcess(lab.cluster, folder, "--assign", "central", port=gateway.port)
    gateway.start()
    records = Records(brokers)
    group = Group(lab, [Reader(kind, brokers, GROUP, TOPIC) for kind in CLASSIC])
    try:
        group.settled("at the brokers")
        records.start()
        _move_to_gateway(group, records, gateway)
        assert group.read_twice() == 0, "they had left, so nothing had to be read again"
        _move_to_central(group, records, gateway, central)
        twice_at_first, began = group.read_twice(), records.count
        _move_back(group, central)
        ended = records.count
        records.stop()
        wait_until(lambda: len(group.read()) == records.count, "every record")
        group.close()
    finally:
        records.end()
        gateway.kill()
        central.kill()
    assert sorted(group.read(), key=int) == [f"{number}" for number in range(records.count)]
    assert committed(brokers) == records.count
    # Until it hears of it, the member that was left behind the gateway reads what the one at the brokers reads as well.
    twice_on_the_way_back = group.read_twice() - twice_at_first
    record_property("records read twice until central", twice_at_first)
    record_property("records read twice on the way back", f"{twice_on_the_way_back} of {ended - began}")
    assert twice_on_the_way_back <= ended - began + COMMIT_INTERVAL_S * RECORDS_PER_S
    assert gateway.troubles() == central.troubles() == []


def _move_to_gateway(group: Group, records: Records, gateway: GatewayProcess) -> None:
    first = group.move(0, gateway.bootstrap)
    line = f"group {GROUP} has members at the brokers"
    wait_until(lambda: line in gateway.log.read_text(), "it waits")
    wait_until(lambda: len(group.readers[1].assigned) == PARTITIONS, "the other one reads all")
    begin = records.count
    wait_until(lambda: committed(group.lab.cluster.bootstrap) > begin, "the other one's records")
    assert not first.assigned
    group.move(1, gateway.bootstrap)
    group.settled("behind the gateway")


def _move_to_central(group: Group, records: Records, gateway: GatewayProcess, central: GatewayProcess) -> None:
    lab = group.lab
    lab.start_coordinator(1)
    wait_until(lambda: read_zookeeper(lab, inspection.read_leader) is not None, "a coordinator leads")
    gateway.kill()
    central.start()
    begin = records.count
    wait_until(lambda: committed(lab.cluster.bootstrap) >= begin, "commits go on")
    group.move(0, central.bootstrap)  # a join makes a classic group central
    wait_until(lambda: is_registered(lab, 2), "members registered")
    group.settled("central")


def _move_back(group: Group, central: GatewayProcess) -> None:
    lab = group.lab
    first = group.move(0, lab.cluster.bootstrap)
    wait_until(lambda: len(first.assigned) == PARTITIONS, "it gets all partitions")
    wait_until(lambda: not group.readers[1].assigned, "the one behind the gateway stops")
    group.move(1, lab.cluster.bootstrap)
    group.settled("back at the brokers")
    assert f"group {GROUP} has members at the brokers" in central.log.read_text()


def read_zookeeper(lab: Lab, read: Callable[[BlockingZk], T]) -> T:
    """Read on a session of its own: one that lasts would end while this process is busy with records."""
    with BlockingZk(lab.cluster.zookeeper) as zk:
        return read(zk)


def is_registered(lab: Lab, count: int) -> bool:
    try:
        members = read_zookeeper(lab, lambda zk: inspection.read_group(zk, GROUP)).members
    except inspection.UnknownGroupError:
        return False
    return len(members) == count and all(member.owners and member.owners.partitions for member in members)
