"""Spark for few rows: settings without what costs more than it saves there, and JVMs that start in half the time.

Half of a JVM's start is loading classes, which a class archive saves (`zkrebalancer.pipeline.spark_classes`). It fits
only jars of the same path and time, so all checkouts start Spark from one folder in the user's cache, whose files are
links to those of the PySpark that came first, and share one archive. Without `python/lib`, Spark's Python workers
import the installed PySpark, which is compiled, instead of a zip of its source.
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
from pyspark.sql import SparkSession

from zkrebalancer.localcluster.cached import make_once
from zkrebalancer.localcluster.jars import JarSource
from zkrebalancer.localcluster.java import find_java
from zkrebalancer.pipeline.session import spark_session
from zkrebalancer.pipeline.spark_classes import ARCHIVE, archives_of

USED_ONCE = "MACHINE_IS_USED_ONCE"  # set where nothing is kept for a later run, as by `.ci/run`
PARTS = ("bin", "jars")  # of Spark's home
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
    home = {"SPARK_HOME": str(_home())}
    archives = archives_of(find_java(), {**os.environ, **home, "PYSPARK_SUBMIT_ARGS": ""})  # that of below
    java_options = [*QUICK_START, *(archives.options(ARCHIVE) if archives else ())]  # for programs without our session
    settings = {**LIGHT, JAVA_OPTIONS: shlex.join(java_options)}
    confs = [text for key, value in settings.items() for text in ("--conf", f"{key}={value}")]
    return {**home, "PYSPARK_SUBMIT_ARGS": shlex.join([*confs, *options, "pyspark-shell"])}


@contextmanager
def light_session() -> Iterator[SparkSession]:
    """Start a small session in this process; without a class archive, it records one if that can serve a later run."""
    os.environ["SPARK_HOME"] = str(_home())
    settings = {**LIGHT, **FEW_PARTITIONS, JAVA_OPTIONS: shlex.join(QUICK_START)}
    with spark_session("local[2]", "1g", settings, records_classes=USED_ONCE not in os.environ) as session:
        yield session


@cache
def _home() -> Path:
    """Return Spark's home in the cache."""
    source = JarSource.of(None, None, lambda _line: None)
    home = source.cache / f"spark-{pyspark.__version__}"
    make_once(home, source.cache / "lock", _link, source.report)
    return home


def _link(home: Path) -> None:
    for part in PARTS:
        shutil.copytree(Path(pyspark.__file__).parent / part, home / part, copy_function=_link_file)


def _link_file(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # the cache is on another device
        shutil.copy2(source, target)
