"""The class archive of Spark's JVM: with it, the JVM loads its classes in a fraction of the processor time.

The first batch without an archive records one: its JVM writes the archive when it ends. It stays in the user's cache,
where all sessions of the same Java and the same PySpark find it. One that is damaged, or of other jars, is ignored.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from pyspark import SparkContext

from zkrebalancer.localcluster.cached import made_by_one
from zkrebalancer.localcluster.class_archives import STOP_DEADLINE_S, ClassArchives
from zkrebalancer.localcluster.jars import JarSource

ARCHIVE = "spark"
# With these, more is on the class path, and an archive belongs to one class path. In settings and in the environment.
OTHER_CLASSES = ("spark.driver.extraClassPath", "spark.driver.extraJavaOptions")
OTHER_VARIABLES = (
    *("SPARK_CONF_DIR", "SPARK_DIST_CLASSPATH", "SPARK_PREPEND_CLASSES", "HADOOP_CONF_DIR", "YARN_CONF_DIR"),
    "PYSPARK_SUBMIT_ARGS",
)

_log = logging.getLogger(__name__)


@contextmanager
def class_options(java: str, settings: Mapping[str, object], *, records: bool) -> Iterator[list[str]]:
    """Give the options for a JVM that is started in the block, with the archive if there is one.

    Otherwise, with `records`, the JVM records one; it has then ended when the block has.
    """
    archives = None if any(name in settings for name in OTHER_CLASSES) else archives_of(java, os.environ)
    if archives is None or _gateway() is not None:
        yield []
    elif not records or archives.folder.is_dir():
        yield archives.options(ARCHIVE)
    else:
        with made_by_one(archives.folder) as partial:
            if partial is None:
                yield []
                return
            recorded = ClassArchives(partial, is_recording=True)
            try:
                yield recorded.options(ARCHIVE)
            except BaseException:
                _kill_jvm()  # it would complain on stdout that its folder is gone
                raise
            _log.warning("Spark's classes are recorded, once, so that Spark starts faster from now on")
            _complete(recorded)


def archives_of(java: str, environment: Mapping[str, str]) -> ClassArchives | None:
    """Return the place of the archive for this Java and PySpark; None if Spark is told to load other classes."""
    home = Path(environment.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    if any(environment.get(name) for name in OTHER_VARIABLES) or (home / "conf").exists():
        return None
    try:  # in the folder's order, which is that of the class path
        jars = [f"{jar.name} {jar.stat().st_size} {jar.stat().st_mtime_ns}" for jar in os.scandir(home / "jars")]
    except OSError:
        return None
    source = JarSource.of(None, None, _log.warning, environment)
    return ClassArchives.of(java, "\0".join([str(home), pyspark.__version__, *jars]), source)


def _complete(recorded: ClassArchives) -> None:
    """End the JVM, which then writes the archive. If that fails, remove it: the next batch tries again."""
    try:
        if _end_jvm():
            recorded.note_sizes()
            return
    except OSError as error:  # the batch is complete
        _log.warning("Spark's classes cannot be recorded: %s", error)
    shutil.rmtree(recorded.folder, ignore_errors=True)


def _end_jvm() -> bool:
    """End Spark's JVM, which otherwise ends with this process, and wait for its archive; return whether it ended well.

    An archive may be missing even so: then this Java writes none.
    """
    gateway = _gateway()
    if gateway is None:
        return False
    gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        return bool(gateway.proc.wait(STOP_DEADLINE_S) == 0)
    except subprocess.TimeoutExpired:
        return False
    finally:
        _kill_jvm()


def _kill_jvm() -> None:
    """End Spark's JVM if it still runs; the next session starts another."""
    gateway = _gateway()
    if gateway is not None:
        gateway.proc.kill()
        gateway.proc.wait()
        SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001


def _gateway() -> Any:  # noqa: ANN401  # Py4J has no types
    """Return PySpark's connection to its JVM, None if there is none."""
    return SparkContext._gateway  # noqa: SLF001  # nothing public leads to the process
