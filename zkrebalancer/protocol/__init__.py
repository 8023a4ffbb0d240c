"""What coordinator and agent agree on: paths, commands, records, errors. No I/O, no clock."""
