"""`consumer-agent run` as a process: killed, frozen, stopped, with a child; the test plays the coordinator."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from consumer_agent.runtime.failpoints import VARIABLE
from tests.integration.commands import begin, command_of
from tests.integration.fake_coordinator import SESSION_TIMEOUT_MS, WAIT_S, Stage
from tests.support.waiting import wait_until
from zkrebalancer.localcluster import faults
from zkrebalancer.localcluster.server import child_environment


def read_events(directory: Path) -> list[dict[str, object]]:
    lines = [line for path in directory.glob("*.jsonl") for line in path.read_text().splitlines()]
    return sorted((json.loads(line) for line in lines), key=lambda event: event["mono_us"])


def run_agent(stage: Stage, *options: str, failpoint: str = "") -> subprocess.Popen[str]:
    address = ["--zookeeper", stage.cluster.zookeeper, "--bootstrap", stage.cluster.bootstrap]
    own = ["--group", stage.group, "--topic", stage.topic, "--session-timeout-ms", SESSION_TIMEOUT_MS]
    return begin("consumer-agent", "run", *address, *own, *options, environment={VARIABLE: failpoint})


@pytest.mark.parametrize(
    ("failpoint", "owns", "command_left"),
    [("before-ack", False, True), ("after-ack", True, False), ("before-stop-ack", True, True)],
)
def test_killed_at_a_failpoint(stage: Stage, failpoint: str, owns: bool, command_left: bool) -> None:
    """Check the nodes of a consumer that died at the worst moment."""
    stage.produce([0], 10)
    agent = run_agent(stage, "--quiet", failpoint=failpoint)
    member = stage.wait_member()
    path = stage.start(member, 0)
    if "stop" in failpoint:
        stage.wait_ack(path)
        path = stage.stop(member, 0)
    agent.communicate(timeout=WAIT_S)
    assert agent.returncode == -signal.SIGKILL
    record = stage.owners(member)
    assert record is not None
    assert (set(record.partitions) == stage.of(0)) == owns
    assert stage.is_pending(path) == command_left
    assert stage.offset(0) is None
    wait_until(lambda: stage.members() == (), "the session to expire")


def test_the_agent_prints_records_and_leaves_on_sigterm(stage: Stage) -> None:
    stage.produce([0], 3)
    agent = run_agent(stage, "--json")
    member = stage.wait_member()
    stage.wait_ack(stage.start(member, 0))
    assert agent.stdout is not None
    lines = [json.loads(agent.stdout.readline()) for _ in range(3)]
    agent.send_signal(signal.SIGTERM)
    _, errors = agent.communicate(timeout=WAIT_S)
    assert agent.returncode == 0, errors
    assert [(line["offset"], base64.b64decode(line["value_base64"])) for line in lines] == [
        (n, b"%d" % n) for n in range(3)
    ]
    assert stage.members() == ()
    assert stage.offset(0) == 3


def test_a_frozen_agent_emits_nothing_of_what_it_lost(stage: Stage) -> None:
    stage.produce([0], 3)
    agent = run_agent(stage, "--json")
    member = stage.wait_member()
    stage.wait_ack(stage.start(member, 0))
    assert agent.stdout is not None
    for _ in range(3):
        agent.stdout.readline()
    faults.freeze(agent.pid)
    wait_until(lambda: stage.members() == (), "the session to expire")
    stage.produce([0], 50)
    faults.thaw(agent.pid)
    successor = stage.wait_member(member)
    assert stage.owners(successor).partitions == {}  # type: ignore[union-attr]
    agent.send_signal(signal.SIGINT)
    output, errors = agent.communicate(timeout=WAIT_S)
    assert output == ""
    assert agent.returncode == 0, errors


WALL_CLOCK = """
import pathlib, sys, time
now_ns, file = time.time_ns, pathlib.Path(__file__).with_name("ahead_s")
time.time_ns = lambda: now_ns() + int(file.read_text()) * 10**9
time.time = lambda: time.time_ns() / 1e9
"""
DAY_S = 86_400


def test_jumps_of_the_wall_clock_neither_end_nor_prolong_a_lease(stage: Stage, tmp_path: Path) -> None:
    """In `consumer_agent/runtime/clock.py`, return `time.time_ns() // 1_000_000`."""
    (tmp_path / "sitecustomize.py").write_text(WALL_CLOCK)
    ahead_s = tmp_path / "ahead_s"
    ahead_s.write_text("0")
    stage.produce([0], 3)
    address = ["--zookeeper", stage.cluster.zookeeper, "--bootstrap", stage.cluster.bootstrap]
    own = ["--group", stage.group, "--topic", stage.topic, "--session-timeout-ms", SESSION_TIMEOUT_MS, "--json"]
    environment = {**child_environment(), "PYTHONPATH": str(tmp_path)}
    command = command_of("consumer-agent", "run", *address, *own)
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True, env=environment, start_new_session=True) as agent:
        try:
            member = stage.wait_member()
            stage.wait_ack(stage.start(member, 0))
            assert agent.stdout is not None
            before = [json.loads(agent.stdout.readline())["offset"] for _ in range(3)]
            for jump_s in (DAY_S, 0, -DAY_S):
                ahead_s.write_text(str(jump_s))
                stage.produce([0], 3)
                before += [json.loads(agent.stdout.readline())["offset"] for _ in range(3)]
            assert before == list(range(12))
            assert stage.members() == (member,)
            faults.freeze(agent.pid)
            wait_until(lambda: stage.members() == (), "the session to expire")
            stage.produce([0], 50)
            ahead_s.write_text(str(-2 * DAY_S))
            faults.thaw(agent.pid)
            stage.wait_member(member)
            agent.send_signal(signal.SIGINT)
            output, errors = agent.communicate(timeout=WAIT_S)
            assert (agent.returncode, output) == (0, ""), errors
        finally:
            agent.kill()


CHILD = """
import json, sys
seen = open(sys.argv[1], "a")
for line in sys.stdin:
    frame = json.loads(line)
    if "revoke" in frame:
        answer = {"revoked": frame["revoke"]}
    else:
        record = frame["record"]
        print(record["offset"], file=seen, flush=True)
        place = {key: record[key] for key in ("topic", "partition", "offset")}
        answer = {ACT}
    print(json.dumps(answer), flush=True)
