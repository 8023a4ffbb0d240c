"""The cost of the pipeline, beside plain Python that computes the same facts."""
