"""One ZooKeeper with TLS and passwords; its port also accepts plain connections, so that both can be compared."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.protocol.zookeeper_security import ZooKeeperSecurity

TLS = Path(__file__).parent / "tls"
RENEWED = str(TLS / "renewed.pem")  # of the same host, signed by itself
CA = str(TLS / "ca.pem")
CERTIFICATE = str(TLS / "localhost.pem")
PASSWORDS = {
    "coordinator": "coordinators-word",
    "operator": "operators-word",
    "gateway": "gateways-word",
    "orders": "orders-word",
    "payments": "payments-word",
}
_AUTH = "org.apache.zookeeper.server.auth"
PROPERTIES = {
    "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
    "client.portUnification": "true",
    "ssl.keyStore.location": CERTIFICATE,
    "ssl.keyStore.type": "PEM",
    "ssl.trustStore.location": CA,
    "ssl.trustStore.type": "PEM",
    "ssl.clientAuth": "want",
    "authProvider.1": f"{_AUTH}.SASLAuthenticationProvider",
    "authProvider.x509": f"{_AUTH}.X509AuthenticationProvider",
}


@contextmanager
def secured_zookeeper(
    chroot: str = "", properties: Mapping[str, str] | None = None, jaas: Path | None = None
) -> Iterator[LocalCluster]:
    """Start one server that knows the users of PASSWORDS; `jaas`: a file that has to remain, to change passwords."""
    with tempfile.TemporaryDirectory(prefix="zkrebalancer-jaas-") as folder:
        jaas = jaas or Path(folder) / "jaas.conf"
        write_users(jaas, PASSWORDS)
        with LocalCluster(
            broker="none",
            chroot=chroot,
            zookeeper_properties={**PROPERTIES, **(properties or {})},
            zookeeper_options=[f"-Djava.security.auth.login.config={jaas}"],
        ) as cluster:
            yield cluster


def write_users(jaas: Path, passwords: Mapping[str, str]) -> None:
    """Write the file with the users of a server, which reads it when it starts."""
    users = "".join(f'  user_{name}="{word}"\n' for name, word in passwords.items())
    jaas.write_text(f"Server {{\n  {_AUTH}.DigestLoginModule required\n{users};\n}};\n".replace('"\n;', '";'))


def over_tls(hosts: str) -> str:
    """Return the address with the name that is in the server's certificate."""
    return hosts.replace("127.0.0.1", "localhost")


def security_of(user: str | None, *, tls: bool = False) -> ZooKeeperSecurity:
    """Return the settings of one of the users, with the password."""
    password = PASSWORDS[user] if user is not None else None
    return ZooKeeperSecurity(tls_ca=CA if tls else None, user=user, password=password)
