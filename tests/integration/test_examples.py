"""Runs every `docs/examples/NAME.py` as a process on real servers; `test_NAME` checks its output or effect.

Addresses are in the environment (ZOOKEEPER, BOOTSTRAP, GROUP, TOPIC); Ctrl-C ends an example cleanly.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.integration.scenario import Scenario
from tests.support.deadlines import WITHIN_S
from zkrebalancer.localcluster import faults
from zkrebalancer.localcluster.server import Program
from zkrebalancer.operations.kafka_offsets import StoredInKafka
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import ABSENT, Content, Get
from zkrebalancer.protocol.settings import GroupSettings

FOLDER = Path(__file__).parents[2] / "docs" / "examples"
RECORDS = 10  # of each partition
PARTITIONS = 2
ROUNDS = 2  # of a kill and a freeze each
RECORDS_OF_A_ROUND = 2_000


class Examples:
    """A coordinator, a topic whose records are their own numbers, a group, and the examples that run."""

    def __init__(self, scenario: Scenario) -> None:
        self.lab = scenario.lab
        self.group = f"examples-{scenario.number}"
        self.topic = scenario.topic("orders")
        self.lab.configure(self.group, GroupSettings())
        scenario.groups[self.group] = []  # so that it is removed at the end
        scenario.add_coordinator()
        self.lab.create_topic(self.topic, PARTITIONS)
        self.produce(RECORDS)

    def produce(self, count: int) -> None:
        """Append records 0, 1, … to each partition."""
        producer = Producer({"bootstrap.servers": self.lab.cluster.bootstrap})
        for partition in range(PARTITIONS):
            for number in range(count):
                producer.produce(self.topic, f"{number}".encode(), partition=partition)
        assert producer.flush(WITHIN_S) == 0

    def start(self, file: str, **environment: str) -> Program:
        """Begin an example; upper-case keywords add to its environment."""
        known = {
            "ZOOKEEPER": self.lab.cluster.zookeeper,
            "BOOTSTRAP": self.lab.cluster.bootstrap,
            "GROUP": self.group,
            "TOPIC": self.topic,
        }
        name = f"{self.group}-{Path(file).name}-{len(self.lab.programs)}"  # the log is appended to
        program = self.lab.cluster.program(name, [sys.executable, str(FOLDER / file)], {**known, **environment})
        self.lab.programs[name] = program
        program.spawn()
        return program

    def start_child(self, file: str, *options: str) -> Program:
        """Begin `consumer-agent run --exec` with an example as its child."""
        cluster = self.lab.cluster
        where = ["--zookeeper", cluster.zookeeper, "--bootstrap", cluster.bootstrap]
        wanted = ["--group", self.group, "--topic", self.topic, "--log-level", "error"]
        interpreter = sys.executable if file.endswith(".py") else "sh"
        command = [
            sys.executable,
            "-m",
            "consumer_agent.sidecar.cli",
            "run",
            "--exec",
            f"{interpreter} {FOLDER / file}",
        ]
        program = cluster.program(file, [*command, *where, *wanted, *options])
        self.lab.programs[file] = program
        program.spawn()
        return program

    def wait_for(self, what: str, example: Program, is_so: Callable[[], bool]) -> None:
        """Wait until a condition holds, which must happen before the example ends."""

        def has_come() -> bool:
            if not example.is_running:
                example.wait_end(0)
                assert is_so(), f"{example.name} has ended without {what}: {output(example)}"
            return is_so()

        self.lab.wait_for(f"{example.name}: {what}", has_come)

    def interrupt(self, example: Program, number: signal.Signals = signal.SIGINT) -> None:
        """Send Ctrl-C or another signal, and wait for an end without an error."""
        os.kill(example.pid, number)
        self.wait_end(example)

    def wait_end(self, example: Program) -> None:
        """Wait for an end without an error."""
        self.lab.wait_for(f"end of {example.name}", lambda: not example.is_running)
        example.wait_end(0)
        assert "Traceback" not in output(example)


@pytest.fixture
def examples(scenario: Scenario) -> Iterator[Examples]:
    """Open the stage for one example."""
    yield Examples(scenario)
    scenario.stop(*scenario.coordinators)
    scenario.require_quiet_logs()


def output(example: Program) -> str:
    """Return an example's output so far."""
    return example.log.read_text()


def test_every_example_has_a_test() -> None:
    names = [path.stem for path in FOLDER.iterdir() if path.name != "__pycache__"]
    assert names
    others = [path for kind in ("spark", "region") for path in Path(__file__).parent.glob(f"test_{kind}_*.py")]
    elsewhere = "".join(path.read_text() for path in others)
    assert [name for name in names if f"test_{name}" not in globals() and f"{name}.py" not in elsewhere] == []


