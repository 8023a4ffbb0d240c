"""The machine that an experiment runs on."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping

from zkrebalancer.observe.events import JsonValue


def describe_machine() -> Mapping[str, JsonValue]:
    """Return processors, memory, system and load."""
    return {
        "processors": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "architecture": platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }
