"""What a consumer owes to whoever keeps its results, beside its group. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Duties(NamedTuple):
    """Of a plain consumer: none. A Spark query may have a sink, but it keeps no offsets: it commits the group's."""

    tells_origins: bool = False  # a sink asks what the progress of its partitions belongs to
    in_region: bool = False  # its region keeps offsets of its own, and needs all positions
    keeps_copies: bool = False  # its region stores an offset only once there is a copy of the partition's state for it


NO_DUTIES = Duties()