def expect_records(examples: Examples, example: Program, first_offset: int = 0) -> None:
    """Wait until an example has printed every record from this offset on, end it, and check that it printed no more."""
    wanted = sorted(f"{examples.topic}/{p} {n} b'{n}'" for p in range(PARTITIONS) for n in range(first_offset, RECORDS))
    examples.wait_for("all records", example, lambda: output(example).count(examples.topic) >= len(wanted))
    examples.interrupt(example)
    assert sorted(output(example).splitlines()) == wanted


def test_static_member(examples: Examples) -> None:
    older = examples.start("static_member.py", INSTANCE="billing-0")
    examples.wait_for("partitions", older, lambda: "has [" in output(older))
    younger = examples.start("static_member.py", INSTANCE="billing-0")
    examples.wait_for("the same partitions", younger, lambda: output(older).splitlines()[0] in output(younger))
    examples.wait_end(older)
    assert output(older).splitlines()[-1].startswith("ends: group_instance_id billing-0: ")
    examples.interrupt(younger)


def test_consume(examples: Examples) -> None:
    expect_records(examples, examples.start("consume.py"))


def test_seek(examples: Examples) -> None:
    expect_records(examples, examples.start("seek.py", FROM="7"), 7)


def test_replay(examples: Examples) -> None:
    """All records are younger than the time, so it reads everything, and is not behind then."""
    example = examples.start("replay.py", SINCE_MS="1000")
    examples.wait_for("its lag", example, lambda: output(example).endswith("0 behind\n"))
    assert output(example).count(examples.topic) == PARTITIONS * RECORDS
    examples.interrupt(example)


def test_out_of_range(examples: Examples) -> None:
    admin = AdminClient({"bootstrap.servers": examples.lab.cluster.bootstrap})
    (deleted,) = admin.delete_records([TopicPartition(examples.topic, 0, 7)]).values()
    examples.lab.wait_for("the end of the oldest records", deleted.done)
    wanted = {(partition, n) for partition, begin in ((0, 7), (1, 0)) for n in range(begin, RECORDS)}
    example = examples.start("out_of_range.py")

    def printed() -> set[tuple[int, int]]:
        found = re.findall(r"/(\d+) (\d+) b'", output(example))
        return {(int(partition), int(offset)) for partition, offset in found}

    examples.wait_for("the records that are left", example, lambda: printed() == wanted)
    assert f"{examples.topic}/0 misses 7 records" in output(example)
    assert f"{examples.topic}/1 misses" not in output(example)
    examples.interrupt(example)


def test_fair_poll(examples: Examples) -> None:
    example = examples.start("fair_poll.py")
    shares = re.compile(r"/(\d+): (\d+) of (\d+), (\[.*\])")

    def printed() -> list[tuple[str, ...]]:
        return shares.findall(output(example))

    total = PARTITIONS * RECORDS
    examples.wait_for("all records", example, lambda: sum(int(count) for _, count, _, _ in printed()) == total)
    examples.interrupt(example)
    assert all(int(of) <= 6 for _, _, of, _ in printed())
    for partition in range(PARTITIONS):
        values = [
            value for number, _, _, text in printed() if number == str(partition) for value in text[1:-1].split(", ")
        ]
        assert values == [f"b'{number}'" for number in range(RECORDS)]


def test_resubscribe(examples: Examples) -> None:
    """It gets the partitions of the second topic, without a stop of the first."""
    examples.lab.create_topic(second := f"{examples.topic}-more", 1)
    example = examples.start("resubscribe.py", TOPIC2=second, END=str(RECORDS))
    examples.wait_for("the second topic", example, lambda: f"also gets [('{second}', 0)]" in output(example))
    examples.produce(1)
    printed = [f"{examples.topic}/{partition} {RECORDS}" for partition in range(PARTITIONS)]
    examples.wait_for("new records", example, lambda: set(printed) <= set(output(example).splitlines()))
    examples.interrupt(example)
    assert output(example).count("gets") == 2


def expect_records_beside_ticks(examples: Examples, example: Program) -> None:
    """Expect every record, with other tasks running while the consumer waits, also long after the last record."""
    wanted = {f"{examples.topic}/{p} {n} b'{n}'" for p in range(PARTITIONS) for n in range(RECORDS)}
    examples.wait_for("all records", example, lambda: wanted <= set(output(example).splitlines()))
    ticks = output(example).count("tick")
    examples.wait_for("ticks", example, lambda: output(example).count("tick") > ticks + 20)
    examples.interrupt(example)
    printed = re.findall(rf"^{re.escape(examples.topic)}/\d+ \d+ .*$", output(example), re.MULTILINE)
    assert sorted(printed) == sorted(wanted), "log lines aside, each record is printed once"
    assert examples.lab.group(examples.group).members == []


