"""PySpark: events to facts, runs to a report, rates to weights, and a sweep of strategies over a grid."""
