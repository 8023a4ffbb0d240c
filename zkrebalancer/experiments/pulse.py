"""`python -m zkrebalancer.experiments.pulse`: writes an event whenever the machine stood still.

It wakes up every two milliseconds, in a process of its own, ahead of all others where that is allowed (real-time
priority, which root has). So it is late when the machine was, as when a hypervisor takes its processors away, and not
when an interpreter's lock or a queue of the run's own processes made it wait.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import click

from zkrebalancer.cli.main import run
from zkrebalancer.experiments.ending import block_sigterm, is_told_to_end
from zkrebalancer.observe.events import EventLog

BEAT_S = 0.002
STALL_S = 0.004  # longer pauses become events


@click.command()
@click.option("--events", required=True, type=click.Path(path_type=Path))
@click.option("--name", required=True)
def beat(*, events: Path, name: str) -> None:
    """Write the pauses of the machine until SIGTERM."""
    block_sigterm()
    log = EventLog(events, name)
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    last_s = time.monotonic()
    while not is_told_to_end(BEAT_S):
        gap_s = time.monotonic() - last_s
        if gap_s > STALL_S:
            log.write("stalled", role="machine", gap_ms=round(gap_s * 1_000), left_out_count=0)
        last_s = time.monotonic()
    log.close()


if __name__ == "__main__":
    run(beat)