def test_asynchronous(examples: Examples) -> None:
    example = examples.start("asynchronous.py")
    expect_records_beside_ticks(examples, example)
    assert "gets [" in output(example)


@pytest.mark.parametrize("patch", ["0", "1"])
def test_greenlets(examples: Examples, patch: str) -> None:
    expect_records_beside_ticks(examples, examples.start("greenlets.py", PATCH=patch))


def test_threads(examples: Examples) -> None:
    """Each partition is read by one thread, in order."""
    example = examples.start("threads.py")

    def printed() -> list[list[str]]:
        return [line.split() for line in output(example).splitlines()]

    examples.wait_for("all records", example, lambda: len(printed()) == PARTITIONS * RECORDS)
    examples.interrupt(example)
    assert len({(thread, partition) for thread, partition, _ in printed()}) == PARTITIONS
    assert len({thread for thread, _, _ in printed()}) == PARTITIONS
    for number in range(PARTITIONS):
        partition = f"{examples.topic}/{number}"
        offsets = [int(offset) for _, name, offset in printed() if name == partition]
        assert offsets == list(range(RECORDS))
        stored = examples.lab.zk.perform(Get(paths.offsets(examples.group, examples.topic, number)))
        assert isinstance(stored, Content)
        assert stored.content == str(RECORDS).encode()


