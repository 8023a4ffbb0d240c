"""Spark settings for few rows, where compiling, and planning anew after each stage, cost more than they save."""

from __future__ import annotations

import shlex

LIGHT = {
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
    # A task reads many small files, and so writes few.
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.files.openCostInBytes": "4096",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000",
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
# For PYSPARK_SUBMIT_ARGS, before `pyspark-shell`.
SUBMIT_LIGHT = shlex.join(text for key, value in LIGHT.items() for text in ("--conf", f"{key}={value}"))
