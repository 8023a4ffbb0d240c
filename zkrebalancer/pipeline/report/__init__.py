"""`experiment compare`: run folders in; tables, statistics, sentences and pictures out, in one page."""
