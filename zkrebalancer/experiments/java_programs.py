"""The package's Java programs, compiled once into the user's cache.

`OldConsumer` runs members that assign partitions themselves through ZooKeeper: Kafka's old consumers. `JavaConsumer`
runs members with Kafka's own client, `HelixConsumer` participants of Apache Helix, and `HelixController` its
controller. `BrokerCounts` reads a broker's counters. `java -m jdk.compiler` compiles them, so one Java does everything;
it must be a JDK.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from zkrebalancer.localcluster import commands, jars
from zkrebalancer.localcluster.cached import make_once
from zkrebalancer.localcluster.errors import LocalClusterError, MissingToolError
from zkrebalancer.localcluster.java import find_java
from zkrebalancer.localcluster.programs import HEAP, IN_PRODUCTION, QUICK_START

_SOURCES = Path(__file__).parent / "java"
COMPILE_DEADLINE_S = 120.0
_ALWAYS = ("-XX:-UsePerfData", "-Djava.awt.headless=true")
OPTIONS = (*IN_PRODUCTION, *_ALWAYS)  # of members and controllers
HEAP_MB = 512
# What the members of each kind always have, beside their protocol's settings.
JAVA: Mapping[str, str] = {"auto.offset.reset": "earliest"}
OLD: Mapping[str, str] = {
    "auto.offset.reset": "smallest",
    "auto.commit.enable": "false",  # it could not be seen; the program commits as often
}
HELIX: Mapping[str, str] = {
    **JAVA,
    "enable.auto.commit": "false",  # it would also commit what a session that ended had owned
    "allow.auto.create.topics": "false",
}
_MEMBERS = ("EventLog", "Delivery", "Member", "Members")
_HELIX = ("HelixPartition", "HelixCluster", "HelixWarmUp", "HelixMember")
# Warnings and errors only: at INFO, both log lines for each partition of each rebalance, which costs time.
_LOG4J = f"-Dlog4j.configuration=file:{_SOURCES / 'log4j.properties'}"
_LOG4J_2 = "-Dlog4j2.level=WARN"


def old_consumer_command(report: Callable[[str], None]) -> list[str]:
    """Return the command that runs old consumers; append options of `zkrebalancer.experiments.members.program`.

    The first call downloads Kafka 1.1.1 and compiles; `report` gets progress lines.

    Raises:
        MissingToolError: there is no JDK.
        JarError, LocalClusterError: the jars are unavailable, or the cache folder cannot be written.

    """
    java, source = find_java(), _source(report)
    files = (*_MEMBERS, "OldMember", "OldConsumer")
    return _command(java, source, jars.class_path(jars.OLD_CLIENT, java, source), files, _LOG4J) + config_options(OLD)


def java_consumer_command(report: Callable[[str], None]) -> list[str]:
    """Return the command that runs consumers of Kafka's Java client; otherwise as `old_consumer_command`."""
    java, source = find_java(), _source(report)
    files = (*_MEMBERS, "Ownership", "JavaMember", "JavaConsumer")
    return _command(java, source, jars.class_path(jars.KAFKA_4, java, source), files, _LOG4J) + config_options(JAVA)


def helix_consumer_command(report: Callable[[str], None]) -> list[str]:
    """Return the command that runs participants of Helix, which are consumers; otherwise as `old_consumer_command`."""
    return _helix_command("HelixConsumer", report) + config_options(HELIX)


def helix_controller_command(report: Callable[[str], None]) -> list[str]:
    """Return the command that runs a controller of Helix; it has the options of members, and takes no orders."""
    return _helix_command("HelixController", report)


def config_options(settings: Mapping[str, str]) -> list[str]:
    """Return the options by which a program of any kind of members, or a controller, gets settings of its client."""
    return [text for pair in settings.items() for text in ("--config", "=".join(pair))]


def _helix_command(main_class: str, report: Callable[[str], None]) -> list[str]:
    java, source = find_java(), _source(report)
    files = (*_MEMBERS, "Ownership", "JavaMember", *_HELIX, main_class)
    return _command(java, source, jars.helix_class_path(java, source), files, _LOG4J_2)


def _source(report: Callable[[str], None]) -> jars.JarSource:
    return jars.JarSource.of(None, None, report)


def _command(java: str, source: jars.JarSource, class_path: str, names: tuple[str, ...], logging: str) -> list[str]:
    """Return the command that runs the last of these classes."""
    classes = compiled([_SOURCES / f"{name}.java" for name in names], class_path, java, source)
    return [java, f"{HEAP}{HEAP_MB}m", *OPTIONS, logging, "-cp", f"{classes}:{class_path}", names[-1]]


def broker_counts_command() -> list[str]:
    """Return the command that reads a broker's counters; raises MissingToolError if there is no JDK."""
    java = find_java()
    classes = compiled([_SOURCES / "BrokerCounts.java"], "", java, _source(lambda _line: None))
    return [java, f"-Xmx{HEAP_MB // 8}m", *QUICK_START, *_ALWAYS, "-cp", str(classes), "BrokerCounts"]


def compiled(files: list[Path], class_path: str, java: str, source: jars.JarSource) -> Path:
    """Return the folder of a program's classes, compiled into the cache under a hash of its sources.

    `files`: the sources, that of the main class last.

    Raises:
        MissingToolError: `java` is a JRE.
        LocalClusterError: the cache folder cannot be written, or the program does not compile.

    """
    digest = hashlib.sha256(b"\0".join([class_path.encode(), *(file.read_bytes() for file in files)])).hexdigest()
    folder = source.cache / f"{files[-1].stem}-{digest[:16]}"
    try:
        make_once(
            folder,
            source.cache / "lock",
            lambda partial: _compile(files, class_path, java, partial, folder.name),
            source.report,
        )
    except OSError as error:
        raise LocalClusterError(f"the cache folder {source.cache} cannot be used: {error}") from None
    return folder


def _compile(files: list[Path], class_path: str, java: str, folder: Path, name: str) -> None:
    command = [
        java,
        "-XX:TieredStopAtLevel=1",
        "-m",
        "jdk.compiler/com.sun.tools.javac.Main",
        "--release",
        "17",
        "-nowarn",
        "-proc:none",
    ]
    command += ["-d", str(folder), "-cp", class_path, *map(str, files)]
    try:
        done = commands.run(command, COMPILE_DEADLINE_S)
    except subprocess.TimeoutExpired:
        raise LocalClusterError(f"{java} did not compile {name} within {COMPILE_DEADLINE_S:g} s") from None
    if "jdk.compiler not found" in done.stdout + done.stderr:
        raise MissingToolError(f"{java} is a JRE and cannot compile: install a JDK and set JAVA_HOME to it")
    if done.returncode != 0:
        raise LocalClusterError(f"{name} does not compile: {(done.stdout + done.stderr).strip()}")
