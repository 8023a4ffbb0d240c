"""Users' mistakes end with one line on stderr and an exit code: 2 for wrong usage, 1 for a failure."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

from tests.integration.commands import Result, begin_cold, catches, end, run_all
from tests.integration.scenario import Scenario
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.ports import HOST, free_ports

ZOOKEEPER = "127.0.0.1:1"  # no server listens there or is contacted: usage is checked first
COORDINATOR = ("zkrebalancer", "coordinator")
AGENT = ("consumer-agent", "run")
WRONG_USAGE: list[tuple[object, ...]] = [
    (*COORDINATOR, "--broker-id", 1),
    (*COORDINATOR, "--broker-id", 1, "--zookeeper", "nowhere"),
    (*COORDINATOR, "--broker-id", 1, "--zookeeper", "nowhere:port"),
    (*COORDINATOR, "--broker-id", 1, "--zookeeper", f"{ZOOKEEPER}//a"),
    (*COORDINATOR, "--broker-id", -1, "--zookeeper", ZOOKEEPER),
    (*COORDINATOR, "--broker-id", "one", "--zookeeper", ZOOKEEPER),
    (*COORDINATOR, "--broker-id", 1, "--zookeeper", ZOOKEEPER, "--session-timeout-ms", 1),
    (*COORDINATOR, "--broker-id", 1, "--zookeeper", ZOOKEEPER, "--log-level", "loud"),
    (*COORDINATOR, "--broker-id", 1, "--zookeeper", ZOOKEEPER, "--events", "/proc/events"),
    (*COORDINATOR, "--broker-id", 1, "--zookeeper", ZOOKEEPER, "--unheard-of"),
    (*COORDINATOR, "--broker-id", 1, "--zookeeper", ZOOKEEPER, "--bootstrap", "nowhere"),
    ("zkrebalancer", "groups", "plan", "g", "--zookeeper", ZOOKEEPER, "--bootstrap", "b:1,b:port"),
    ("zkrebalancer", "topics", "mirror", "--zookeeper", ZOOKEEPER, "--bootstrap", "b:1/chroot"),
    ("zkrebalancer", "coordinate"),
    ("zkrebalancer", "cluster", "up", "--hosts", 2),
    ("zkrebalancer", "cluster", "up", "--hosts", 3, "--brokers", 2),
    ("zkrebalancer", "cluster", "up", "--broker", "none", "--brokers", 2),
    ("zkrebalancer", "cluster", "up", "--brokers", 0),
    ("zkrebalancer", "restore", "/missing/groups.backup", "--zookeeper", ZOOKEEPER),
    ("zkrebalancer", "groups", "describe", "--zookeeper", ZOOKEEPER),
    ("zkrebalancer", "groups", "reset-offsets", "g", "--zookeeper", ZOOKEEPER),
    ("zkrebalancer", "groups", "reset-offsets", "g", "--to-datetime", "0001-01-01T00:00:00", "--zookeeper", ZOOKEEPER),
    (*AGENT, "--group", "g", "--bootstrap", "b:1", "--topic", "t"),
    (*AGENT, "--group", "g", "--bootstrap", "b:1", "--topic", "t", "--zookeeper", "z:1:2/"),
    (*AGENT, "--group", "g", "--bootstrap", "b", "--topic", "t", "--zookeeper", ZOOKEEPER),
    (*AGENT, "--group", "g", "--bootstrap", "b:1", "--zookeeper", ZOOKEEPER),
    (*AGENT, "--group", "g", "--bootstrap", "b:1", "--topic", "t", "--pattern", "t", "--zookeeper", ZOOKEEPER),
    (*AGENT, "--group", "g", "--bootstrap", "b:1", "--topic", "t:many", "--zookeeper", ZOOKEEPER),
    (*AGENT, "--group", "g", "--bootstrap", "b:1", "--topic", "t:0", "--zookeeper", ZOOKEEPER),
    (*AGENT, "--group", "g", "--bootstrap", "b:1", "--topic", "a b", "--zookeeper", ZOOKEEPER),
    (*AGENT, "--group", "g", "--bootstrap", "b:1", "--pattern", "t(", "--zookeeper", ZOOKEEPER),
    (*AGENT, "--group", "a/b", "--bootstrap", "b:1", "--topic", "t", "--zookeeper", ZOOKEEPER),
    (*AGENT, "--group", "g", "--bootstrap", "b:1", "--topic", "t", "--zookeeper", ZOOKEEPER, "--capacity", "-1"),
    (*AGENT, "--group", "g", "--bootstrap", "b:1", "--topic", "t", "--zookeeper", ZOOKEEPER, "--rack", "a b"),
    (*AGENT, "--group", "g", "--bootstrap", "b:1", "--topic", "t", "--zookeeper", ZOOKEEPER, "--events", "/proc/e"),
    (*AGENT, "--group", "g", "--bootstrap", "b:1", "--topic", "t", "--zookeeper", ZOOKEEPER, "--max-poll-records", 0),
]


def require_one_line(result: Result, code: int, *texts: str) -> None:
    """Require one line on stderr with these texts, and nothing on stdout."""
    lines = result.stderr.splitlines()
    assert (result.returncode, result.stdout, len(lines)) == (code, "", 1), (result.args, result.stderr)
    assert lines[0].startswith("Error: "), result.args
    assert all(text in lines[0] for text in texts), (texts, lines)


def test_wrong_usage() -> None:
    for result in run_all(WRONG_USAGE):
        require_one_line(result, 2)


def test_servers_that_are_not_there(shared_cluster: LocalCluster) -> None:
    """No listener, a missing host or chroot, a port with another protocol; no broker."""
    (closed_port,) = free_ports(1)
    exit_codes = {
        f"{HOST}:{closed_port}": 1,
        "no-such-host.invalid:2181": 1,
        f"{shared_cluster.zookeeper}/wrong": 2,
        shared_cluster.bootstrap: 1,
    }
    where = ("--bootstrap", shared_cluster.bootstrap, "--group", "g", "--pattern", "^t$")
    commands: list[tuple[object, ...]] = []
    for zookeeper in exit_codes:
        commands.append((*COORDINATOR, "--broker-id", 1, "--zookeeper", zookeeper))
        commands.append(("zkrebalancer", "groups", "list", "--zookeeper", zookeeper))
        commands.append((*AGENT, *where, "--zookeeper", zookeeper))
    no_broker = ("--bootstrap", f"{HOST}:{closed_port}", "--group", "g", "--pattern", "^t$")
    commands.append((*AGENT, "--zookeeper", shared_cluster.zookeeper, *no_broker))
    *results, without_broker = run_all(commands)
    for (*_command, address), result in zip(commands, results, strict=False):
        require_one_line(result, exit_codes[str(address)], str(address))
    joined, error = without_broker.stderr.splitlines()  # ZooKeeper was there: the agent is a member until it gives up
    assert (without_broker.returncode, without_broker.stdout, joined) == (1, "", "joined group g")
    assert f"no Kafka broker answered at {HOST}:{closed_port}" in error


def test_a_group_that_does_not_exist(shared_cluster: LocalCluster) -> None:
    zookeeper = ("--zookeeper", shared_cluster.zookeeper)
    commands: list[tuple[object, ...]] = [
        ("zkrebalancer", "groups", "describe", "no-such-group", *zookeeper),
        ("zkrebalancer", "groups", "rebalance", "no-such-group", *zookeeper),
        ("zkrebalancer", "groups", "reset-offsets", "no-such-group", "--to-offset", 0, *zookeeper),
    ]
    for result in run_all(commands):
        require_one_line(result, 1, "no-such-group")


def test_a_rebalance_that_nobody_would_carry_out(scenario: Scenario) -> None:
    group = scenario.add_group("incremental", members=0)
    zookeeper = scenario.lab.cluster.zookeeper
    scenario.lab.wait_for("end of the session of a former scenario's leader", lambda: scenario.lab.leader() is None)
    (result,) = run_all([("zkrebalancer", "groups", "rebalance", group, "--zookeeper", zookeeper)])
    require_one_line(result, 1, group, "no coordinator leads")


def test_ctrl_c(shared_cluster: LocalCluster) -> None:
    """Coordinator and agent end at once and cleanly, whether working or still connecting."""
    (closed_port,) = free_ports(1)
    nowhere = f"{HOST}:{closed_port}"
    where = ("--bootstrap", shared_cluster.bootstrap, "--group", "g-ctrl-c", "--pattern", "^t$", "--quiet")
    processes = {}
    for zookeeper, is_ready in ((shared_cluster.zookeeper, handles_sigterm), (nowhere, waits_for_events)):
        processes[begin_cold(*COORDINATOR, "--broker-id", 1, "--zookeeper", zookeeper)] = is_ready
        processes[begin_cold(*AGENT, *where, "--zookeeper", zookeeper)] = is_ready
    for process, is_ready in processes.items():
        while not is_ready(process.pid):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
    for process in processes:
        result = end(process)
        assert result.returncode in {0, 130}, (result.args, result.stderr)
        assert len(result.stderr.split("\n")) <= 3, (result.args, result.stderr)  # click ends the line of "^C" first
        assert "Traceback" not in result.stderr


def handles_sigterm(pid: int) -> bool:
    """Whether a process has installed its handlers."""
    return catches(pid, signal.SIGTERM)


def waits_for_events(pid: int) -> bool:
    """Whether a process has a gevent hub: it has read its imports, and is connecting."""
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if str(entry.readlink()) == "anon_inode:[eventpoll]":
                return True
    return False
