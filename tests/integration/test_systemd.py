"""Three secured hosts under a real systemd, by the commands of the pages: every unit is broken and comes back.

Each host is a container whose first process is systemd, with a ZooKeeper server and a Kafka broker in KRaft mode.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.docs.rules import blocks
from tests.style.sources import ROOT
from tests.support import docker_engine, kafka_hosts, systemd_hosts
from tests.support.systemd_hosts import IMAGE, MOUNTS, NETWORK, SUBNET, Host
from tests.support.waiting import wait_until
from zkrebalancer.localcluster.jars import KAFKA_3, KAFKA_4, JarSource, class_path
from zkrebalancer.localcluster.java import find_java
from zkrebalancer.localcluster.zookeeper import MAIN_CLASS

HOW_TO = ROOT / "docs/how-to"
DEPLOY = (HOW_TO / "deploy.md").read_text().partition("### A Debian package")[0]
(INSTALL, SETTINGS, SECRETS, START, AGENT, START_AGENT, GATEWAY, START_GATEWAY, LOGIN, LOG_IN) = (
    content for _, content in blocks(DEPLOY)
)
ZOO_CFG, CERTIFICATES, JAAS, _, INIT, CHECK = (content for _, content in blocks((HOW_TO / "secure.md").read_text()))
SOURCES = ("setup.py", "constraints.txt", "pyspark_consumer_group.py", "zkrebalancer", "consumer_agent", "deploy")
CHECKOUT = "/opt/checkout"
UNIT, GATEWAY_UNIT, MIRROR_UNIT = (f"zkrebalancer-{name}" for name in ("coordinator", "gateway", "mirror"))
AGENT_UNIT = "consumer-agent@payments"
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
KAFKA_LOGIN = "".join(
    f"export ZKREBALANCER_KAFKA_{key.upper().replace('.', '_')}={value}\n"
    for key, value in {**kafka_hosts.LOGIN, "sasl.username": "rebalancer", "sasl.password": WORD}.items()
)
AUTHORITY = f'"ssl.ca.location" = "{kafka_hosts.LOGIN["ssl.ca.location"]}"\n'
MIRROR = "".join(re.findall("(?m)^(?:zookeeper|bootstrap) = .*\n", SETTINGS)) + SETTINGS[SETTINGS.index("[kafka]") :]
JOURNAL = "journalctl --no-pager -u"
# An unmodified client behind the gateways; it prints what it reads.
CLIENT = f"""timeout 150 /opt/zkrebalancer/bin/python -u - <<'end'
from confluent_kafka import Consumer
settings = {{"bootstrap.servers": "b1:9192,b2:9192", "group.id": "orders", "auto.offset.reset": "earliest"}}
settings |= {kafka_hosts.LOGIN} | {{"sasl.username": "payments", "sasl.password": "{WORD}"}}
consumer = Consumer(settings)
consumer.subscribe(["orders"])
for _ in range(120):
    while (record := consumer.poll(1)) is None or record.error():
        print(record and record.error())
    print("read", record.partition(), record.offset())