"""


def child(tmp_path: Path, act: str) -> str:
    script = tmp_path / "child.py"
    script.write_text(CHILD.replace("{ACT}", act))
    seen = tmp_path / "seen"
    seen.touch()  # the agent may be a member before the child has opened it
    return f"{sys.executable} {script} {seen}"


def test_a_child_process_gets_the_records_and_acknowledges(stage: Stage, tmp_path: Path) -> None:
    stage.produce(range(2), 20)
    agent = run_agent(stage, "--exec", child(tmp_path, '{"ack": place}'), "--json")
    member = stage.wait_member()
    stage.wait_ack(stage.start(member, 0, 1))
    wait_until(lambda: len((tmp_path / "seen").read_text().split()) == 40, "all records")
    stage.wait_ack(stage.stop(member, 0))
    agent.send_signal(signal.SIGTERM)
    output, errors = agent.communicate(timeout=WAIT_S)
    assert agent.returncode == 0, errors
    counts = json.loads(output)
    assert counts == {"records": 40, "partitions": 2}
    assert (stage.offset(0), stage.offset(1)) == (20, 20)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        ('{"fail": {**place, "reason": "out of milk"}}', "out of milk"),
        ('{"done": 1}', '{"done": 1}'),
        ("sys.exit(3)", "exit status 3"),
    ],
    ids=["fail", "no frame", "end"],
)
def test_a_child_that_fails_ends_the_agent_with_one_line(stage: Stage, tmp_path: Path, act: str, message: str) -> None:
    stage.produce([0], 5)
    agent = run_agent(stage, "--exec", child(tmp_path, act))
    stage.start(stage.wait_member(), 0)
    _, errors = agent.communicate(timeout=WAIT_S)
    assert agent.returncode == 1
    (line,) = [line for line in errors.splitlines() if line.startswith("Error: ")]
    assert message in line
    assert "Traceback" not in errors
    assert stage.members() == ()
    assert stage.offset(0) in {None, 0}  # nothing was finished
