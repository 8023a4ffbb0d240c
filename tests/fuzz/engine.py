"""Fuzzes one target in this process, which ends with the run: `python -m tests.fuzz.engine TARGET [OPTIONS]`."""

from __future__ import annotations

import importlib
import sys


def main(name: str, options: list[str]) -> None:
    """Load the target so that its coverage is seen, and give it inputs."""
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["zkrebalancer", "consumer_agent"]):
        targets = importlib.import_module("tests.fuzz.targets").TARGETS
    atheris.Setup([name, *options], targets[name].read)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
