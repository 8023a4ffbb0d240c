"""A secured Kafka on the hosts of systemd_hosts.py: a broker and controller in KRaft mode on each, as a unit."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.systemd_hosts import Host
from zkrebalancer.localcluster import kafka
from zkrebalancer.localcluster.zookeeper import render_properties

FOLDER, PORT = "/etc/kafka", 9092
USERS = ("rebalancer", "gateway", "mirror", "payments")
LOGIN = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "ssl.ca.location": "/etc/zkrebalancer/kafka-ca.pem",
}
JAVA = "/usr/bin/java -Xmx400m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -cp '/opt/kafka/*'"
UNIT = f"""[Service]
ExecStart={JAVA} {kafka.MAIN_CLASS} {FOLDER}/server.properties
Restart=always
[Install]
WantedBy=multi-user.target
"""


def start(hosts: Sequence[Host], certificates: Sequence[str], authority: str, word: str) -> None:
    """Start a broker on each host, at which USERS log in with this password; the jars are in /opt/kafka.

    `certificates`: of each host, with its key, as PEM.
    """
    users = " ".join(f"--add-scram 'SCRAM-SHA-512=[name={name},password={word}]'" for name in USERS)
    tool = f"{JAVA} {kafka.STORAGE_TOOL_CLASS} format --cluster-id={kafka.new_cluster_id()}"  # it may begin with "-"
    formats = f"{tool} -c {FOLDER}/server.properties {users}"
    for number, (host, certificate) in enumerate(zip(hosts, certificates, strict=True), start=1):
        host.write(f"{FOLDER}/server.pem", certificate)
        host.write(f"{FOLDER}/ca.pem", authority)
        host.write(LOGIN["ssl.ca.location"], authority)
        host.write(f"{FOLDER}/server.properties", properties(number, [one.name for one in hosts]))
        host.write("/etc/systemd/system/kafka.service", UNIT)
        host.run(f"{formats}\nsystemctl enable --now kafka")


def properties(number: int, names: Sequence[str]) -> str:
    """Return `server.properties` of one broker; brokers know each other by PLAINTEXT, clients have to log in."""
    name = names[number - 1]
    listeners = f"SASL_SSL://{name}:{PORT},PLAINTEXT://{name}:{PORT + 2}"
    return render_properties(
        {
            "process.roles": "broker,controller",
            "node.id": str(number),
            "listeners": f"{listeners},CONTROLLER://{name}:{PORT + 1}",
            "advertised.listeners": listeners,
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.quorum.voters": ",".join(f"{one}@{at}:{PORT + 1}" for one, at in enumerate(names, start=1)),
            "log.dirs": "/var/lib/kafka",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": f"{FOLDER}/server.pem",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": f"{FOLDER}/ca.pem",
            "auto.create.topics.enable": "false",
            "offsets.topic.num.partitions": "4",
            "group.initial.rebalance.delay.ms": "0",
            "log.cleaner.dedupe.buffer.size": "16777216",
            **kafka.replicated(len(names)),
        }
    )
