"""How long tests wait for what has to come: a wait ends as soon as it is there, so only a failing test takes so long.

A machine for continuous integration may be several times slower than a developer's, and stand still for seconds.
"""

from __future__ import annotations

WITHIN_S = 180.0
