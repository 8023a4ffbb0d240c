"""`consumer-agent run` from outside: HTTP, the origins of settings, and refused settings."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import gevent
import pytest

from tests.integration.child import ACK, Agent, configure
from tests.integration.commands import Result, WarmCommand
from tests.integration.fake_coordinator import Stage
from tests.support.answers import get
from tests.support.deadlines import WITHIN_S
from tests.support.waiting import wait_until
from zkrebalancer.localcluster import faults
from zkrebalancer.localcluster.ports import HOST, free_ports
from zkrebalancer.protocol.errors import ZooKeeperRefusedError
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.runtime.zk import BlockingZk


def test_a_revoke_that_may_take_longer_than_the_group_waits_is_refused(stage: Stage, tmp_path: Path) -> None:
    configure(stage, GroupSettings(rebalance_timeout_ms=5_000))
    errors = Agent(stage, tmp_path, ACK, "--revoke-timeout-ms", "5000", "--stop-timeout-ms", "1").end(2)
    (line,) = errors.splitlines()
    text = f"--revoke-timeout-ms: 5000 is not below rebalance_timeout_ms of group {stage.group} (5000)"
    assert line.startswith(f"Error: {text}")
    assert stage.members() == ()


def start_unless_it_ends(stage: Stage, agent: Agent) -> None:
    """Give a consumer a partition; a child that fails at once may have ended its agent before that."""
    wait_until(lambda: stage.members() or agent.process.poll() is not None, "a consumer to register, or to end")
    for member in stage.members():
        with contextlib.suppress(ZooKeeperRefusedError):  # it has ended since
            stage.start(member, 0)


@pytest.mark.parametrize(
    ("command", "options", "code", "text"),
    [
        ("no-such-program --now", (), 2, "there is no program 'no-such-program'"),
        ("sh -c 'unclosed", (), 2, "cannot be split into words"),
        ("sh -c 'echo Hello; sleep 60'", (), 1, "that is not a valid frame"),
        ("sh -c 'echo Hello; sleep 60'", ("--frames", "msgpack"), 1, "its length would be 1214606444"),
        ("sh -c 'exit 4'", ("--max-restarts", "1"), 1, "the child ended with exit status 4; 2 children in a row"),
        ("sh -c 'exec <&-; sleep 60'", ("--max-restarts", "1"), 1, "the child closed its input; 2 children in a row"),
        ("sh -c 'exec >&-; sleep 60'", ("--max-restarts", "1"), 1, "the child closed its output; 2 children in a row"),
        ("cat", ("--auto-offset-reset", "none"), 1, "is stored, and auto_offset_reset is none"),
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
        start_unless_it_ends(stage, agent)
    errors = agent.end(code)
    (line,) = [line for line in errors.splitlines() if line.startswith("Error: ")]
    assert text in line
    assert stage.members() == ()
    assert stage.offset(0) in {None, 0}


def test_an_output_that_cannot_be_written_is_told_in_one_line() -> None:
    where = ["--zookeeper", "z:1", "--bootstrap", "b:1", "--group", "g", "--topic", "t", "--print-config"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "consumer_agent.sidecar.cli", "run", *where],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "Error: the output cannot be written: No space left on device\n")


def test_http(stage: Stage, tmp_path: Path) -> None:
    http = f"{HOST}:{free_ports(1)[0]}"
    stage.produce([0], 5)
    settings = tmp_path / "agent.toml"
    settings.write_text("max_failures = 2\n")
    agent = Agent(stage, tmp_path, ACK, "--http", http, "--config", str(settings))
    member = stage.wait_member()
    wait_until(lambda: get(http, "healthz")[0] == 200, "a lease")
    stage.wait_ack(stage.start(member, 0))
    wait_until(lambda: stage.offset(0) == 5, "the records")
    status, text = get(http, "assignment")
    assert (status, json.loads(text)) == (200, {"partitions": [{"topic": stage.topic, "partition": 0, "position": 5}]})
    status, text = get(http, "metrics")
    assert status == 200
    assert f'consumer_agent_lease_seconds{{client_id="{client_id(text)}"' in text
    assert [get(http, path)[0] for path in ("liveness", "readiness", "leader")] == [200, 200, 503]
    assert f'consumer_agent_polled_records_total{{client_id="{client_id(text)}",group="{stage.group}"}} 5.0' in text
    assert get(http, "unheard-of")[0] == 404
    wait_until(lambda: get(http, "healthz")[0] == 200, "health")
    os.kill(agent.children()[0], signal.SIGSTOP)  # a hanging child is no reason to restart the agent
    assert get(http, "healthz")[0] == 200
    os.kill(agent.children()[0], signal.SIGCONT)
    told = [_told_after(agent, settings, text) for text in ("max_failures = 1\n", "max_failure = 1\n")]
    assert told[0].endswith("a restart is needed for the new values of max_failures\n")
    assert f"the former settings stay in force: {settings}: max_failure: there is no such setting" in told[1]
    agent.stop()


def _told_after(agent: Agent, settings: Path, text: str) -> str:
    """Change the settings, and return what the agent says to SIGHUP; let `_read_again` say nothing, and it fails."""
    settings.write_text(text)
    agent.signal(signal.SIGHUP)
    assert agent.process.stderr is not None
    with gevent.Timeout(WITHIN_S):
        while "settings stay" not in (line := _line(agent.process.stderr)) and "a restart is" not in line:
            pass
    return line


def _line(stream: IO[str]) -> str:
    line = gevent.get_hub().threadpool.apply(stream.readline)
    assert line, "the agent has ended"
    return str(line)


def test_without_zookeeper_an_agent_is_not_healthy_until_that_is_back(stage: Stage, tmp_path: Path) -> None:
    http = f"{HOST}:{free_ports(1)[0]}"
    agent = Agent(stage, tmp_path, ACK, "--http", http, "--session-timeout-ms", "6000")
    wait_until(lambda: get(http, "healthz")[0] == 200, "a lease")
    (server,) = stage.cluster.zookeeper_servers
    stage.close()
    try:
        faults.stop_zookeeper(server)
        wait_until(lambda: get(http, "healthz")[0] == 503, "the agent to be ill")
        found = json.loads(get(http, "healthz")[1])
        assert found["faults"] == ["it has no lease: it is not registered, or cannot reach ZooKeeper"]
        assert (found["healthy"], found["lease_ms"]) == (False, 0)
    finally:
        server.start()
        stage.zk = BlockingZk(stage.cluster.zookeeper)
    wait_until(lambda: get(http, "healthz")[0] == 200, "health")
    agent.stop()


def client_id(text: str) -> str:
    return text.split('client_id="')[1].split('"', maxsplit=1)[0]


def test_settings_come_from_everywhere_and_all_faults_are_told(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text('group = "g"\ntopics = ["t"]\nbootstrap = "b"\n[kafka_config]\n"sasl.password" = "hunter2"\n')

    def run(**environment: str) -> Result:
        given = ("run", "--config", file, "--capacity", 2, "--print-config")
        return WarmCommand("consumer-agent", *given, environment=environment).result()

    wrong = run(CONSUMER_AGENT_RACK="a b")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    lines = wrong.stderr.splitlines()
    assert [line.split(": ")[1].split(" (")[0] for line in lines] == ["zookeeper", f"{file}", "CONSUMER_AGENT_RACK"]
    right = run(CONSUMER_AGENT_BOOTSTRAP="b:1", CONSUMER_AGENT_ZOOKEEPER="z:1")
    assert (right.returncode, right.stderr) == (0, "")
    assert "capacity = 2.0  # --capacity" in right.stdout
    assert '"sasl.password" = "********"' in right.stdout
    assert "hunter2" not in right.stdout
