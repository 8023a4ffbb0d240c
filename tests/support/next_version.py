"""Simulates the project's next version: the present source with a few changed lines, for real processes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.style.sources import ROOT
from zkrebalancer.localcluster.server import child_environment

PACKAGES = ("zkrebalancer", "consumer_agent")
ADDED = "added_by_the_next_version"
Lines = Mapping[str, tuple[str, str]]  # file -> a line, and the line of the next version

ADDS: Lines = {  # a key unknown to this version, in every node and command
    "zkrebalancer/protocol/fields.py": (
        "return json.dumps(document, separators",
        f'return json.dumps({{**document, "{ADDED}": {{"some": ["thing"]}}}}, separators',
    ),
    "zkrebalancer/protocol/command.py": ('"version": VERSION,', f'"version": VERSION, "{ADDED}": [1, None],'),
}
NEW_REGISTRATION: Lines = {"zkrebalancer/protocol/registration.py": ("VERSION = 1", "VERSION = 2")}
NEW_COMMANDS: Lines = {"zkrebalancer/protocol/command.py": ("VERSION = 1", "VERSION = 2")}


def next_version(folder: Path, lines: Lines) -> dict[str, str]:
    """Write the next version to a folder; return the environment for its processes."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, (before, after) in lines.items():
        text = (folder / name).read_text()
        if text.count(before) != 1:
            raise AssertionError(f"{name}: {before!r} occurs {text.count(before)} times")
        (folder / name).write_text(text.replace(before, after))
    path = os.pathsep.join([str(folder), child_environment()["PYTHONPATH"]])
    return {
        "PYTHONPATH": path,
        "PYTHONSAFEPATH": "1",
    }  # otherwise the present source in the working folder would take precedence
