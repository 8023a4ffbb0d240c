"""Runs group tests of other projects against a gateway: `python -m tests.conformance`, or `make conformance`.

Clients hide errors by trying again. So besides the tests, the gateway's log has to be free of errors.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.conformance.suites import NOT_CENTRAL, ONLY_CENTRAL, SUITES, BuildError, Program
from tests.integration.gateway_process import GatewayProcess
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.localcluster.cluster import BROKER_KINDS, LocalCluster

DEADLINE_S = 900.0
ASSIGN = ("client", "central")
TAIL_LINES = 40


def report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def passes(program: Program, folder: Path, log: Path) -> bool:
    """Run one test; its output goes to `log`."""
    with log.open("w") as output:
        try:
            code = subprocess.run(
                program.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, **program.environment},
                timeout=DEADLINE_S,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            return False
    printed = log.read_text(errors="replace")
    return code == 0 and all(one in printed for one in program.needed)


def is_for(test: str, assign: str) -> bool:
    """Whether a test is run with this `--assign`; report why not."""
    if assign == "central" and test in NOT_CENTRAL:
        report(f"{assign:8}{test} is left out: {NOT_CENTRAL[test]}")
        return False
    return assign == "central" or test not in ONLY_CENTRAL


def main(arguments: list[str]) -> int:
    names = [one.name for one in SUITES]
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--suite", choices=names, action="append", help="only this one; may be repeated")
    parser.add_argument("--test", action="append", help="only this one of its tests; may be repeated")
    parser.add_argument(
        "--assign", choices=ASSIGN, action="append", help="the gateway's --assign; default: both, in turn"
    )
    parser.add_argument("--broker", choices=[kind for kind in BROKER_KINDS if kind != "none"], default="kafka-3.9")
    chosen = parser.parse_args(arguments)
    failed = 0
    suites = [
        suite
        for suite in SUITES
        if suite.name in (chosen.suite or names) and not set(suite.tests).isdisjoint(chosen.test or suite.tests)
    ]
    try:
        built = {suite.name: suite.built(report) for suite in suites}
    except BuildError as error:
        report(f"Error: {error}")
        return 2
    properties = {"auto.create.topics.enable": "true", "num.partitions": "4"}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="zkrebalancer-conformance-")))
        cluster = stack.enter_context(
            LocalCluster(broker=chosen.broker, chroot="/conformance", kafka_properties=properties, report=report)
        )
        lab = stack.enter_context(Lab(cluster, folder / "events"))
        lab.start_coordinator(1)
        lab.wait_leader()
        for assign in chosen.assign or ASSIGN:
            gateway = GatewayProcess(cluster, folder, "--assign", assign)
            gateway.start()
            stack.callback(gateway.kill)
            for suite in suites:
                for test in suite.tests:
                    if test not in (chosen.test or suite.tests) or not is_for(test, assign):
                        continue
                    log = folder / f"{suite.name}-{test.replace('/', '-')}-{assign}.log"
                    began = time.monotonic()
                    is_passed = passes(suite.run(built[suite.name], folder, gateway.bootstrap, test), folder, log)
                    verdict = "passed" if is_passed else "FAILED"
                    print(f"{assign:8}{suite.name:12}{test:42}{verdict}  {time.monotonic() - began:5.1f} s", flush=True)
                    if not is_passed:
                        failed += 1
                        print("\n".join(log.read_text(errors="replace").splitlines()[-TAIL_LINES:]))
            gateway.stop()
            for line in gateway.troubles():
                failed += 1
                print(f"{assign:8}the gateway: {line}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
