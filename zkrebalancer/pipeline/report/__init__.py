"""`experiment compare`: reads run folders, writes one page with tables, statistics, verdicts and pictures."""
