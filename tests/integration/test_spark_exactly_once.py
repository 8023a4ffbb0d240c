"""`docs/examples/spark_exactly_once.py`: Spark applications and a plain consumer share a group and a table.

Both kinds are added and killed while they write; then the table is compared with the produced records.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer

from tests.integration.scenario import Scenario
from tests.integration.test_examples import FOLDER, Examples, Sink
from tests.support import light_spark
from tests.support.command import processes_naming
from tests.support.deadlines import WITHIN_S
from zkrebalancer.localcluster.server import Program

PARTITIONS = 6
RECORDS = 120  # of each partition, at a time
POLLING_DELAY_MS = 100  # of a stream without records; with Spark's 10, a JVM is never idle
START_DEADLINE_S = 240.0  # of a JVM and its Python workers, two at once
SPARK, AGENT = "spark_exactly_once.py", "exactly_once.py"
assert (FOLDER / SPARK).exists()


class Company:
    """The members, the produced records, and the table."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.examples = Examples(scenario)
        self.lab = scenario.lab
        self.examples.topic = scenario.topic("shared")
        self.lab.create_topic(self.examples.topic, PARTITIONS)
        self.sink = Sink(folder / "sink.db")
        self.folder = folder
        self.temporary = folder / "spark"  # of JVMs, which leave files there if they are killed
        self.temporary.mkdir()
        self.produced = 0

    def start(self, file: str, name: str) -> Program:
        """Start a Spark application with a named checkpoint, or a plain consumer."""
        work_s = "0.3" if file == SPARK else "0.001"  # a batch; a record
        checkpoint = str(self.folder / f"checkpoint-{name}")
        settings = {"DATABASE": str(self.sink.path), "CHECKPOINT": checkpoint, "SESSION_TIMEOUT_MS": "1000"}
        heap = "-Xms300m -Xmn150m"  # the example's own limit is below the heap that other tests begin with
        java = ("--driver-java-options", f"-Djava.io.tmpdir={self.temporary} {heap}")
        delay = f"spark.sql.streaming.pollingDelay={POLLING_DELAY_MS}"
        settings |= light_spark.submit(*java, "--conf", f"spark.local.dir={self.temporary}", "--conf", delay)
        return self.examples.start(file, **settings, WORK_S=work_s)

    def end_jvms(self) -> None:
        """End JVMs that outlived their drivers: they still clean up in a folder that is to be removed."""
        jvms = processes_naming(self.temporary)
        for jvm in jvms:
            with contextlib.suppress(psutil.NoSuchProcess):
                jvm.kill()
        psutil.wait_procs(jvms, START_DEADLINE_S)

    def produce(self) -> None:
        producer = Producer({"bootstrap.servers": self.lab.cluster.bootstrap})
        for number in range(RECORDS):
            for partition in range(PARTITIONS):
                producer.produce(self.examples.topic, f"{number}".encode(), partition=partition)
        assert producer.flush(WITHIN_S) == 0
        self.produced += RECORDS

    def wait_members(self, count: int) -> None:
        """Wait until so many members share all partitions."""

        def is_shared() -> bool:
            report = self.lab.group(self.examples.group)
            owners = report.owned()
            return len(report.members) == len(set(owners.values())) == count and len(owners) == PARTITIONS

        self.lab.wait_for(f"{count} members", is_shared, START_DEADLINE_S)

    def rows(self) -> int:
        return self.sink.ask("SELECT count(*) FROM results")[0][0]

    def wait_work(self) -> None:
        """Produce, and wait until a part of it is in the table."""
        before = self.rows()
        self.produce()
        self.lab.wait_for("work", lambda: self.rows() > before, START_DEADLINE_S)

    def wait_all(self) -> None:
        self.lab.wait_for("the end", lambda: self.sink.next_offsets() == {self.produced}, START_DEADLINE_S)


@pytest.fixture
def company(scenario: Scenario, folder: Path) -> Iterator[Company]:
    company = Company(scenario, folder)
    yield company
    company.end_jvms()
    scenario.stop(*scenario.coordinators)


def kill(program: Program) -> None:
    """Kill a process with its descendants, as a machine's failure does: the driver, its JVM, the member's process."""
    os.killpg(program.pid, signal.SIGKILL)
    program.kill()


def test_spark_and_a_plain_consumer_share_a_group(company: Company) -> None:
    spark, agent = company.start(SPARK, "first"), company.start(AGENT, "")
    company.wait_members(2)
    company.wait_work()
    kill(spark)
    company.wait_work()
    spark = company.start(SPARK, "first")  # it repeats its last batch
    company.wait_members(2)
    company.wait_work()
    kill(agent)
    company.wait_members(1)
    company.wait_work()
    agent = company.start(AGENT, "")
    company.wait_members(2)
    company.produce()
    company.wait_all()
    end(company, [spark], agent)


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_two_spark_applications_and_a_plain_consumer_share_a_group(company: Company) -> None:
    first, agent = company.start(SPARK, "first"), company.start(AGENT, "")
    company.wait_members(2)
    company.produce()
    second = company.start(SPARK, "second")
    company.wait_all()
    company.wait_members(3)
    company.wait_work()
    kill(first)
    company.wait_work()
    kill(agent)
    company.wait_members(1)
    company.wait_work()
    first, agent = company.start(SPARK, "first"), company.start(AGENT, "")  # Spark repeats its last batch
    company.wait_members(3)
    company.produce()
    company.wait_all()
    end(company, [first, second], agent)


def end(company: Company, applications: list[Program], agent: Program) -> None:
    """End all members in good order; require each record's result once in the table."""
    for program in (*applications, agent):
        os.kill(program.pid, signal.SIGINT if program is agent else signal.SIGTERM)
    company.lab.wait_for("everybody to leave", lambda: not company.lab.group(company.examples.group).members)
    for program in (*applications, agent):
        company.examples.wait_end(program)
    rows = company.sink.ask("SELECT partition, result, count(*) FROM results GROUP BY partition, result")
    assert {count for *_, count in rows} == {1}
    assert len(rows) == PARTITIONS * company.produced
