"""Sessions of Spark Connect, which have no Spark context: their JVM is elsewhere."""

from __future__ import annotations


def is_remote(spark: object) -> bool:
    """Whether a session is one of Spark Connect."""
    return not hasattr(spark, "sparkContext")
