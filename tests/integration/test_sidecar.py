"""`consumer-agent run --exec` with children that are slow, hang, die, fail or talk nonsense, on real servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message

from tests.integration.commands import catches
from tests.integration.fake_coordinator import SESSION_TIMEOUT_MS, WAIT_S, Stage, assert_stays, wait_until
from zkrebalancer.localcluster.ports import HOST, free_ports
from zkrebalancer.protocol.calls import Delete, Done, Multi

pytestmark = pytest.mark.timeout(600)  # on a new machine the first test fetches the servers' jars

HOUR_MS = 3_600_000  # for what must not be waited for
ACK = 'say({"ack": place})'
CHILD = """
import json, os, sys, time
from pathlib import Path

here = Path(sys.argv[1])
seen = open(here / "seen", "a")
held = []

def say(frame):
    print(json.dumps(frame), flush=True)

def note(*words):
    print(*words, file=seen, flush=True)

note("child", os.getpid())
for line in sys.stdin:
    frame = json.loads(line)
    if "revoke" in frame:
        note("revoke")
        while (here / "hold-revoke").exists():
            time.sleep(0.01)
        for place in held:
            say({"ack": place})
        held.clear()
        say({"revoked": frame["revoke"]})
        continue
    record = frame["record"]
    place = {key: record[key] for key in ("topic", "partition", "offset")}
    offset = record["offset"]
    note(record["partition"], offset)
    {ACT}
