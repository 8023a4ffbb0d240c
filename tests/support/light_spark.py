"""Spark for few rows: settings without what costs more than it saves there, and JVMs that start in half the time.

Half of a JVM's start is loading classes. The first session of a test process records them when it ends, in a class
archive, for all JVMs of later runs. An archive fits only jars of the same path and time, so all checkouts start Spark
from one folder in the user's cache, whose files are links to those of the PySpark that came first. Without
`python/lib`, Spark's Python workers import the installed PySpark, which is compiled, instead of a zip of its source.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

from zkrebalancer.localcluster.cached import make_once
from zkrebalancer.localcluster.class_archives import STOP_DEADLINE_S, ClassArchives
from zkrebalancer.localcluster.jars import JarSource
from zkrebalancer.localcluster.java import find_java
from zkrebalancer.pipeline.session import spark_session

PARTS = ("bin", "jars")  # of Spark's home
ARCHIVE = "spark"
JAVA_OPTIONS = "spark.driver.defaultJavaOptions"
LIGHT = {
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.constraintPropagation.enabled": "false",  # to infer filters takes longer than they save
    # A task reads many small files, and so writes few.
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.files.openCostInBytes": "4096",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000",
}
# A session of ours has two shuffle partitions; a command's 32 have to be merged.
FEW_PARTITIONS = {"spark.sql.shuffle.partitions": "2", "spark.sql.adaptive.enabled": "false"}
QUICK_START = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:ReservedCodeCacheSize=240m",  # with one compiler 48, which fill up: methods are compiled again
    "-Xms800m",  # a heap that begins small is collected, and enlarged, every few queries
    "-Xmn500m",
    "-XX:MetaspaceSize=256m",
)


def submit(*options: str) -> dict[str, str]:
    """Return the environment in which a process starts such a Spark, with more options of `spark-submit`."""
    home, archives = _prepared()
    settings = {**LIGHT, JAVA_OPTIONS: _java_options(archives)}
    confs = [text for key, value in settings.items() for text in ("--conf", f"{key}={value}")]
    return {"SPARK_HOME": str(home), "PYSPARK_SUBMIT_ARGS": shlex.join([*confs, *options, "pyspark-shell"])}


@contextmanager
def light_session() -> Iterator[SparkSession]:
    """Start a small session in this process."""
    home, archives = _prepared()
    os.environ["SPARK_HOME"] = str(home)
    with _recorded_once(archives) as used:
        settings = {**LIGHT, **FEW_PARTITIONS, JAVA_OPTIONS: _java_options(used)}
        with spark_session("local[2]", "1g", settings) as session:
            yield session


@contextmanager
def _recorded_once(archives: ClassArchives | None) -> Iterator[ClassArchives | None]:
    """If there is no archive yet, let the block's JVM record one, and end it."""
    if archives is None or archives.folder.is_dir():
        yield archives
        return
    partial = archives.folder.with_name(f"{archives.folder.name}.{os.getpid()}")
    partial.mkdir()
    try:
        yield ClassArchives(partial, is_recording=True)
        _end_jvm()
        if not archives.folder.exists():  # otherwise another run was faster
            partial.rename(archives.folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@cache
def _prepared() -> tuple[Path, ClassArchives | None]:
    """Return Spark's home in the cache, and the place of its class archive."""
    source = JarSource.of(None, None, lambda _line: None)
    home = source.cache / f"spark-{pyspark.__version__}"
    make_once(home, source.cache / "lock", _link, source.report)
    return home, ClassArchives.of(find_java(), str(home), source)


def _link(home: Path) -> None:
    for part in PARTS:
        shutil.copytree(Path(pyspark.__file__).parent / part, home / part, copy_function=_link_file)


def _link_file(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # the cache is on another device
        shutil.copy2(source, target)


def _java_options(archives: ClassArchives | None) -> str:
    return shlex.join([*QUICK_START, *(archives.options(ARCHIVE) if archives else ())])


def _end_jvm() -> None:
    """End Spark's JVM, which otherwise ends with this process, and wait until it has written its archive."""
    gateway = SparkContext._gateway
    assert gateway is not None
    jvm = gateway.proc
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    jvm.stdin.close()
    jvm.wait(STOP_DEADLINE_S)
