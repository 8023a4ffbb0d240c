"""The ranges of a batch in Spark's checkpoint, where Spark stores them before it starts the batch."""

from __future__ import annotations

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from zkrebalancer.pipeline.source import offsets
from zkrebalancer.pipeline.source.offsets import CheckpointError, Range
from zkrebalancer.pipeline.source.remote import is_remote
from zkrebalancer.protocol.errors import ConfigurationError

FIRST_OFFSET_LINE = 2  # of a file in the checkpoint's folder `offsets`, after its version and metadata


def ranges_of(spark: SparkSession, checkpoint: str, batch_id: int) -> list[Range]:
    """Return the ranges of a batch of the query with this `checkpointLocation`; starts no job.

    Raises:
        ConfigurationError: the session is one of Spark Connect.
        CheckpointError: the batch is not there, or does not have the ranges of one source of this format.

    """
    if is_remote(spark):
        raise ConfigurationError("a session of Spark Connect cannot read the checkpoint: use one without Connect")
    file = f"{checkpoint.rstrip('/')}/offsets/{batch_id}"
    return ranges_in(_content(spark, file), file)


def _content(spark: SparkSession, file: str) -> str:
    """Read a file of any file system that Spark knows: PySpark itself has only ways that start a job."""
    jvm, session = spark.sparkContext._jvm, spark._jsparkSession  # noqa: SLF001
    path = jvm.org.apache.hadoop.fs.Path(file)  # type: ignore[union-attr]
    try:
        stream = path.getFileSystem(session.sessionState().newHadoopConf()).open(path)
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()
    except Py4JJavaError as error:
        text = f"{file} cannot be read ({error.java_exception.toString()}): is this the query's checkpointLocation?"
        raise CheckpointError(text) from None


def ranges_in(content: str, file: str) -> list[Range]:
    """Return the ranges in a file of a checkpoint's folder `offsets`; raises CheckpointError."""
    found = []
    for line in content.splitlines()[FIRST_OFFSET_LINE:]:
        try:
            found.append(offsets.parse(line))
        except CheckpointError:
            continue  # of another source
    if len(found) != 1:
        raise CheckpointError(f"{file} has the offsets of {len(found)} sources of this format; there must be one")
    return found[0]
