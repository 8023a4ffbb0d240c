"""Images of ZooKeeper, Kafka and Prometheus from this machine's files, in place of the official ones.

They take the variables, commands and folders that `deploy/compose` uses, and run as another user than root, as the
official images do. What those contain beyond that is not tested.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

from tests.support.docker_engine import Engine, libraries_of
from zkrebalancer.localcluster import zookeeper
from zkrebalancer.localcluster.jars import KAFKA_3, JarSource, class_path
from zkrebalancer.localcluster.java import find_java

USER = 1000
PROGRAMS = ("bash", "cat", "env", "grep", "id", "ls", "mkdir", "sleep", "tail")
OWNED = ("conf", "data", "datalog", "var/lib/kafka/data", "prometheus")
LOG4J = Path(zookeeper.__file__).with_name("log4j.properties")
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j.configuration=file:/opt/kafka/log4j.properties"
SCRIPT = f"#!/usr/bin/bash\nexec java {JVM} %s -cp '/opt/kafka/libs/*' %s\n"
ENTRYPOINT = """#!/usr/bin/bash
set -e
echo "$ZOO_MY_ID" > /data/myid
{
  printf '%s\\n' dataDir=/data dataLogDir=/datalog tickTime=2000 initLimit=5 syncLimit=2 admin.enableServer=false
  echo "autopurge.purgeInterval=$ZOO_AUTOPURGE_PURGEINTERVAL"
  echo "4lw.commands.whitelist=$ZOO_4LW_COMMANDS_WHITELIST"
  for line in $ZOO_SERVERS $ZOO_CFG_EXTRA; do echo "$line"; done
} > /conf/zoo.cfg
exec "$@"
"""
FILES = {
    "etc/passwd": "root:x:0:0:root:/:\n",
    "etc/group": "root:x:0:\n",
    "docker-entrypoint.sh": ENTRYPOINT,
    "usr/bin/zkServer.sh": SCRIPT % ("-Xmx256m $SERVER_JVMFLAGS", f"{zookeeper.MAIN_CLASS} /conf/zoo.cfg"),
    "opt/kafka/bin/kafka-server-start.sh": SCRIPT % ("$KAFKA_HEAP_OPTS $KAFKA_OPTS", 'kafka.Kafka "$@"'),
}
IMAGES = {
    "zookeeper": 'VOLUME ["/data", "/datalog"]\nENTRYPOINT ["/docker-entrypoint.sh"]\nCMD ["zkServer.sh"]',
    "kafka": 'VOLUME ["/var/lib/kafka/data"]',
    "prometheus": (
        'VOLUME ["/prometheus"]\nENTRYPOINT ["/usr/bin/prometheus"]\n'
        'CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]'
    ),
}


def make(engine: Engine, folder: Path) -> dict[str, str]:
    """Make the images; return the variables with which `deploy/compose` uses them.

    `folder`: for Debian's package of Prometheus, which is downloaded.
    """
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        _add(tar)
        for program in _prometheus(folder):
            tar.add(program, f"usr/bin/{program.name}")
    engine.docker("import", "-", "servers", stdin=archive.getvalue())
    for name, lines in IMAGES.items():
        text = f"FROM servers\nENV PATH=/usr/lib/jvm/java/bin:/usr/bin\nUSER {USER}\n{lines}\n"
        engine.docker("build", "--quiet", "--tag", f"made/{name}", "-", stdin=text.encode())
    return {f"{name.upper()}_IMAGE": f"made/{name}" for name in IMAGES}


def _add(tar: tarfile.TarFile) -> None:
    java = Path(find_java()).resolve().parents[1]
    for part in (java / "bin", java / "conf", java / "lib", java / "release"):
        tar.add(part, f"usr/lib/jvm/java/{part.name}")
    linked = {path.resolve() for path in java.rglob("*") if path.is_symlink() and path.exists()}
    for file in sorted(path for path in linked if path.is_relative_to("/etc")):
        tar.add(file, str(file).lstrip("/"))
    programs = [Path("/usr/bin", name) for name in PROGRAMS]
    for program in programs:
        tar.add(program, f"usr/bin/{program.name}")
    for library in sorted(libraries_of(*map(str, [*programs, java / "bin" / "java", *java.rglob("*.so")]))):
        if not Path(library).is_relative_to(java):
            tar.add(Path(library).resolve(), library.lstrip("/"))
    for jar in class_path(KAFKA_3, find_java(), JarSource.of(None, None, print)).split(":"):
        tar.add(jar, f"opt/kafka/libs/{Path(jar).name}")
    tar.add(LOG4J, "opt/kafka/log4j.properties")
    for name, text in FILES.items():
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = len(text.encode()), 0o755
        tar.addfile(entry, io.BytesIO(text.encode()))
    for name in (*OWNED, "tmp"):
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
        entry.uid = entry.gid = 0 if name == "tmp" else USER
        tar.addfile(entry)


def _prometheus(folder: Path) -> list[Path]:
    subprocess.run(["apt-get", "download", "prometheus"], cwd=folder, capture_output=True, check=True)
    (package,) = folder.glob("prometheus_*.deb")
    subprocess.run(["dpkg", "--extract", package, folder / "prometheus"], check=True)
    return [folder / "prometheus/usr/bin" / name for name in ("prometheus", "promtool")]