class Sink:
    """The database of `exactly_once.py`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def ask(self, query: str) -> list[tuple[int, ...]]:
        with closing(sqlite3.connect(self.path, timeout=WITHIN_S)) as database:
            return database.execute(query).fetchall()

    def progress(self) -> dict[int, tuple[int, int]]:
        """Return partition -> next offset and generation; nothing before the first transaction."""
        if not self.ask("SELECT 1 FROM sqlite_schema WHERE name = 'consumer_progress'"):
            return {}
        return {
            row[0]: (row[1], row[2])
            for row in self.ask("SELECT partition, next_offset, generation FROM consumer_progress")
        }

    def next_offsets(self) -> set[int]:
        return {next_offset for next_offset, _ in self.progress().values()}

    def is_free(self) -> bool:
        """Whether no transaction is open."""
        with closing(sqlite3.connect(self.path, timeout=0)) as database:
            try:
                database.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False
        return True


class Sinking:
    """Consumers with a sink; every partition makes progress before each fault."""

    def __init__(self, examples: Examples, sink: Sink) -> None:
        self.examples = examples
        self.sink = sink
        self.running: list[Program] = []

    def join(self) -> None:
        settings = {"DATABASE": str(self.sink.path), "WORK_S": "0.003", "SESSION_TIMEOUT_MS": "1000"}
        self.running.append(self.examples.start("exactly_once.py", **settings))
        self.wait_members(len(self.running))

    def wait_members(self, count: int) -> None:
        """Wait until so many consumers share all partitions."""

        def is_shared() -> bool:
            report = self.examples.lab.group(self.examples.group)
            owners = report.owned()
            return len(report.members) == len(set(owners.values())) == count and len(owners) == PARTITIONS

        self.examples.lab.wait_for(f"{count} consumers", is_shared)

    def wait_work(self) -> None:
        before = self.sink.progress()

        def has_come() -> bool:
            now = self.sink.progress()
            return len(now) == PARTITIONS and all(now[p][0] > before.get(p, (0, 0))[0] for p in now)

        self.examples.lab.wait_for("work in every partition", has_come)

    def kill_one(self) -> None:
        self.wait_work()
        self.running.pop(0).kill()
        self.join()

    def freeze_one_until_others_have_claimed(self) -> None:
        """Freeze outside of transactions, because an open one would block the others."""
        self.wait_work()
        faults.freeze(self.running[0].pid)
        while not self.sink.is_free():
            faults.thaw(self.running[0].pid)
            faults.freeze(self.running[0].pid)
        before = self.sink.progress()
        self.wait_members(1)
        claimed = lambda: any(now[1] > before[p][1] for p, now in self.sink.progress().items())  # noqa: E731
        self.examples.lab.wait_for("a claim", claimed)
        faults.thaw(self.running[0].pid)
        self.wait_members(2)


def test_exactly_once(examples: Examples, folder: Path) -> None:
    """Kill consumers with unfinished records, or freeze them until others took over: each result is stored once."""
    sinking = Sinking(examples, Sink(folder / "sink.db"))
    sinking.join()
    sinking.join()
    for _ in range(ROUNDS):
        examples.produce(RECORDS_OF_A_ROUND)
        sinking.kill_one()
        sinking.freeze_one_until_others_have_claimed()
    total = RECORDS + ROUNDS * RECORDS_OF_A_ROUND
    examples.lab.wait_for("the end", lambda: sinking.sink.next_offsets() == {total})
    for example in sinking.running:
        examples.interrupt(example)
    rows = sinking.sink.ask("SELECT partition, result, count(*) FROM results GROUP BY partition, result")
    assert {count for *_, count in rows} == {1}
    assert len(rows) == PARTITIONS * total


def test_stuck(examples: Examples) -> None:
    example = examples.start("stuck.py")
    examples.wait_for("the loss", example, lambda: "lost " in output(example))
    hung = output(example).partition("lost ")[0]
    first = hung.split()[:2]
    examples.wait_for(
        "the first record, again", example, lambda: " ".join(first) in output(example).partition("lost ")[2]
    )
    examples.interrupt(example)


def test_commit(examples: Examples) -> None:
    example = examples.start("commit.py")
    wanted = {f"{examples.topic}/{p} is stored up to {RECORDS}" for p in range(PARTITIONS)}
    examples.wait_for("all offsets", example, lambda: wanted <= set(output(example).splitlines()))
    examples.interrupt(example)
    assert "not stored" not in output(example)
    stored = StoredInKafka({"bootstrap.servers": examples.lab.cluster.bootstrap}, examples.group).read()
    assert stored == {(examples.topic, p): RECORDS for p in range(PARTITIONS)}


def test_msgpack_child(examples: Examples) -> None:
    """A non-numeric record becomes a dead letter, and the others are printed."""
    producer = Producer({"bootstrap.servers": examples.lab.cluster.bootstrap})
    producer.produce(examples.topic, b"ten", partition=0)
    assert producer.flush(WITHIN_S) == 0
    letters = examples.lab.events / "dead-letters"
    example = examples.start_child("msgpack_child.py", "--frames", "msgpack", "--dead-letter", f"file:{letters}")
    wanted = sorted(f"{examples.topic}/{p} {n} {n}" for p in range(PARTITIONS) for n in range(RECORDS))
    examples.wait_for("all records", example, lambda: output(example).count(examples.topic) >= len(wanted))
    examples.wait_for("the letter", example, lambda: letters.exists() and b"b'ten' is not" in letters.read_bytes())
    examples.interrupt(example)
    assert sorted(line for line in output(example).splitlines() if examples.topic in line) == wanted


def test_shell_child(examples: Examples) -> None:
    example = examples.start_child("shell_child.sh")
    wanted = sorted(
        f'"topic":"{examples.topic}","partition":{p},"offset":{n} {n}'
        for p in range(PARTITIONS)
        for n in range(RECORDS)
    )
    examples.wait_for("all records", example, lambda: output(example).count(examples.topic) >= len(wanted))
    examples.interrupt(example)
    assert sorted(line for line in output(example).splitlines() if examples.topic in line) == wanted


@pytest.mark.parametrize(
    "name",
    sorted(
        path.stem
        for path in FOLDER.glob("*.py")
        if path.stem not in {"msgpack_child", "region_counts", "region_forced", "spark_exactly_once"}
    ),
)
def test_an_example_leaves_the_group_on_sigterm(examples: Examples, folder: Path, name: str) -> None:
    """It exits with 0 and without a traceback, and its partitions are free at once."""
    needs = {"FROM": "0", "TOPIC2": examples.topic, "END": "1000000", "INSTANCE": "i", "DATABASE": f"{folder}/sink.db"}
    needs |= {"SINCE_MS": "0", "FOLDER": str(folder), "MEMBER": "m", "EVERY_S": "0.5", "RECORDS": "1000000"}
    example = examples.start(f"{name}.py", **needs)
    group = examples.group
    examples.wait_for("partitions", example, lambda: len(examples.lab.group(group).owned()) == PARTITIONS)
    examples.interrupt(example, signal.SIGTERM)
    assert examples.lab.group(group).members == []


def test_region_partition(examples: Examples, tmp_path: Path) -> None:
    """After a kill, the others restore the states of just its partitions, each as of its committed offset."""
    settings = {"FOLDER": str(tmp_path), "SESSION_TIMEOUT_MS": "4000", "EVERY_S": "0.3"}
    members, written = [examples.start("region_partition.py", **settings) for _ in range(2)], RECORDS

    def are_counted() -> bool:
        for partition in range(PARTITIONS):
            file = tmp_path / f"{examples.topic}-{partition}-{written}.json"
            stored = examples.lab.zk.perform(Get(paths.offsets(examples.group, examples.topic, partition)), ABSENT)
            is_stored = isinstance(stored, Content) and int(stored.content) == written and file.exists()
            if not is_stored or json.loads(file.read_text()) != [written, sum(range(written))]:
                return False
        return True

    examples.wait_for("all records", members[0], are_counted)
    examples.produce(RECORDS_OF_A_ROUND)
    written += RECORDS_OF_A_ROUND
    faults.kill(members[0].pid)
    examples.wait_for("all records", members[1], are_counted)
    examples.interrupt(members[1], signal.SIGTERM)
    assert are_counted()
