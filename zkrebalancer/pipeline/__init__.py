"""PySpark over the events of runs: what happened, as tables (`docs/pipeline.md`)."""
