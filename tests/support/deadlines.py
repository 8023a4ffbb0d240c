"""How long tests wait for expected events; a wait ends with the event, so only a failing test takes that long.

A continuous integration machine may be several times slower than a developer's, and stall for seconds.
"""

from __future__ import annotations

WITHIN_S = 180.0
