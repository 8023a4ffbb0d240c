"""The contract between coordinator and agent: paths, commands, node contents, errors. No I/O, no clock."""