note("end")
"""


RUNNING: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def nobody_stays() -> Iterator[None]:
    """End the agents of a test that has failed."""
    yield
    for process in RUNNING:
        if process.poll() is None:
            process.kill()
            process.communicate()
    RUNNING.clear()


class Agent:
    """An agent with a child that does what the test says with each record, and notes what it was given."""

    def __init__(self, stage: Stage, folder: Path, act: str, *options: str, command: str | None = None) -> None:
        self.folder = folder
        self.seen = folder / "seen"
        self.seen.touch()
        script = folder / "child.py"
        script.write_text(CHILD.replace("{ACT}", act))
        own = ["--exec", command or f"{sys.executable} {script} {folder}", "--auto-commit-interval-ms", "50"]
        where = ["--zookeeper", stage.cluster.zookeeper, "--bootstrap", stage.cluster.bootstrap]
        wanted = ["--group", stage.group, "--topic", stage.topic, "--session-timeout-ms", str(SESSION_TIMEOUT_MS)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "consumer_agent.cli", "run", *where, *wanted, *own, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        RUNNING.append(self.process)

    def notes(self) -> list[str]:
        return self.seen.read_text().splitlines()

    def given(self, partition: int) -> list[int]:
        """Return the offsets that children were given, in order."""
        words = [note.split() for note in self.notes()]
        return [
            int(offset) for number, offset in (pair for pair in words if len(pair) == 2) if number == f"{partition}"
        ]

    def children(self) -> list[int]:
        return [int(note.split()[1]) for note in self.notes() if note.startswith("child ")]

    def signal(self, number: signal.Signals) -> None:
        wait_until(lambda: catches(self.process.pid, number), "the agent to handle signals")
        self.process.send_signal(number)

    def end(self, code: int = 0) -> str:
        """Wait for its end; return what it has written to stderr."""
        _, errors = self.process.communicate(timeout=WAIT_S)
        assert self.process.returncode == code, errors
        assert "Traceback" not in errors
        for pid in self.children():
            assert not Path(f"/proc/{pid}").exists(), "a child is left"
        return errors

    def stop(self, code: int = 0) -> str:
        self.signal(signal.SIGTERM)
        return self.end(code)


def test_a_slow_child_bounds_what_is_in_flight_and_the_agent_stays_alive(stage: Stage, tmp_path: Path) -> None:
    stage.produce([0, 1], 50)
    agent = Agent(stage, tmp_path, "held.append(place)", "--max-in-flight-records", "10")
    member = stage.wait_member()
    stage.wait_ack(stage.start(member, 0, 1))
    wait_until(lambda: len(agent.given(0) + agent.given(1)) == 10, "as many records as allowed")
    assert_stays(lambda: len(agent.given(0) + agent.given(1)) == 10, 1.5 * SESSION_TIMEOUT_MS / 1_000)
    assert stage.members() == (member,)
    given = {number: agent.given(number) for number in (0, 1)}
    stage.wait_ack(stage.stop(member, 0, 1))  # the child acknowledges before it lets go
    for number, offsets in given.items():
        assert offsets == list(range(len(offsets)))
        assert (stage.offset(number) or 0) == len(offsets)
    agent.stop()


def test_bytes_bound_what_is_in_flight_too(stage: Stage, tmp_path: Path) -> None:
    stage.produce([0], 50)
    agent = Agent(stage, tmp_path, "held.append(place)", "--max-in-flight-bytes", "1000")
    stage.wait_ack(stage.start(stage.wait_member(), 0))
    wait_until(lambda: len(agent.given(0)) == 4, "as many bytes as allowed")  # 257 each, as the agent counts
    assert_stays(lambda: len(agent.given(0)) == 4, 0.5)
    agent.stop()


def test_what_a_dead_child_did_not_acknowledge_is_given_to_the_next_one_in_order(stage: Stage, tmp_path: Path) -> None:
    stage.produce([0], 30)
    act = f"if offset == 7 and not (here / 'died').exists():\n        (here / 'died').touch(); os._exit(3)\n    {ACK}"
    agent = Agent(stage, tmp_path, act)
    stage.wait_ack(stage.start(stage.wait_member(), 0))
    wait_until(lambda: stage.offset(0) == 30, "all records")
    given = agent.given(0)
    assert given == [*range(8), *range(7, 30)]
    errors = agent.stop()
    assert "the child ended with exit status 3" in errors
    assert "another one is started in 100 ms" in errors


def test_a_child_that_is_killed_is_replaced(stage: Stage, tmp_path: Path) -> None:
    stage.produce([0], 5)
    agent = Agent(stage, tmp_path, ACK)
    stage.wait_ack(stage.start(stage.wait_member(), 0))
    for _ in range(3):
        wait_until(lambda: stage.offset(0) == stage.produced[0], "all records")
        os.kill(agent.children()[-1], signal.SIGKILL)
        stage.produce([0], 5)
    wait_until(lambda: stage.offset(0) == 20, "the rest")
    assert agent.given(0) == list(range(20))
    assert "the child was killed by SIGKILL" in agent.stop()


def test_the_child_of_a_killed_agent_ends_and_another_agent_goes_on(stage: Stage, tmp_path: Path) -> None:
    stage.produce([0], 20)
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    agent = Agent(stage, folders[0], f"if offset < 5:\n        {ACK}")
    member = stage.wait_member()
    stage.wait_ack(stage.start(member, 0))
    wait_until(lambda: len(agent.given(0)) == 20 and stage.offset(0) == 5, "the records")
    agent.process.kill()
    agent.process.communicate()
    wait_until(lambda: agent.notes()[-1] == "end", "the child to end")
    successor = Agent(stage, folders[1], ACK)
    stage.wait_ack(stage.start(stage.wait_member(member), 0))
    wait_until(lambda: stage.offset(0) == 20, "the rest")
    assert successor.given(0) == list(range(5, 20))
    successor.stop()


def test_a_record_that_fails_becomes_a_dead_letter_in_a_file(stage: Stage, tmp_path: Path) -> None:
    stage.produce([0], 10)
    act = f'if offset == 3:\n        say({{"fail": {{**place, "reason": "out of milk"}}}})\n    else:\n        {ACK}'
    letters = tmp_path / "dead.jsonl"
    agent = Agent(stage, tmp_path, act, "--dead-letter", f"file:{letters}", "--max-failures", "2")
    stage.wait_ack(stage.start(stage.wait_member(), 0))
    wait_until(lambda: stage.offset(0) == 10, "all records")
    (letter,) = map(json.loads, letters.read_text().splitlines())
    assert (letter["record"]["offset"], letter["failures"], letter["reason"]) == (3, 2, "out of milk")
    assert letter["group"] == stage.group
    assert agent.given(0).count(3) == 2
    agent.stop()


def test_a_record_is_not_finished_if_its_dead_letter_cannot_be_written(stage: Stage, tmp_path: Path) -> None:
    stage.produce([0], 5)
    act = f'if offset == 3:\n        say({{"fail": {{**place, "reason": "out of milk"}}}})\n    else:\n        {ACK}'
    agent = Agent(stage, tmp_path, act, "--dead-letter", "file:/dev/full", "--max-failures", "1")
    stage.wait_ack(stage.start(stage.wait_member(), 0))
    assert "Error: /dev/full: a dead letter cannot be written: No space left on device" in agent.end(1)
    assert stage.offset(0) == 3
    assert stage.members() == ()


def test_a_record_that_kills_its_child_becomes_a_dead_letter_in_a_topic(stage: Stage, tmp_path: Path) -> None:
    """The others that the child had are not blamed: only the one that it had alone."""
    stage.produce([0, 1], 10)
    act = f'if (record["partition"], offset) == (0, 3):\n        os._exit(9)\n    {ACK}'
    dead = Stage(stage.cluster, partitions=1)
    agent = Agent(stage, tmp_path, act, "--dead-letter", f"topic:{dead.topic}", "--max-failures", "2")
    stage.wait_ack(stage.start(stage.wait_member(), 0, 1))
    wait_until(lambda: (stage.offset(0), stage.offset(1)) == (10, 10), "all records")
    (letter,) = read_topic(stage.cluster.bootstrap, dead.topic)
    dead.close()
    headers = dict(letter.headers() or [])
    assert letter.value() == b"3"
    assert headers["dead_letter.topic"] == stage.topic.encode()
    assert (headers["dead_letter.partition"], headers["dead_letter.offset"]) == (b"0", b"3")
    assert headers["dead_letter.reason"] == b"the child ended with exit status 9"
    assert sorted(set(agent.given(0))) == list(range(10))
    agent.stop()


def read_topic(bootstrap: str, topic: str) -> list[Message]:
    """Return all messages of a topic with one partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "dead", "auto.offset.reset": "earliest"})
    found: list[Message] = []
    try:
        consumer.subscribe([topic])
        give_up_s = time.monotonic() + WAIT_S
        while not found and time.monotonic() < give_up_s:
            found += consumer.consume(100, timeout=1.0)
        return found + consumer.consume(100, timeout=0.5)
    finally:
        consumer.close()


