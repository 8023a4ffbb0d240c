"""The package's Java programs, compiled once into the user's cache.

`OldConsumer` runs members that assign partitions themselves through ZooKeeper: Kafka's old consumers. `JavaConsumer`
runs members with Kafka's own client. `BrokerCounts` reads a broker's counters. `java -m jdk.compiler` compiles them, so
one Java does everything; it must be a JDK.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path

from zkrebalancer.localcluster import jars
from zkrebalancer.localcluster.cached import make_once
from zkrebalancer.localcluster.errors import LocalClusterError, MissingToolError
from zkrebalancer.localcluster.java import find_java

_SOURCES = Path(__file__).parent / "java"
COMPILE_DEADLINE_S = 120.0
OPTIONS = ("-XX:-UsePerfData", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Djava.awt.headless=true")
HEAP_MB = 512


def old_consumer_command(report: Callable[[str], None]) -> list[str]:
    """Return the command that runs old consumers; append options of `zkrebalancer.experiments.members.program`.

    The first call downloads Kafka 1.1.1 and compiles; `report` gets progress lines.

    Raises:
        MissingToolError: there is no JDK.
        JarError, LocalClusterError: the jars are unavailable, or the cache folder cannot be written.

    """
    return _members_command(jars.OLD_CLIENT, ("OldMember", "OldConsumer"), report)


def java_consumer_command(report: Callable[[str], None]) -> list[str]:
    """Return the command that runs consumers of Kafka's Java client; otherwise as `old_consumer_command`."""
    return _members_command(jars.KAFKA_4, ("JavaMember", "JavaConsumer"), report)


def _members_command(version: str, names: tuple[str, ...], report: Callable[[str], None]) -> list[str]:
    source = jars.JarSource.of(None, None, report)
    java = find_java()
    class_path = jars.class_path(version, java, source)
    files = [_SOURCES / f"{name}.java" for name in ("EventLog", "Delivery", "Member", "Members", *names)]
    classes = compiled(files, class_path, java, source)
    logging = f"-Dlog4j.configuration=file:{_SOURCES / 'log4j.properties'}"
    return [java, f"-Xmx{HEAP_MB}m", *OPTIONS, logging, "-cp", f"{classes}:{class_path}", names[-1]]


def broker_counts_command() -> list[str]:
    """Return the command that reads a broker's counters; raises MissingToolError if there is no JDK."""
    java = find_java()
    classes = compiled([_SOURCES / "BrokerCounts.java"], "", java, jars.JarSource.of(None, None, lambda _line: None))
    return [java, f"-Xmx{HEAP_MB // 8}m", *OPTIONS, "-cp", str(classes), "BrokerCounts"]


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
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_DEADLINE_S, check=False)
    except subprocess.TimeoutExpired:
        raise LocalClusterError(f"{java} did not compile {name} within {COMPILE_DEADLINE_S:g} s") from None
    if "jdk.compiler not found" in done.stdout + done.stderr:
        raise MissingToolError(f"{java} is a JRE and cannot compile: install a JDK and set JAVA_HOME to it")
    if done.returncode != 0:
        raise LocalClusterError(f"{name} does not compile: {(done.stdout + done.stderr).strip()}")