consumer.close()
end"""
WATCHDOG_S = 20
SESSION_TIMEOUT_S = 6.0
pytestmark = [pytest.mark.long, pytest.mark.timeout(1_800)]


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
    """Start three hosts with a ZooKeeper server and a broker each; what the pages assume."""
    folders = {"zookeeper": KAFKA_3, "kafka": KAFKA_4}
    jars = {
        name: Path(class_path(version, find_java(), JarSource.of(None, None, print)).partition(":")[0]).parent
        for name, version in folders.items()
    }
    mounts = [f"--mount=type=bind,source={jars[name]},target=/opt/{name},readonly" for name in folders]
    hosts = [Host(engine, number, *mounts) for number in (1, 2, 3)]
    # Of the servers of ZooKeeper, and with the same lines those of the brokers and gateways.
    for_brokers = CERTIFICATES[CERTIFICATES.index("for host") :].replace("zk1 zk2 zk3", "b1 b2 b3")
    hosts[0].run(f"cd /root\n{CERTIFICATES}{for_brokers}")
    authority, *pems = (hosts[0].run(f"cat /root/{name}.pem") for name in ("ca", "zk1", "zk2", "zk3", "b1", "b2", "b3"))
    for number, (host, certificate) in enumerate(zip(hosts, pems[:3], strict=True), start=1):
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
        key, _, chain = pems[2 + number].partition("-----BEGIN PRIVATE KEY")[::-1]
        host.write("/etc/zkrebalancer/gateway.crt", chain)
        host.write(f"{CHECKOUT}/gateway.key", f"-----BEGIN PRIVATE KEY{key}\n")
    kafka_hosts.start(hosts, pems[3:], authority, WORD)
    create = f"{JAVA} org.apache.zookeeper.ZooKeeperMain -server zk1:2181 create /kafka"
    wait_until(lambda: "Created /kafka" in hosts[0].tells(create), "ZooKeeper serves")
    return hosts


def test_three_secured_hosts(engine: docker_engine.Engine, hosts: list[Host]) -> None:
    _start_coordinators(hosts)
    _start_others(hosts)
    hosts[0].run(f"{SHELL}{KAFKA_LOGIN}zkrebalancer topics create orders --partitions 6 --bootstrap b1:9092")
    _produce(hosts[0])
    wait_until(lambda: len(read(hosts)) == 60, "the agents read 60 records")
    _secure(hosts)
    _produce(hosts[0])
    wait_until(lambda: len(read(hosts)) == 120, "the agents read the next 60")
    assert hosts[2].run(CLIENT).count("read ") == 120

    _stop(hosts)
    _break(hosts, "KILL")
    _break(hosts, "STOP")
    _reload(hosts[0])
    _kill_others(hosts)
    for host in hosts:  # as at an upgrade
        host.run(f"systemctl restart {UNIT}")
    wait_until(lambda: len(leaders(hosts)) == 1, "one leads")
    _lose(engine, hosts)
    for host in hosts:
        assert WORD not in host.run("journalctl --no-pager; ps axww; systemctl show '*'")
        for unit in (*others_of(host), UNIT):
            host.run(f"systemctl stop {unit}")
            assert host.run(f"systemctl show --value -p Result {unit}") == "success", host.run(f"{JOURNAL} {unit}")


def _start_coordinators(hosts: list[Host]) -> None:
    for number, host in enumerate(hosts, start=1):
        settings = SETTINGS.replace("broker_id = 1", f"broker_id = {number}").replace("b1:8080", f"{host.name}:8080")
        host.write("/etc/zkrebalancer/coordinator.toml", settings + AUTHORITY)
        host.write(f"/etc/systemd/system/{UNIT}.service.d/sooner.conf", f"[Service]\nWatchdogSec={WATCHDOG_S}\n")
        host.run(f"cd {CHECKOUT}\n" + "\n".join(INSTALL.splitlines()[1:]))
        shown = host.run(SECRETS.replace("…", WORD))
        assert "********" in shown
        assert WORD not in shown
    for host in hosts:
        printed = host.tells(START.strip())  # the others do not answer yet
        assert re.search('Status: "(leads|is a standby); 0 groups"', printed), printed + host.run(f"{JOURNAL} {UNIT}")
    wait_until(lambda: len(leaders(hosts)) == 1, "one leads")


def _start_others(hosts: list[Host]) -> None:
    """Start the mirror on one host, gateways on two, and agents on all."""
    hosts[0].write("/etc/zkrebalancer/mirror.toml", MIRROR.replace("rebalancer", "mirror") + AUTHORITY)
    secrets = SECRETS[: SECRETS.index("(cd ")].replace("coordinator", "mirror").replace("…", WORD)
    hosts[0].run(f"{secrets}systemctl enable --now {MIRROR_UNIT}")
    wait_until(
        lambda: "0 topics, 3 brokers" in hosts[0].tells(f"systemctl show -p StatusText {MIRROR_UNIT}"), "it mirrors"
    )
    child = (ROOT / "docs/examples/shell_child.sh").read_text()
    for host in hosts:
        host.write("/etc/zkrebalancer/agents/payments.toml", AGENT.replace('"a1:', f'"{host.name}:') + AUTHORITY)
        host.write("/opt/payments/bin/billing", child)
        host.run("chmod +x /opt/payments/bin/billing\n" + START_AGENT.replace("…", WORD))
    for host in hosts[:2]:
        host.write(
            "/etc/zkrebalancer/gateway.toml",
            re.sub('(?m)^(listen|http) = "b1', rf'\1 = "{host.name}', GATEWAY) + AUTHORITY,
        )
        host.run(f"cd {CHECKOUT}\n" + START_GATEWAY.replace("…", WORD))


def _secure(hosts: list[Host]) -> None:
    """Give every program its login, one after the other; then secure the tree, and restart its members."""
    for host in hosts:
        for unit in (UNIT, *others_of(host)):
            user = unit.removeprefix("zkrebalancer-").removeprefix("consumer-agent@")
            file = f"/etc/zkrebalancer/{'agents/' if unit == AGENT_UNIT else ''}{user}.toml"
            login = LOGIN.replace('"coordinator"', f'"{user}"')
            host.write(file, login + re.sub("(?m)^zookeeper = .*\n", "", host.run(f"cat {file}")))
            commands = LOG_IN.replace("…", WORD).replace(UNIT, unit).replace("@payments.service.d", "@.service.d")
            host.run(f"cd {CHECKOUT}\n{commands}")
    hosts[0].run(SHELL + INIT.replace("--group", "--gateway sasl:gateway --broker sasl:mirror --group"))
    for host in hosts:
        host.run(f"systemctl restart {AGENT_UNIT}")
    wait_until(lambda: is_secured(hosts[1]), "the tree is secured")


def others_of(host: Host) -> list[str]:
    """Return the units of a host beside the coordinator's."""
    mirrors, gateways = ["b1"], ["b1", "b2"]
    return [MIRROR_UNIT] * (host.name in mirrors) + [GATEWAY_UNIT] * (host.name in gateways) + [AGENT_UNIT]


