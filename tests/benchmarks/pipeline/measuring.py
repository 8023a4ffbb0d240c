"""Runs a command, and samples its memory."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from typing import Any

import psutil

SAMPLE_S = 0.2


def measured(command: list[str]) -> tuple[float, float, Any]:
    """Run a command; return its seconds, the peak memory in MiB of it and its children, and its JSON output."""
    began, peak, is_over = time.perf_counter(), [0], threading.Event()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def sample() -> None:
        while not is_over.wait(SAMPLE_S):
            try:
                root = psutil.Process(process.pid)
                tree = [root, *root.children(recursive=True)]
                peak[0] = max(peak[0], sum(each.memory_info().rss for each in tree))
            except psutil.NoSuchProcess:
                continue

    watcher = threading.Thread(target=sample)
    watcher.start()
    out, _errors = process.communicate()
    is_over.set()
    watcher.join()
    if process.returncode:
        sys.exit(f"{command} failed")
    return time.perf_counter() - began, peak[0] / (1 << 20), json.loads(out)
