"""The one place where a Spark session begins and ends.

Any master will do: on one that is not local, executors get this project's code as a zip that is made of the installed
packages. The session is quiet, has no web page, and keeps what it spills in a folder that ends with it.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from zkrebalancer.localcluster.java import find_java
from zkrebalancer.pipeline.interrupts import interruptible
from zkrebalancer.protocol.errors import RebalancerError

LOCAL = "local[*]"
SHIPPED_PACKAGES = ("zkrebalancer", "consumer_agent")
_HERE = Path(__file__).parent
_OURS = re.compile(r"^zkrebalancer\.[\w.]+Error: (.*)$", re.MULTILINE)
_CAUSES = re.compile(r"^(?:Caused by)?: (?:[\w.$]+: )?(.*)$", re.MULTILINE)  # of a JVM's exception
_FAULTS = {
    "[JAVA_GATEWAY_EXITED]": "its JVM has ended; what that one said stands above",
    "a stopped SparkContext": "the master does not answer",
}
_QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.defaultJavaOptions": "-XX:+UseParallelGC",  # G1 spares pauses, at 7 % more time
}
_JAVA_OPTIONS = f"-Dlog4j2.configurationFile={(_HERE / 'log4j2.properties').as_uri()} -XX:-UsePerfData"
_BOUNDED = {
    "spark.sql.shuffle.partitions": "32",  # joined to fewer where they are small
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "8m",  # as compressed; sorted they are 10 to 20 times as large
    "spark.sql.maxConcurrentOutputFileWriters": "40",  # one for each kind of event, so that nothing is sorted for them
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    "spark.sql.codegen.hugeMethodLimit": "8000",  # bytes, beyond which a JVM leaves a method interpreted
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",  # nothing waits for a watermark
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
    "RocksDBStateStoreProvider",  # what a stream remembers need not fit into memory
}


class SparkFailedError(RebalancerError):
    """Spark could not be started, or a job of it failed."""


@contextmanager
def spark_session(
    master: str = LOCAL, memory: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Start Spark on `master`; `memory` ("2g") bounds the driver, which on a local master does all the work.

    Raises:
        MissingToolError: there is no JDK, or it is too old.
        SparkFailedError: the master cannot be reached, Spark does not start, or what was asked of it has failed.

    """
    java = Path(find_java())
    if java.parent.name == "bin":
        os.environ.setdefault("JAVA_HOME", str(java.resolve().parent.parent))
    if master.startswith("local-cluster"):
        os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    temporary = tempfile.TemporaryDirectory(prefix="zkrebalancer-spark-")
    with interruptible() as take, temporary as scratch:
        options: dict[str, str | bool | int | float | None] = {
            **_QUIET,
            **_BOUNDED,
            "spark.local.dir": scratch,
            "spark.driver.extraJavaOptions": f'{_JAVA_OPTIONS} "-Djava.io.tmpdir={scratch}"',
            "spark.sql.warehouse.dir": str(Path(scratch, "warehouse")),
            **({} if memory is None else {"spark.driver.memory": memory}),
            **(settings or {}),
        }
        builder = SparkSession.builder.master(master).appName("zkrebalancer")
        try:
            spark = builder.config(map=options).getOrCreate()
            take()
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


def _stop(spark: SparkSession) -> None:
    """End Spark; raises SparkFailedError in the place of whatever else was said of a JVM that is gone."""
    try:
        spark.stop()
    except (Py4JError, ConnectionError):
        raise SparkFailedError("Spark's JVM has ended by itself; if it lacked memory, --memory gives it more") from None


def _why_not(error: BaseException) -> str:
    """Return why Spark does not start; of two faults it says itself only what they led to."""
    return next((why for sign, why in _FAULTS.items() if sign in str(error)), first_line(error))


def pack_code(folder: Path) -> Path:
    """Write this project's packages into a zip in `folder`, for executors that do not have them installed."""
    archive = folder / "zkrebalancer.zip"
    root = _HERE.parent.parent
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for package in SHIPPED_PACKAGES:
            for path in sorted((root / package).rglob("*")):
                if path.is_file() and path.suffix != ".pyc":
                    file.write(path, path.relative_to(root))
    return archive


def first_line(error: BaseException) -> str:
    """Return what an error of Spark says, and its first cause; of an error of ours that it has wrapped, that one."""
    ours = _OURS.search(str(error))
    if ours is not None:
        return ours[1]
    said = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    causes = _CAUSES.findall(str(error))
    told = [causes[0] if causes and isinstance(error, Py4JError) else said, *causes[-1:]]  # Py4J tells what it called
    return ": ".join(dict.fromkeys(told))
