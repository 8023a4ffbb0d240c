"""Feeds every parser with inputs that libFuzzer makes, guided by coverage: `python -m tests.fuzz`.

Needs atheris, which is not installed with the rest: it has wheels for few Pythons. Each target is a process of its own,
with limits for time and memory. A finding is kept in the folder `--keep`, and the run fails.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz.targets import TARGETS

ONE_INPUT_S = 30
MAX_MEMORY_MB = 1_500
MAX_INPUT_BYTES = 4_096
GRACE_S = 600.0  # to start on a busy machine, and to end
TAIL_LINES = 30


def main(arguments: list[str]) -> int:
    """Fuzz the chosen targets; exit code 1: a finding, 2: atheris is missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=120, help="for each target (default: %(default)s)")
    parser.add_argument("--target", choices=TARGETS, action="append", help="only this one; may be repeated")
    parser.add_argument("--keep", type=Path, default=Path(".fuzz"), help="folder for findings (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    if importlib.util.find_spec("atheris") is None:
        print("atheris is missing: pip install atheris", file=sys.stderr)
        return 2
    chosen.keep.mkdir(exist_ok=True)
    found = [name for name in (chosen.target or TARGETS) if not _is_clean(name, chosen.seconds, chosen.keep)]
    print(f"findings in {', '.join(found)}; see {chosen.keep}" if found else "no findings")
    return 1 if found else 0


def _is_clean(name: str, seconds: int, keep: Path) -> bool:
    """Fuzz one target in a process of its own; print how many inputs it got, or what was found."""
    with tempfile.TemporaryDirectory(prefix="zkrebalancer-fuzz-corpus-") as corpus:
        for number, seed in enumerate(TARGETS[name].seeds):
            (Path(corpus) / str(number)).write_bytes(seed)
        limits = [f"-max_total_time={seconds}", f"-timeout={ONE_INPUT_S}", f"-rss_limit_mb={MAX_MEMORY_MB}"]
        options = [*limits, f"-max_len={MAX_INPUT_BYTES}", f"-artifact_prefix={keep}/{name}-", corpus]
        command = [sys.executable, "-m", "tests.fuzz.engine", name, *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + GRACE_S, check=False)
    last = next((line for line in done.stderr.splitlines() if line.startswith("Done ")), "")
    print(f"{name}: {last or f'exit code {done.returncode}'}", flush=True)
    if done.returncode:
        for stream in (done.stdout, done.stderr):
            print("\n".join(stream.splitlines()[-TAIL_LINES:]), file=sys.stderr, flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
