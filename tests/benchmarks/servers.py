"""Servers for a benchmark."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zkrebalancer.experiments.lab import Lab
from zkrebalancer.localcluster import cluster as localcluster


@contextmanager
def led(session_timeout_ms: int, **settings: Any) -> Iterator[Lab]:
    """Yield a lab whose coordinator leads, in a cluster with these settings; nothing of it stays."""
    with (
        tempfile.TemporaryDirectory() as folder,
        localcluster.LocalCluster(**settings) as cluster,  # by this name, tests give it servers that run already
        Lab(cluster, Path(folder) / "events", session_timeout_ms) as lab,
    ):
        lab.start_coordinator(1)
        lab.wait_leader()
        yield lab