def test_a_child_that_hangs_at_a_revoke_is_killed_and_the_rest_goes_on(stage: Stage, tmp_path: Path) -> None:
    stage.produce([0, 1], 5)
    (tmp_path / "hold-revoke").touch()
    agent = Agent(stage, tmp_path, ACK, "--revoke-timeout-ms", "300")
    member = stage.wait_member()
    stage.wait_ack(stage.start(member, 0, 1))
    wait_until(lambda: (stage.offset(0), stage.offset(1)) == (5, 5), "the records")
    stage.wait_ack(stage.stop(member, 0))
    stage.produce([1], 5)
    wait_until(lambda: stage.offset(1) == 10, "the other partition")
    assert len(agent.children()) == 2
    (tmp_path / "hold-revoke").unlink()
    assert "the child has not let go of revoked partitions within 0.3 s" in agent.stop()


def test_a_revoke_that_is_taken_back_loses_nothing(stage: Stage, tmp_path: Path) -> None:
    stage.produce([0], 30)
    (tmp_path / "hold-revoke").touch()
    act = f"if offset < 5 or (here / 'go').exists():\n        {ACK}"
    agent = Agent(stage, tmp_path, act, "--max-in-flight-records", "12")
    member = stage.wait_member()
    stage.wait_ack(stage.start(member, 0))
    wait_until(lambda: len(agent.given(0)) == 17 and stage.offset(0) == 5, "the child to be full")
    path = stage.stop(member, 0)
    wait_until(lambda: "revoke" in agent.notes(), "the revoke")
    assert isinstance(stage.zk.perform(Multi((Delete(path),))), Done)
    (tmp_path / "go").touch()
    (tmp_path / "hold-revoke").unlink()
    wait_until(lambda: stage.offset(0) == 30, "all records, once more from where they were acknowledged")
    assert agent.given(0) == [*range(17), *range(5, 30)]
    agent.stop()


def test_a_stop_lets_the_child_finish_what_it_has(stage: Stage, tmp_path: Path) -> None:
    stage.produce([0], 200)
    agent = Agent(stage, tmp_path, f"time.sleep(0.01)\n    {ACK}", "--max-in-flight-records", "50")
    stage.wait_ack(stage.start(stage.wait_member(), 0))
    wait_until(lambda: len(agent.given(0)) >= 20, "some records")
    agent.stop()
    assert agent.notes()[-2:] == ["revoke", "end"]
    assert agent.given(0) == list(range(len(agent.given(0))))
    assert stage.offset(0) == len(agent.given(0)) < 200
    assert stage.members() == ()


@pytest.mark.parametrize("is_revoked", [False, True], ids=["working", "revoking"])
def test_a_child_that_hangs_does_not_hold_up_sigterm(stage: Stage, tmp_path: Path, is_revoked: bool) -> None:
    stage.produce([0], 5)
    (tmp_path / "hold-revoke").touch()
    limits = (
        "--max-poll-interval-ms",
        f"{2 * HOUR_MS}",
        "--revoke-timeout-ms",
        f"{HOUR_MS}",
        "--drain-timeout-ms",
        "300",
    )
    agent = Agent(stage, tmp_path, "pass", *limits)
    member = stage.wait_member()
    stage.wait_ack(stage.start(member, 0))
    wait_until(lambda: len(agent.given(0)) == 5, "the records")
    if is_revoked:
        stage.stop(member, 0)
        wait_until(lambda: "revoke" in agent.notes(), "the revoke")
    assert "warning: stopped before the child had acknowledged 5 records" in agent.stop()
    assert stage.members() == ()
    assert stage.offset(0) in {None, 0}


