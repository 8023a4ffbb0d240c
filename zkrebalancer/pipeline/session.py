"""The one way to a SparkSession."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession


def open_session(application: str, master: str | None = None, **configuration: str) -> SparkSession:
    """Return a session; `master` None is all cores of this machine, `configuration` is Spark's own."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # where executors have their Python elsewhere, it is set
    builder = SparkSession.builder.appName(application).config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.sql.shuffle.partitions", "8")
    for key, value in configuration.items():
        builder = builder.config(key, value)
    return builder.master(master or "local[*]").getOrCreate()
