"""Finds out where a broker has cut a partition's log below what was read, as after an unclean election (KIP-320).

After each change of a partition's leader, librdkafka asks where the last known epoch ends. If the log was cut, its
message has that offset only in its text. Without it, the position may seem to exist again, because new records have
taken the offsets of lost ones.
"""

from __future__ import annotations

import re

_CUT = re.compile(r"log truncation detected .*?broker end offset is (\d+)")


def kept_offset(text: str) -> int | None:
    """Return the offset after the last record that was kept; None if the message is about something else."""
    found = _CUT.search(text)
    return None if found is None else int(found[1])
