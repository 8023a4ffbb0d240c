"""Starts and stops Spark sessions.

The session runs on any master. Executors of a master that is not local get this project's code as a zip of the
installed packages. The session is quiet, has a web page only if asked for, and spills into a folder that it removes.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pyspark
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from zkrebalancer.localcluster.java import find_java
from zkrebalancer.pipeline import progress
from zkrebalancer.pipeline.interrupts import interruptible
from zkrebalancer.pipeline.spark_classes import class_options
from zkrebalancer.protocol.errors import RebalancerError

LOCAL = "local[*]"
SHIPPED_PACKAGES = ("zkrebalancer", "consumer_agent")
_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?")
_HERE = Path(__file__).parent
_OURS = re.compile(r"^zkrebalancer\.[\w.]+Error: (.*)$", re.MULTILINE)
_CAUSES = re.compile(r"^(?:Caused by)?: (?:[\w.$]+: )?(.*)$", re.MULTILINE)  # of a JVM's exception
_FAULTS = {
    "[JAVA_GATEWAY_EXITED]": "its JVM has ended; see its output above",
    "a stopped SparkContext": "the master does not answer",
}
_QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.ui.explainMode": "simple",  # Spark describes the plan again after each stage, for a page that is off
    "spark.sql.maxPlanStringLength": "0",
    "spark.python.sql.dataFrameDebugging.enabled": "false",  # six calls into the JVM for each column, to place errors
    "spark.sql.ui.retainedExecutions": "10",  # the default of 1,000 fills a small heap
    "spark.ui.retainedJobs": "10",
    "spark.ui.retainedStages": "10",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.session.timeZone": "UTC",
}
_JAVA = "spark.driver.defaultJavaOptions"
# G1 has shorter pauses but takes 7 % longer. A heap that begins with few classes is collected for each fourth of them.
_COLLECTOR = "-XX:+UseParallelGC -XX:MetaspaceSize=256m"
# The optimizing compiler gets ten times the usual number of calls and loops before it begins. For little input it never
# begins: of the processor time for a million events, it would take a fifth, and save less.
_OPTIMIZING = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000 "
    "-XX:Tier4BackEdgeThreshold=400000"
)
_QUICK = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"  # 48 MB would fill up
LITTLE_BYTES = 1_000_000_000
_DAEMON = "zkrebalancer.pipeline.python_daemon"
_JAVA_OPTIONS = (f"-Dlog4j2.configurationFile={(_HERE / 'log4j2.properties').as_uri()}", "-XX:-UsePerfData")
_LAUNCHER = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # of the JVM that only composes the driver's command
_BOUNDED = {
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "8m",  # compressed; 10 to 20 times as large when sorted
    "spark.sql.maxConcurrentOutputFileWriters": "40",  # one per kind of event: saves a sort
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    "spark.sql.codegen.hugeMethodLimit": "8000",  # bytes; a JVM does not compile longer methods
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",  # no output depends on a watermark
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
    "RocksDBStateStoreProvider",  # a stream's state need not fit into memory
}


SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
MIN_SHUFFLE_PARTITIONS = 32  # small ones are merged, and a large one has to fit into a task's memory
PARTITIONS_PER_CORE = 3  # so that a slow task delays little

_log = logging.getLogger(__name__)


class SparkFailedError(RebalancerError):
    """Spark did not start, or a job failed."""


@contextmanager
def spark_session(
    master: str = LOCAL,
    memory: str | None = None,
    settings: Mapping[str, str] | None = None,
    *,
    records_classes: bool = False,
    meanwhile: AbstractContextManager[object] | None = None,
) -> Iterator[SparkSession]:
    """Start Spark on `master`; `memory` ("2g") limits the driver, which does all the work on a local master.

    `settings` are Spark's, and take precedence. `records_classes`: if there is no class archive, record one.
    `meanwhile` is entered before the JVM starts.

    Raises:
        MissingToolError: there is no JDK, or it is too old.
        SparkFailedError: the master cannot be reached, Spark does not start, or a job failed.

    """
    java = Path(find_java())
    if java.parent.name == "bin":
        os.environ.setdefault("JAVA_HOME", str(java.resolve().parent.parent))
    if master.startswith("local-cluster"):
        os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", _LAUNCHER)
    temporary = tempfile.TemporaryDirectory(prefix="zkrebalancer-spark-")
    classes = class_options(str(java), settings or {}, records=records_classes)
    with interruptible() as install_handlers, temporary as scratch, meanwhile or nullcontext(), classes as archive:
        options: dict[str, str | bool | int | float | None] = {
            **_QUIET,
            **_BOUNDED,
            _JAVA: f"{_COLLECTOR} {_OPTIMIZING}",
            "spark.local.dir": scratch,
            "spark.driver.extraJavaOptions": shlex.join([*_JAVA_OPTIONS, f"-Djava.io.tmpdir={scratch}", *archive]),
            "spark.sql.warehouse.dir": str(Path(scratch, "warehouse")),
            **({} if memory is None else {"spark.driver.memory": memory}),
            **({"spark.python.daemon.module": _DAEMON} if master.startswith("local[") else {}),
            **(settings or {}),
        }
        builder = SparkSession.builder.master(master).appName("zkrebalancer")
        try:
            spark = builder.config(map=options).getOrCreate()
            install_handlers()
            if SHUFFLE_PARTITIONS not in options:
                spark.conf.set(SHUFFLE_PARTITIONS, shuffle_partitions(spark.sparkContext.defaultParallelism))
            if spark.sparkContext.uiWebUrl is not None:
                _log.warning("Spark's page is at %s", spark.sparkContext.uiWebUrl)
        except (PySparkException, Py4JError) as error:
            raise SparkFailedError(f"Spark cannot be started on {master}: {_why_not(error)}") from error
        try:
            if not master.startswith("local["):
                spark.sparkContext.addPyFile(str(pack_code(Path(scratch))))
            yield spark
        except (PySparkException, Py4JError) as error:
            raise SparkFailedError(first_line(error)) from error
        finally:
            _stop(spark)


def for_input(size: int) -> dict[str, str]:
    """Return the settings for a job that reads so many bytes of lines."""
    return {_JAVA: f"{_COLLECTOR} {_QUICK}"} if size < LITTLE_BYTES else {}


@contextmanager
def spark_job(
    title: str,
    master: str,
    memory: str | None,
    settings: Mapping[str, str],
    *,
    records_classes: bool = False,
    meanwhile: AbstractContextManager[object] | None = None,
) -> Iterator[SparkSession]:
    """Start Spark as `spark_session` does, and show below `title` how far it is."""
    started = spark_session(master, memory, settings, records_classes=records_classes, meanwhile=meanwhile)
    with started as spark, progress.shown(spark.sparkContext, title):
        yield spark


def local_cores(master: str) -> int:
    """Return how many cores of this machine a master takes; 0: it is not local."""
    found = _LOCAL.fullmatch(master)
    if found is None:
        return 0
    return len(os.sched_getaffinity(0)) if found[1] == "*" else int(found[1] or 1)


def _stop(spark: SparkSession) -> None:
    """Stop Spark; if its JVM is gone, raise SparkFailedError instead of the errors that follow from that."""
    try:
        spark.stop()
    except (Py4JError, ConnectionError):
        raise SparkFailedError("Spark's JVM ended unexpectedly; if it ran out of memory, raise --memory") from None


def shuffle_partitions(cores: int) -> int:
    """Return into how many parts to divide the data of a cluster with so many cores."""
    return max(MIN_SHUFFLE_PARTITIONS, PARTITIONS_PER_CORE * cores)


def _why_not(error: BaseException) -> str:
    """Return why Spark does not start; for the _FAULTS, Spark's own message names only a consequence."""
    return next((why for sign, why in _FAULTS.items() if sign in str(error)), first_line(error))


def pack_code(folder: Path) -> Path:
    """Write this project's packages into a zip in `folder`, for executors that lack them."""
    archive = folder / "zkrebalancer.zip"
    root = _HERE.parent.parent
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for package in SHIPPED_PACKAGES:
            for path in sorted((root / package).rglob("*")):
                if path.is_file() and path.suffix != ".pyc":
                    file.write(path, path.relative_to(root))
    return archive


def first_line(error: BaseException) -> str:
    """Return the message of Spark's error and its root cause; if it wraps an error of ours, only that one's message."""
    ours = _OURS.search(str(error))
    if ours is not None:
        return ours[1]
    own = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    causes = _CAUSES.findall(str(error))
    parts = [causes[0] if causes and isinstance(error, Py4JError) else own, *causes[-1:]]  # Py4J only names the call
    return ": ".join(dict.fromkeys(parts))
