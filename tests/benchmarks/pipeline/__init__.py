"""What the pipeline costs, beside plain Python that makes the same facts."""
