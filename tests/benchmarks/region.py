"""`python -m tests.benchmarks.region`: what a region with a sink costs, and how soon it goes on after a crash.

Throughput: one consumer stores records in SQLite (or `--postgres`), a transaction for each batch, alternately without
and with a region. Crash: of two consumers, one is killed; the time from the end of its session, as the leader notices
it, to the first result of one of its partitions.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import gevent

from consumer_agent import Batch, Consumer
from consumer_agent.region import ConsistentRegion
from tests.benchmarks.filling import fill_topic
from tests.benchmarks.servers import led
from tests.exactly_once.databases import Database
from tests.support.postgres import postgres
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.experiments.tail import EventTail
from zkrebalancer.protocol.settings import GroupSettings

PARTITIONS = 6
RECORD_BYTES = 100
READ_DEADLINE_S = 300.0
CRASHES_PER_S = 500  # records that are produced meanwhile, in a second
SESSION_TIMEOUT_MS = 4_000


def rows(group: str, batch: Batch) -> list[tuple[str, int, int, int]]:
    """Return the results of a batch."""
    return [(group, record.partition, record.offset, len(record.value or b"")) for record in batch]


# ---- throughput


def read(lab: Lab, database: Database, group: str, topic: str, count: int, *, in_region: bool) -> float:
    """Store all records of a topic; return how many a second, from the first batch to the last transaction."""
    insert, stored, began = database.insert(), 0, 0.0
    servers: dict[str, Any] = {"zookeeper": lab.cluster.zookeeper, "bootstrap": lab.cluster.bootstrap}
    consumer = Consumer(**servers, group=group)
    consumer.subscribe([topic])
    with closing(database.connect()) as connection:
        batches: AbstractContextManager[Any] = ConsistentRegion(consumer, name=group) if in_region else consumer
        with batches as source:
            for batch in source:
                began = began or time.perf_counter()
                if in_region:
                    with source.transaction(connection) as transaction:
                        transaction.executemany(insert, rows(group, batch))
                else:
                    connection.cursor().executemany(insert, rows(group, batch))
                    connection.commit()
                stored += len(batch)
                if stored >= count:
                    return stored / (time.perf_counter() - began)
    raise SystemExit(f"{group}: only {stored} of {count} records were read")


def throughput(lab: Lab, database: Database, records: int, rounds: int) -> dict[str, object]:
    """Alternate between both; return the medians and their ratio."""
    aside = gevent.get_hub().threadpool.apply  # keeps this hub free for the lab's ZooKeeper session
    lab.create_topic("region", PARTITIONS)
    aside(fill_topic, (lab.cluster.bootstrap, "region", PARTITIONS, records, RECORD_BYTES))
    found: dict[bool, list[float]] = {False: [], True: []}
    for number in range(rounds):
        for in_region in (False, True):
            group = f"region-{number}-{in_region}"
            lab.configure(group, GroupSettings())
            arguments = (lab, database, group, "region", records)
            found[in_region].append(aside(read, arguments, {"in_region": in_region}))
    without, within = (statistics.median(found[in_region]) for in_region in (False, True))
    return {
        "records": records,
        "rounds": rounds,
        "without_region_per_s": round(without),
        "with_region_per_s": round(within),
        "ratio": round(within / without, 3),
    }


# ---- a crash


class Survivor:
    """A consumer in this process; notes when it has first stored something of each partition and generation."""

    def __init__(self, lab: Lab, database: Database, group: str, topic: str) -> None:
        self._database = database
        self._group = group
        servers: dict[str, Any] = {"zookeeper": lab.cluster.zookeeper, "bootstrap": lab.cluster.bootstrap}
        self._consumer = Consumer(**servers, group=group, client_id="survivor", session_timeout_ms=SESSION_TIMEOUT_MS)
        self._consumer.subscribe([topic])
        self._ends = threading.Event()
        self.first_us: dict[tuple[int, int], int] = {}

    def run(self) -> None:
        """Store results until `end`."""
        insert = self._database.insert()
        region = ConsistentRegion(self._consumer, name=self._group)
        with closing(self._database.connect()) as connection, region:
            for batch in region:
                with region.transaction(connection) as transaction:
                    transaction.executemany(insert, rows(self._group, batch))
                now_us = time.monotonic_ns() // 1_000
                for record in batch:
                    self.first_us.setdefault((record.partition, record.generation), now_us)
                if self._ends.is_set():
                    return

    def end(self) -> None:
        """End after the next batch."""
        self._ends.set()


def crash(lab: Lab, database: Database, crashes: int) -> dict[str, object]:
    """Kill one of two consumers, again and again; return the times in milliseconds."""
    group, topic, tail = "crash", "crash", EventTail(lab.events)
    lab.configure(group, GroupSettings())
    lab.create_topic(topic, PARTITIONS)
    lab.start_producer("producer", {topic: PARTITIONS}, CRASHES_PER_S)
    survivor = Survivor(lab, database, group, topic)
    running = gevent.get_hub().threadpool.spawn(survivor.run)
    taken, events = [], []
    options = {"--group": group, "--topic": topic, "--database": database.address, "--bootstrap": lab.cluster.bootstrap}
    options |= {"--zookeeper": lab.cluster.zookeeper, "--session-timeout-ms": str(SESSION_TIMEOUT_MS)}
    for number in range(1, crashes + 1):
        name = f"victim-{number}"
        command = [sys.executable, "-m", "tests.exactly_once.worker", "--client-id", name]
        victim = lab.cluster.program(name, command + [text for pair in options.items() for text in pair])
        victim.spawn()
        lab.wait_settled(group, {topic: PARTITIONS}, "survivor", name)
        owned = {number for (_, number), owner in lab.group(group).owned().items() if owner.startswith(name)}
        known = set(survivor.first_us)
        victim.kill()

        def news(known: set[tuple[int, int]] = known, owned: set[int] = owned) -> list[int]:
            first = dict(survivor.first_us)
            return [at for key, at in first.items() if key not in known and key[0] in owned]

        lab.wait_for("a new result", lambda: bool(news()))  # called before the next round
        ended_us: list[int] = []
        while not ended_us:
            events += tail.read()
            ended_us = [e["mono_us"] for e in events if e["kind"] == "member_left" and e["member"].startswith(name)]
            gevent.sleep(0.01)
        taken.append((min(news()) - ended_us[0]) / 1_000)
    survivor.end()
    running.get(timeout=READ_DEADLINE_S)
    return {"crashes": crashes, "median_ms": round(statistics.median(taken), 1), "max_ms": round(max(taken), 1)}


@contextmanager
def database_of(folder: Path, *, in_postgres: bool) -> Iterator[Database]:
    """Run PostgreSQL, or use a file."""
    if not in_postgres:
        yield Database(f"sqlite:{folder / 'sink.db'}")
        return
    with postgres() as address:
        yield Database(address)


def main() -> None:
    """Measure both and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--crashes", type=int, default=10)
    parser.add_argument("--postgres", action="store_true")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as scratch,
        database_of(Path(scratch), in_postgres=arguments.postgres) as database,
        led(SESSION_TIMEOUT_MS, chroot="/bench") as lab,
    ):
        database.create()
        result = {
            "sink": "postgres" if arguments.postgres else "sqlite",
            "throughput": throughput(lab, database, arguments.records, arguments.rounds),
            "from_session_end_to_first_result": crash(lab, database, arguments.crashes),
        }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