def is_secured(host: Host) -> bool:
    return host.tells(f"{SHELL}{CHECK}echo code $?").endswith("code 0")


def leaders(hosts: list[Host]) -> list[Host]:
    return [host for host in hosts if '"leader": true' in host.tells(f"curl -s -m 10 http://{host.name}:8080/leader")]


def _produce(host: Host) -> None:
    host.run(f"{SHELL}{KAFKA_LOGIN}zkrebalancer topics produce orders --count 60 --bootstrap b1:9092,b2:9092,b3:9092")


def read(hosts: list[Host]) -> set[str]:
    """Return which records the agents' children have read."""
    journals = [host.run(f"{JOURNAL} {AGENT_UNIT}") for host in hosts]
    return {*re.findall(r'"topic":"orders","partition":\d+,"offset":\d+', "".join(journals))}


def _stop(hosts: list[Host]) -> None:
    """Stop the leader: another one leads before the session could time out."""
    (first,) = leaders(hosts)
    others = [host for host in hosts if host is not first]
    stopped_at = float(first.run(f"date +%s.%N && systemctl stop {UNIT}"))
    wait_until(lambda: leaders(others), "another one leads")
    (second,) = leaders(others)
    elected = second.run(f"{JOURNAL} {UNIT} -o short-unix | grep ' leads ' | tail -1")
    assert float(elected.split()[0]) - stopped_at < SESSION_TIMEOUT_S, elected
    first.run(f"systemctl start {UNIT}")


def _break(hosts: list[Host], signal: str) -> None:
    (first,) = leaders(hosts)
    others = [host for host in hosts if host is not first]
    before = restarts(first, UNIT)
    first.run(f"systemctl kill -s {signal} {UNIT}")
    wait_until(lambda: leaders(others), "another one leads")
    wait_until(lambda: restarts(first, UNIT) > before, "systemd starts it anew")
    wait_until(lambda: "standby" in first.tells(f"systemctl show -p StatusText {UNIT}"), "it is a standby")


def _kill_others(hosts: list[Host]) -> None:
    """Kill the other units, all at once; systemd starts them anew, and they get ready."""
    killed = [(host, unit) for host in hosts for unit in others_of(host)]
    before = [restarts(host, unit) for host, unit in killed]
    for host, unit in killed:
        host.run(f"systemctl kill -s KILL {unit}")
    for (host, unit), number in zip(killed, before, strict=True):
        wait_until(partial(has_restarted, host, unit, number), f"{unit} starts anew")
        wait_until(partial(is_active, host, unit), f"{unit} is ready")


def is_active(host: Host, unit: str) -> bool:
    return host.tells(f"systemctl is-active {unit}") == "active"


def has_restarted(host: Host, unit: str, before: int) -> bool:
    return restarts(host, unit) > before


def restarts(host: Host, unit: str) -> int:
    return int(host.run(f"systemctl show --value -p NRestarts {unit}"))


def _reload(host: Host) -> None:
    host.run(f"sed -i 's/^events/evnts/' /etc/zkrebalancer/coordinator.toml && systemctl reload {UNIT}")
    expected = "the former settings stay in force: /etc/zkrebalancer/coordinator.toml: evnts: there is no such setting"
    wait_until(lambda: expected in host.run(f"{JOURNAL} {UNIT}"), "the mistake is in the journal")
    host.run(f"sed -i 's/^evnts/events/' /etc/zkrebalancer/coordinator.toml && systemctl reload {UNIT}")


def _lose(engine: docker_engine.Engine, hosts: list[Host]) -> None:
    """Lose a whole host, with its servers; the others read on, and it starts everything when it boots."""
    (first,) = leaders(hosts)
    others = [host for host in hosts if host is not first]
    before = read(hosts)
    engine.docker("kill", first.name)
    wait_until(lambda: leaders(others), "another one leads")
    _produce(others[0])
    wait_until(lambda: len(before | read(others)) == 180, "the other agents read the next 60 records")
    engine.docker("start", first.name)
    wait_until(lambda: "standby" in first.tells(f"systemctl show -p StatusText {UNIT}"), "it is back")
    for unit in others_of(first):
        wait_until(partial(is_active, first, unit), f"{unit} is back")
    wait_until(lambda: is_secured(first), "the tree is secured")
