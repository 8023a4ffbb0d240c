"""Facts about runs, one topic per file: pure functions on data frames, shared by the batch and streaming pipelines."""
