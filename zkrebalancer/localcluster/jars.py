"""Fetches the servers' jars with the Ivy that PySpark ships, and checks them against SHA-256 sums beside this file.

Thus users need only Python and a JDK. The jars of each version are in one folder of the cache, which is renamed into
place when complete; a lock prevents two processes from fetching at once. An existing Kafka installation can be used
instead.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from zkrebalancer.localcluster import maven
from zkrebalancer.localcluster.cached import make_once
from zkrebalancer.localcluster.errors import JarError, LocalClusterError, MissingToolError
from zkrebalancer.protocol.errors import ConfigurationError

KAFKA_3 = "3.9.2"  # the last release line with ZooKeeper mode; includes ZooKeeper itself
KAFKA_4 = "4.4.0"
OLD_CLIENT = "1.1.1"  # the last version of the old consumers, which rebalance through ZooKeeper
HELIX = "helix-2.0.1"  # Apache Helix, with Kafka's client, for the experiments
SCALA = {KAFKA_3: "2.13", KAFKA_4: "2.13", OLD_CLIENT: "2.12"}
LOGGING_BINDING = ("org.slf4j", "slf4j-reload4j", "1.7.36")  # Kafka's jars contain only the logging interface
FETCH_DEADLINE_S = 600.0
_JAR_NAME_PATTERN = "[organisation]-[artifact]-[revision](-[classifier]).[ext]"
_FAILURE = re.compile(r"\bfailed: |\[FAILED|: not found$")
_HERE = Path(__file__).parent

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class JarSource:
    """The source of jars: the cache folder, or an existing Kafka installation; `report` receives progress lines."""

    cache: Path
    kafka_home: Path | None
    report: Report

    @classmethod
    def of(
        cls, cache: Path | None, kafka_home: Path | None, report: Report, environment: Mapping[str, str] = os.environ
    ) -> JarSource:
        """Apply the defaults: the user's cache folder (XDG convention), and the environment's KAFKA_HOME."""
        user_cache = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        if kafka_home is None and environment.get("KAFKA_HOME"):
            kafka_home = Path(environment["KAFKA_HOME"])
        return cls((cache or Path(user_cache, "zkrebalancer")).absolute(), kafka_home, report)


def class_path(version: str, java: str, source: JarSource) -> str:
    """Return the Java class path of Kafka `version` (which includes ZooKeeper, except in KAFKA_4); fetch it if missing.

    An existing installation of the same major version takes precedence.

    Raises:
        ConfigurationError: `source.kafka_home` is not a Kafka installation.
        MissingToolError: PySpark is not installed.
        JarError: a jar is missing or has a wrong sum.
        LocalClusterError: fetching failed, or the cache folder cannot be written.

    """
    if source.kafka_home is not None and home_major(source.kafka_home) == version.partition(".")[0]:
        return f"{source.kafka_home / 'libs'}/*"
    sums = read_sums(version)
    kafka = ("org.apache.kafka", f"kafka_{SCALA[version]}", version)
    hint = "" if version == OLD_CLIENT else ", or pass an existing installation with --kafka-home or KAFKA_HOME"
    folder = fetched(f"Kafka {version}", ivy_module(kafka, LOGGING_BINDING), sums, java, source, hint)
    return ":".join(str(folder / name) for name in sums)


def helix_class_path(java: str, source: JarSource) -> str:
    """Return the Java class path of Apache Helix and of KAFKA_4's client; fetch it if missing; raises as `class_path`.

    It has one binding of the logging interface, Helix's.
    """
    sums = read_sums(HELIX)
    helix = ("org.apache.helix", "helix-core", HELIX.partition("-")[2])
    module = ivy_module(helix, ("org.apache.kafka", "kafka-clients", KAFKA_4))
    name = f"{HELIX.replace('-', ' ')} with Kafka {KAFKA_4}"  # another client, another folder
    folder = fetched(name, module, sums, java, source)
    return ":".join(str(folder / name) for name in sums)


def fetched(name: str, module: str, sums: Mapping[str, str], java: str, source: JarSource, hint: str = "") -> Path:
    """Return the cache's folder with exactly these jars (name -> SHA-256 sum); fetch them if it is missing.

    `name` as in "Kafka 3.9.1"; `module`: an Ivy module that depends on the jars; `hint`: what else helps if they cannot
    be fetched.

    Raises:
        MissingToolError: PySpark is not installed.
        JarError: a jar is missing or has a wrong sum.
        LocalClusterError: fetching failed, or the cache folder cannot be written.

    """
    cache, report = source.cache, source.report
    folder = cache / name.lower().replace(" ", "-")
    try:
        make_once(
            folder, cache / "lock", lambda partial: _fetch(name, module, sums, java, partial, report, hint), report
        )
    except OSError as error:
        raise LocalClusterError(f"the cache folder {cache} cannot be used: {error}") from None
    verify(folder, sums)
    return folder


def home_major(kafka_home: Path) -> str:
    """Return the major version ("3" or "4") of a Kafka installation; raises ConfigurationError if it is neither."""
    for jar in sorted((kafka_home / "libs").glob("kafka_2.1[23]-*.jar")):
        found = re.fullmatch(r"kafka_2\.1[23]-(\d+)\.\d+\.\d+\.jar", jar.name)
        if found and found[1] in {KAFKA_3[0], KAFKA_4[0]}:
            return found[1]
    raise ConfigurationError(f"{kafka_home} is not a Kafka 3 or 4 installation: no libs/kafka_2.13-<version>.jar")


def read_sums(version: str) -> dict[str, str]:
    """Return jar name -> SHA-256 sum (hex) of a version, from the file beside this one (in `sha256sum`'s format)."""
    lines = (_HERE / f"jars-{version}.sha256").read_text().splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


def verify(folder: Path, sums: Mapping[str, str]) -> None:
    """Check every jar; raises JarError for the first one that is missing or has a wrong sum."""
    for name, expected in sums.items():
        try:
            with (folder / name).open("rb") as jar:
                digest = hashlib.sha256(jar.read()).hexdigest()
        except FileNotFoundError:
            raise JarError(f"{name} is missing in {folder}; delete that folder to fetch its jars again") from None
        if digest != expected:
            raise JarError(
                f"{folder / name} is not the expected jar: its SHA-256 is {digest}, expected {expected}; "
                "delete its folder to fetch its jars again"
            )


def _fetch(name: str, module: str, sums: Mapping[str, str], java: str, folder: Path, report: Report, hint: str) -> None:
    """Fetch the jars into an empty folder, and check them."""
    ivy_jars = _pyspark_jars()
    work = folder / "ivy"
    work.mkdir()
    file = work / "ivy.xml"
    file.write_text(module)
    command = [java, "-cp", f"{ivy_jars}/*", "org.apache.ivy.Main", "-m2compatible", "-types", "jar", "bundle"]
    command += ["-cache", str(work / "cache"), "-ivy", str(file)]
    command += ["-retrieve", str(folder / _JAR_NAME_PATTERN)]
    mirror = maven.mirror_of_central(maven.user_settings())
    if mirror is not None:
        settings = work / "ivysettings.xml"
        settings.write_text(maven.ivy_settings(mirror))
        command += ["-settings", str(settings)]
    _run_ivy(command, name, "Maven Central" if mirror is None else mirror, len(sums), report, hint)
    verify(folder, sums)
    shutil.rmtree(work)


def _run_ivy(command: list[str], name: str, origin: str, total: int, report: Report, hint: str) -> None:
    report(f"fetching {name}: {total} jars, once, into the cache folder")
    lines: list[str] = []
    done = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ivy:
        deadline = threading.Timer(FETCH_DEADLINE_S, ivy.kill)
        deadline.start()
        try:
            for line in ivy.stdout or ():
                lines.append(line.strip())
                if "[SUCCESSFUL ]" in line:
                    done += 1
                    report(f"fetching {name}: {done} of {total} jars")
        finally:
            deadline.cancel()
            ivy.kill()  # still running only if we were interrupted
    if ivy.returncode != 0:
        reason = next((line for line in lines if _FAILURE.search(line)), "Ivy gave no reason")
        raise LocalClusterError(f"{name} cannot be fetched from {origin} ({reason}): check the network{hint}")


def ivy_module(*artifacts: tuple[str, str, str], transitive: bool = True) -> str:
    """Return an Ivy module that depends on artifacts (organisation, name, revision), and on what these depend on."""
    more = "" if transitive else ' transitive="false"'
    dependencies = "".join(
        f'<dependency org="{organisation}" name="{name}" rev="{revision}" conf="default->default,runtime"{more}/>'
        for organisation, name, revision in artifacts
    )
    return (
        '<ivy-module version="2.0"><info organisation="zkrebalancer" module="localcluster"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{dependencies}</dependencies>'
        "</ivy-module>"
    )


def _pyspark_jars() -> Path:
    found = importlib.util.find_spec("pyspark")  # not imported: only its Ivy is needed
    if found is None or found.origin is None:
        raise MissingToolError(
            'PySpark, whose Ivy fetches the servers\' jars, is not installed: pip install "zkrebalancer[cluster]"'
        )
    return Path(found.origin).parent / "jars"
