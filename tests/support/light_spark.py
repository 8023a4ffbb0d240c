"""Settings of Spark for a handful of rows: what is compiled for them takes longer than they do without it."""

from __future__ import annotations

import shlex

LIGHT = {
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
# For PYSPARK_SUBMIT_ARGS, before `pyspark-shell`.
SUBMIT_LIGHT = shlex.join(text for key, value in LIGHT.items() for text in ("--conf", f"{key}={value}"))
