"""ZooKeeper 3.9 in place of the 3.8 that Kafka 3.9 brings: what depends on the server is tried with it.

An installation of Kafka with these jars is linked together, so its broker uses ZooKeeper's newer client, too.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.compat.environments import run_tests
from zkrebalancer.localcluster import jars
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.java import find_java
from zkrebalancer.localcluster.zookeeper import ask

VERSION = "3.9.4"
SUMS = {
    "zookeeper": "7bb3bb38bbddbc71424c59a7a0b170a1b2147313a84c972225ab0568dab513bf",
    "zookeeper-jute": "bd9750935add09b6cb920f7bcf0fa7b9a8165c45cdafd8ee1fc6808c46ec9094",
}
ORGANISATION = "org.apache.zookeeper"
TESTS = tuple(
    f"tests/integration/test_{name}.py"
    for name in ("triggers", "zk_model", "zk_refusals", "zk_watches", "secured_zookeeper", "server_faults")
)


def installation(folder: Path) -> Path:
    """Link the jars of Kafka 3.9 together with those of ZooKeeper 3.9; return it as a home of Kafka."""
    java, source = find_java(), jars.JarSource.of(None, None, print)
    sums = {f"{ORGANISATION}-{name}-{VERSION}.jar": digest for name, digest in SUMS.items()}
    module = jars.ivy_module(*((ORGANISATION, name, VERSION) for name in SUMS), transitive=False)
    newer = jars.fetched(f"ZooKeeper {VERSION}", module, sums, java, source)
    libs = folder / "libs"
    libs.mkdir()
    paths = map(Path, jars.class_path(jars.KAFKA_3, java, source).split(":"))
    for jar in (*(path for path in paths if not path.name.startswith(ORGANISATION)), *newer.glob("*.jar")):
        (libs / jar.name.removeprefix("org.apache.kafka-")).symlink_to(jar)
    return folder


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_another_zookeeper_works(tmp_path: Path) -> None:
    home = installation(tmp_path)
    with LocalCluster(broker="none", kafka_home=home) as cluster:
        host, _, port = cluster.zookeeper.partition("/")[0].partition(":")
        assert f"Zookeeper version: {VERSION}-" in ask(host, int(port), "srvr").decode()
    done = run_tests(Path(sys.executable), TESTS, KAFKA_HOME=str(home))
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
