"""PySpark analysis of run events: turns event files into tables (`docs/reference/tables.md`)."""
