"""Brings the servers' jars: through the Ivy that PySpark ships, checked against the SHA-256 sums kept beside this file.

So a user needs Python and a JDK only. Each version's jars live in one folder of the cache, which appears in one step
when it is complete; a lock keeps two processes from fetching at once. An existing Kafka installation may stand in.
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
from zkrebalancer.localcluster.errors import JarError, LocalClusterError, MissingToolError
from zkrebalancer.localcluster.locks import locked
from zkrebalancer.protocol.errors import ConfigurationError

KAFKA_3 = "3.9.1"  # the last line with ZooKeeper mode; brings ZooKeeper itself
KAFKA_4 = "4.1.0"
OLD_CLIENT = "1.1.1"  # the last one with consumers that balance themselves through ZooKeeper
SCALA = {KAFKA_3: "2.13", KAFKA_4: "2.13", OLD_CLIENT: "2.12"}
LOGGING_BINDING = ("org.slf4j", "slf4j-reload4j", "1.7.36")  # Kafka's jars bring only the logging interface
LOCK_DEADLINE_S = 900.0
FETCH_DEADLINE_S = 600.0
_JAR_NAME_PATTERN = "[organisation]-[artifact]-[revision](-[classifier]).[ext]"
_FAILURE = re.compile(r"\bfailed: |\[FAILED|: not found$")
_HERE = Path(__file__).parent

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class JarSource:
    """Where jars come from: the cache folder, or an existing Kafka installation; `report` gets progress lines."""

    cache: Path
    kafka_home: Path | None
    report: Report

    @classmethod
    def of(
        cls, cache: Path | None, kafka_home: Path | None, report: Report, environment: Mapping[str, str] = os.environ
    ) -> JarSource:
        """Fill in what is not given: the user's cache folder (XDG convention), and the environment's KAFKA_HOME."""
        user_cache = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        if kafka_home is None and environment.get("KAFKA_HOME"):
            kafka_home = Path(environment["KAFKA_HOME"])
        return cls((cache or Path(user_cache, "zkrebalancer")).absolute(), kafka_home, report)


def class_path(version: str, java: str, source: JarSource) -> str:
    """Return the Java class path of Kafka `version` (with ZooKeeper, if it is not KAFKA_4), fetched if need be.

    An existing installation is taken instead if it is of the same major version.

    Raises:
        ConfigurationError: the Kafka installation is none.
        MissingToolError: PySpark is not installed.
        JarError: a jar is missing or has another sum than it should.
        LocalClusterError: fetching failed, or the cache folder cannot be written.

    """
    if source.kafka_home is not None and home_major(source.kafka_home) == version.partition(".")[0]:
        return f"{source.kafka_home / 'libs'}/*"
    cache, report = source.cache, source.report
    sums = read_sums(version)
    folder = cache / f"kafka-{version}"
    if not folder.is_dir():
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with locked(cache / "lock", LOCK_DEADLINE_S, report):
                if not folder.is_dir():
                    _fetch(version, sums, java, folder, report)
        except OSError as error:
            raise LocalClusterError(f"the cache folder {cache} cannot be used: {error}") from None
    verify(folder, sums)
    return ":".join(str(folder / name) for name in sums)


def home_major(kafka_home: Path) -> str:
    """Return the major version ("3" or "4") of the Kafka installation; raises ConfigurationError if it is none."""
    for jar in sorted((kafka_home / "libs").glob("kafka_2.1[23]-*.jar")):
        found = re.fullmatch(r"kafka_2\.1[23]-(\d+)\.\d+\.\d+\.jar", jar.name)
        if found and found[1] in {KAFKA_3[0], KAFKA_4[0]}:
            return found[1]
    raise ConfigurationError(f"{kafka_home} is no Kafka 3 or 4 installation: libs/ has no kafka_2.13-<version>.jar")


def read_sums(version: str) -> dict[str, str]:
    """Return jar name -> SHA-256 sum (hex) of a version, as this project keeps them (`sha256sum -c` reads the file)."""
    lines = (_HERE / f"jars-{version}.sha256").read_text().splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


def verify(folder: Path, sums: Mapping[str, str]) -> None:
    """Check every jar; raises JarError naming the first one that is missing or differs."""
    for name, expected in sums.items():
        try:
            with (folder / name).open("rb") as jar:
                digest = hashlib.sha256(jar.read()).hexdigest()
        except FileNotFoundError:
            raise JarError(f"{name} is missing in {folder}; delete that folder to fetch its jars again") from None
        if digest != expected:
            raise JarError(
                f"{folder / name} is not the jar that was asked for: its SHA-256 is {digest}, expected {expected}; "
                "delete its folder to fetch its jars again"
            )


def _fetch(version: str, sums: Mapping[str, str], java: str, folder: Path, report: Report) -> None:
    """Fetch into a folder beside the final one, check, rename."""
    ivy_jars = _pyspark_jars()
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a run that was killed
    (partial / "jars").mkdir(parents=True)
    try:
        module = partial / "ivy.xml"
        module.write_text(_ivy_module(version))
        command = [java, "-cp", f"{ivy_jars}/*", "org.apache.ivy.Main", "-m2compatible", "-types", "jar", "bundle"]
        command += ["-cache", str(partial / "ivy"), "-ivy", str(module)]
        command += ["-retrieve", str(partial / "jars" / _JAR_NAME_PATTERN)]
        mirror = maven.mirror_of_central(maven.user_settings())
        if mirror is not None:
            settings = partial / "ivysettings.xml"
            settings.write_text(maven.ivy_settings(mirror))
            command += ["-settings", str(settings)]
        _run_ivy(command, version, "Maven Central" if mirror is None else mirror, len(sums), report)
        verify(partial / "jars", sums)
        (partial / "jars").rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _run_ivy(command: list[str], version: str, origin: str, total: int, report: Report) -> None:
    report(f"fetching Kafka {version}: asking for its {total} jars (once, into the cache folder)")
    lines: list[str] = []
    fetched = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ivy:
        deadline = threading.Timer(FETCH_DEADLINE_S, ivy.kill)
        deadline.start()
        try:
            for line in ivy.stdout or ():
                lines.append(line.strip())
                if "[SUCCESSFUL ]" in line:
                    fetched += 1
                    report(f"fetching Kafka {version}: {fetched} of {total} jars")
        finally:
            deadline.cancel()
            ivy.kill()  # has ended already unless this was interrupted
    if ivy.returncode != 0:
        reason = next((line for line in lines if _FAILURE.search(line)), "Ivy gave no reason")
        instead = "" if version == OLD_CLIENT else ", or pass an existing installation with --kafka-home or KAFKA_HOME"
        raise LocalClusterError(
            f"Kafka {version} cannot be fetched from {origin} ({reason}): check the network{instead}"
        )


def _ivy_module(version: str) -> str:
    dependencies = "".join(
        f'<dependency org="{organisation}" name="{name}" rev="{revision}" conf="default->default,runtime"/>'
        for organisation, name, revision in (("org.apache.kafka", f"kafka_{SCALA[version]}", version), LOGGING_BINDING)
    )
    return (
        '<ivy-module version="2.0"><info organisation="zkrebalancer" module="localcluster"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{dependencies}</dependencies>'
        "</ivy-module>"
    )


def _pyspark_jars() -> Path:
    found = importlib.util.find_spec("pyspark")  # found, never imported: only its Ivy is wanted
    if found is None or found.origin is None:
        raise MissingToolError(
            'PySpark, whose Ivy fetches the servers\' jars, is not installed: pip install "zkrebalancer[cluster]"'
        )
    return Path(found.origin).parent / "jars"