def test_a_second_signal_waits_for_nobody(stage: Stage, tmp_path: Path) -> None:
    stage.produce([0], 5)
    (tmp_path / "hold-revoke").touch()
    agent = Agent(stage, tmp_path, "pass", "--drain-timeout-ms", f"{HOUR_MS}")
    stage.wait_ack(stage.start(stage.wait_member(), 0))
    wait_until(lambda: len(agent.given(0)) == 5, "the records")
    agent.signal(signal.SIGINT)
    wait_until(lambda: "revoke" in agent.notes(), "the drain")
    agent.signal(signal.SIGINT)
    assert "stopped before the child had acknowledged 5 records" in agent.end()
    assert stage.members() == ()


@pytest.mark.parametrize(
    ("command", "options", "code", "text"),
    [
        ("no-such-program --now", (), 2, "there is no program 'no-such-program'"),
        ("sh -c 'unclosed", (), 2, "cannot be split into words"),
        ("sh -c 'echo Hello; sleep 60'", (), 1, "that is no frame"),
        ("sh -c 'echo Hello; sleep 60'", ("--frames", "msgpack"), 1, "its length would be 1214606444"),
        ("sh -c 'exit 4'", ("--max-restarts", "1"), 1, "the child ended with exit status 4; 2 children in a row"),
        ("sh -c 'exec <&-; sleep 60'", ("--max-restarts", "1"), 1, "the child closed its input; 2 children in a row"),
        ("sh -c 'exec >&-; sleep 60'", ("--max-restarts", "1"), 1, "the child closed its output; 2 children in a row"),
        ("cat", ("--dead-letter", "file:/proc/dead"), 2, "/proc/dead cannot be written"),
        ("cat", ("--dead-letter", "topic:no.such-topic"), 2, "topic no.such-topic"),
        ("cat", ("--http", "192.0.2.1:80"), 2, "http: 192.0.2.1:80 cannot be served"),
    ],
)
def test_what_a_user_gets_wrong(
    stage: Stage, tmp_path: Path, command: str, options: tuple[str, ...], code: int, text: str
) -> None:
    stage.produce([0], 5)
    failures = () if "--max-restarts" not in options else ("--max-failures", "1", "--dead-letter", f"file:{tmp_path}/x")
    agent = Agent(stage, tmp_path, "", *options, *failures, command=command)
    if code == 1:
        stage.start(stage.wait_member(), 0)
    errors = agent.end(code)
    (line,) = [line for line in errors.splitlines() if line.startswith("Error: ")]
    assert text in line
    assert stage.members() == ()
    assert stage.offset(0) in {None, 0}


def test_http(stage: Stage, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    stage.produce([0], 5)
    agent = Agent(stage, tmp_path, ACK, "--http", f"{HOST}:{port}")
    member = stage.wait_member()
    wait_until(lambda: ask(port, "healthz")[0] == 200, "a lease")
    stage.wait_ack(stage.start(member, 0))
    wait_until(lambda: stage.offset(0) == 5, "the records")
    status, text = ask(port, "assignment")
    assert (status, json.loads(text)) == (200, {"partitions": [{"topic": stage.topic, "partition": 0, "position": 5}]})
    status, text = ask(port, "metrics")
    assert status == 200
    assert f'consumer_agent_polled_records_total{{client_id="{client_id(text)}",group="{stage.group}"}} 5.0' in text
    assert ask(port, "unheard-of")[0] == 404
    wait_until(lambda: ask(port, "healthz")[0] == 200, "health")
    os.kill(agent.children()[0], signal.SIGSTOP)  # a child that hangs is no reason to restart the agent
    assert ask(port, "healthz")[0] == 200
    os.kill(agent.children()[0], signal.SIGCONT)
    agent.stop()


def ask(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/{path}", timeout=WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except urllib.error.URLError:
        return 0, ""  # it does not serve yet


def client_id(text: str) -> str:
    return text.split('client_id="')[1].split('"', maxsplit=1)[0]


def test_settings_come_from_everywhere_and_all_faults_are_told(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text('group = "g"\ntopics = ["t"]\nbootstrap = "b"\n[kafka_config]\n"sasl.password" = "hunter2"\n')

    def run(**environment: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "consumer_agent.cli", "run", "--config", file, "--capacity", "2", "--print-config"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **environment},
        )

    wrong = run(CONSUMER_AGENT_RACK="a b")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    lines = wrong.stderr.splitlines()
    assert [line.split(": ")[1].split(" (")[0] for line in lines] == ["zookeeper", f"{file}", "CONSUMER_AGENT_RACK"]
    right = run(CONSUMER_AGENT_BOOTSTRAP="b:1", CONSUMER_AGENT_ZOOKEEPER="z:1")
    assert (right.returncode, right.stderr) == (0, "")
    assert "capacity = 2.0  # --capacity" in right.stdout
    assert '"sasl.password" = "********"' in right.stdout
    assert "hunter2" not in right.stdout
