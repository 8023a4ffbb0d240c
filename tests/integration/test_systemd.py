"""Three hosts under a real systemd, secured, by the commands of the pages: coordinators are broken and come back.

Each host is a container whose first process is systemd, with a ZooKeeper server. There is no Kafka.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.docs.rules import blocks
from tests.style.sources import ROOT
from tests.support import docker_engine, systemd_hosts
from tests.support.deadlines import WITHIN_S
from tests.support.systemd_hosts import IMAGE, MOUNTS, NETWORK, SUBNET, Host
from zkrebalancer.localcluster.jars import KAFKA_3, JarSource, class_path
from zkrebalancer.localcluster.java import find_java
from zkrebalancer.localcluster.zookeeper import MAIN_CLASS

HOW_TO = ROOT / "docs/how-to"
DEPLOY = (HOW_TO / "deploy.md").read_text().partition("### A Debian package")[0]
INSTALL, SETTINGS, SECRETS, START, _, _, LOGIN, LOG_IN = (content for _, content in blocks(DEPLOY))
ZOO_CFG, CERTIFICATES, JAAS, _, INIT, CHECK = (content for _, content in blocks((HOW_TO / "secure.md").read_text()))
SOURCES = ("setup.py", "constraints.txt", "pyspark_consumer_group.py", "zkrebalancer", "consumer_agent", "deploy")
CHECKOUT = "/opt/checkout"
UNIT = "zkrebalancer-coordinator"
WORD = "a-word-for-tests"
ENSEMBLE = "".join(f"server.{one}=zk{one}:2888:3888\n" for one in (1, 2, 3))
SERVER = f"clientPort=2181\ndataDir=/var/lib/zookeeper\ninitLimit=10\nsyncLimit=5\nadmin.enableServer=false\n{ENSEMBLE}"
JAVA = "/usr/bin/java -Xmx200m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -cp '/opt/zookeeper/*'"
ZOOKEEPER_UNIT = f"""[Service]
ExecStart={JAVA} -Djava.security.auth.login.config=/etc/zookeeper/jaas.conf {MAIN_CLASS} /etc/zookeeper/zoo.cfg
Restart=always
[Install]
WantedBy=multi-user.target
"""
SHELL = f"""export PATH=/opt/zkrebalancer/bin:$PATH ZKREBALANCER_ZOOKEEPER=zk1:2281,zk2:2281,zk3:2281/kafka
export ZKREBALANCER_ZOOKEEPER_TLS_CA=/etc/zkrebalancer/ca.pem ZKREBALANCER_ZOOKEEPER_USER=coordinator
export ZKREBALANCER_ZOOKEEPER_PASSWORD_FILE=/etc/zkrebalancer/{UNIT}.zookeeper-password
"""
JOURNAL = f"journalctl --no-pager -u {UNIT}"
WATCHDOG_S = 20
SESSION_TIMEOUT_S = 6.0
pytestmark = pytest.mark.long


@pytest.fixture
def engine() -> Iterator[docker_engine.Engine]:
    """Start an engine with the image of a host, on which the package is installed."""
    docker_engine.provide("curl", "openssl")
    if not Path("/lib/systemd/systemd").exists():
        pytest.skip("no systemd: apt-get install systemd")
    java = Path(find_java()).resolve().parents[1]
    with (
        tempfile.TemporaryDirectory() as checkout,
        docker_engine.engine(Path(tempfile.mkdtemp(prefix="systemd-"))) as engine,
    ):
        for name in SOURCES:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, Path(checkout, name))
        systemd_hosts.make_image(engine, java)
        mount = f"--mount=type=bind,source={checkout},target={CHECKOUT}"
        install = ("sh", "-ec", f"cd {CHECKOUT} && {INSTALL.splitlines()[0]}")
        options = (*MOUNTS, mount, "--network=host", f"--env=PIP_CONSTRAINT={CHECKOUT}/constraints.txt")
        engine.docker("run", "--name=installed", *options, IMAGE, *install)
        engine.docker("commit", "installed", IMAGE)
        engine.docker("network", "create", f"--subnet={SUBNET}.0/24", NETWORK)
        yield engine


@pytest.fixture
def hosts(engine: docker_engine.Engine) -> list[Host]:
    """Start three hosts with a ZooKeeper server each; what the pages assume."""
    jars = Path(class_path(KAFKA_3, find_java(), JarSource.of(None, None, print)).partition(":")[0]).parent
    mount = f"--mount=type=bind,source={jars},target=/opt/zookeeper,readonly"
    hosts = [Host(engine, number, mount) for number in (1, 2, 3)]
    hosts[0].run(f"cd /root\n{CERTIFICATES}")
    authority, *certificates = (hosts[0].run(f"cat /root/{name}.pem") for name in ("ca", "zk1", "zk2", "zk3"))
    for number, (host, certificate) in enumerate(zip(hosts, certificates, strict=True), start=1):
        files = {"zoo.cfg": SERVER + ZOO_CFG, "jaas.conf": JAAS.replace("…", WORD)}
        files |= {"server.pem": certificate, "ca.pem": authority}
        for name, text in files.items():
            host.write(f"/etc/zookeeper/{name}", text)
        host.write("/etc/zkrebalancer/ca.pem", authority)
        host.write("/var/lib/zookeeper/myid", str(number))
        host.write("/etc/systemd/system/zookeeper.service", ZOOKEEPER_UNIT)
        for unit in (ROOT / "deploy/systemd").iterdir():
            host.write(f"{CHECKOUT}/deploy/systemd/{unit.name}", unit.read_text())
        host.run("systemctl enable --now zookeeper")
    create = f"{JAVA} org.apache.zookeeper.ZooKeeperMain -server zk1:2181 create /kafka"
    eventually(lambda: "Created /kafka" in hosts[0].tells(create), "ZooKeeper serves")
    return hosts


def test_three_secured_hosts(engine: docker_engine.Engine, hosts: list[Host]) -> None:
    for number, host in enumerate(hosts, start=1):
        settings = SETTINGS.replace("broker_id = 1", f"broker_id = {number}").replace("b1:8080", f"{host.name}:8080")
        host.write("/etc/zkrebalancer/coordinator.toml", settings)
        host.write(f"/etc/systemd/system/{UNIT}.service.d/sooner.conf", f"[Service]\nWatchdogSec={WATCHDOG_S}\n")
        host.run(f"cd {CHECKOUT}\n" + "\n".join(INSTALL.splitlines()[1:]))
        shown = host.run(SECRETS.replace("…", WORD))
        assert "********" in shown
        assert WORD not in shown
    for host in hosts:
        printed = host.tells(START.strip())  # the others do not answer yet
        assert re.search('Status: "(leads|is a standby); 0 groups"', printed), printed + host.run(JOURNAL)
    eventually(lambda: len(leaders(hosts)) == 1, "one leads")

    for host in hosts:  # to a secured ZooKeeper, one after the other
        secured = LOGIN + re.sub("(?m)^zookeeper = .*\n", "", host.run("cat /etc/zkrebalancer/coordinator.toml"))
        host.write("/etc/zkrebalancer/coordinator.toml", secured)
        host.run(f"cd {CHECKOUT}\n" + LOG_IN.replace("…", WORD))
    hosts[0].run(SHELL + INIT)
    assert "0 not as intended" in hosts[1].run(SHELL + CHECK)

    _stop(hosts)
    _break(hosts, "KILL")
    _break(hosts, "STOP")
    _reload(hosts[0])
    for host in hosts:  # as at an upgrade
        host.run(f"systemctl restart {UNIT}")
    eventually(lambda: len(leaders(hosts)) == 1, "one leads")
    _lose(engine, hosts)


def leaders(hosts: list[Host]) -> list[Host]:
    return [host for host in hosts if '"leader": true' in host.tells(f"curl -s -m 10 http://{host.name}:8080/leader")]


def _stop(hosts: list[Host]) -> None:
    """Stop the leader: another one leads before the session could time out."""
    (first,) = leaders(hosts)
    others = [host for host in hosts if host is not first]
    stopped_at = float(first.run(f"date +%s.%N && systemctl stop {UNIT}"))
    eventually(lambda: leaders(others), "another one leads")
    (second,) = leaders(others)
    elected = second.run(f"{JOURNAL} -o short-unix | grep ' leads ' | tail -1")
    assert float(elected.split()[0]) - stopped_at < SESSION_TIMEOUT_S, elected
    first.run(f"systemctl start {UNIT}")


def _break(hosts: list[Host], signal: str) -> None:
    (first,) = leaders(hosts)
    others = [host for host in hosts if host is not first]
    before = restarts(first)
    first.run(f"systemctl kill -s {signal} {UNIT}")
    eventually(lambda: leaders(others), "another one leads")
    eventually(lambda: restarts(first) > before, "systemd starts it anew")
    eventually(lambda: "standby" in first.tells(f"systemctl show -p StatusText {UNIT}"), "it is a standby")


def restarts(host: Host) -> int:
    return int(host.run(f"systemctl show --value -p NRestarts {UNIT}"))


def _reload(host: Host) -> None:
    host.run(f"sed -i 's/^events/evnts/' /etc/zkrebalancer/coordinator.toml && systemctl reload {UNIT}")
    expected = "the former settings stay in force: /etc/zkrebalancer/coordinator.toml: evnts: there is no such setting"
    eventually(lambda: expected in host.run(JOURNAL), "the mistake is in the journal")
    host.run(f"sed -i 's/^evnts/events/' /etc/zkrebalancer/coordinator.toml && systemctl reload {UNIT}")


def _lose(engine: docker_engine.Engine, hosts: list[Host]) -> None:
    """Lose a whole host, with its ZooKeeper server; it starts everything when it boots."""
    (first,) = leaders(hosts)
    others = [host for host in hosts if host is not first]
    engine.docker("kill", first.name)
    eventually(lambda: leaders(others), "another one leads")
    engine.docker("start", first.name)
    eventually(lambda: "standby" in first.tells(f"systemctl show -p StatusText {UNIT}"), "it is back")
    assert "0 not as intended" in first.run(SHELL + CHECK)


def eventually(is_so: Callable[[], object], what: str) -> None:
    give_up_at = time.monotonic() + WITHIN_S
    while not is_so():
        assert time.monotonic() < give_up_at, what
        time.sleep(0.5)
