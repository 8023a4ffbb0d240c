"""A verdict about a partition's lag from a few readings, by the rules of Burrow (LinkedIn), with fewer false alarms.

Burrow warns of quiet topics: of a lag that never changes, for example that of a transaction's marker, which no consumer
reads, and of consumers that commit nothing because nothing arrives. Here, a lag without a record to read counts as
none; a constant lag is no warning while the group makes progress; and it matters whether the partition has an owner,
which could read it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

MIN_WINDOW_MS = 10_000  # two automatic commits; in less time, a healthy group may have stored nothing


class Verdict(Enum):
    """Worst last; each comment says what to do."""

    OK = "OK"  # nothing
    WARN = "WARN"  # it reads, but the lag has grown with every reading: it needs more members, or faster ones
    STALL = "STALL"  # it has an owner, who stores no offset although there are records: look at the application
    STOP = "STOP"  # no member owns it, and there are records: start members, or see why it waits
    REWIND = "REWIND"  # its offset went back: it was reset, or two groups share a name


@dataclass(frozen=True, slots=True)
class Reading:
    """One partition at a moment. None: unknown.

    `offset`: the next to read, as stored; `end`: after the last record. `has_unread`: whether there is a record to read
    from `offset` on; None if that was not checked: then a lag is assumed to consist of records.
    """

    at_ms: int
    offset: int | None
    end: int | None
    is_owned: bool
    has_unread: bool | None = None

    @property
    def lag(self) -> int | None:
        """The number of records to read; 0 if only markers are left, which no consumer gets."""
        if self.offset is None or self.end is None:
            return None
        return 0 if self.has_unread is False else max(0, self.end - self.offset)


def judge(readings: Sequence[Reading]) -> Verdict | None:
    """Return the verdict about one partition, None if it is unknown; `readings` are in order of time.

    It is unknown if a reading lacks the offset or the end. Unless all is read or no member owns the partition, it is
    also unknown if the readings span less than MIN_WINDOW_MS.
    """
    offsets = [reading.offset for reading in readings if reading.offset is not None]
    lags = [reading.lag for reading in readings if reading.lag is not None]
    if not readings or min(len(offsets), len(lags)) < len(readings):
        return None
    if any(after < before for before, after in pairwise(offsets)):
        return Verdict.REWIND
    if not all(lags):
        return Verdict.OK
    if not any(reading.is_owned for reading in readings) and offsets[0] == offsets[-1]:
        return Verdict.STOP
    if readings[-1].at_ms - readings[0].at_ms < MIN_WINDOW_MS:
        return None
    grows = all(before <= after for before, after in pairwise(lags)) and lags[0] < lags[-1]
    return Verdict.STALL if offsets[0] == offsets[-1] else Verdict.WARN if grows else Verdict.OK


def worst(verdicts: Iterable[Verdict | None]) -> Verdict | None:
    """Return the worst verdict, None if none is known."""
    known = Counter(verdict for verdict in verdicts if verdict is not None)
    return max(known, key=list(Verdict).index, default=None)
