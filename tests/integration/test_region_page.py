"""The first program of the page about consistent regions, as a reader would paste it."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from tests.integration.scenario import Scenario
from tests.integration.test_examples import PARTITIONS, RECORDS, Examples
from tests.style.sources import ROOT
from zkrebalancer.localcluster.server import Program

PAGE = ROOT / "docs" / "how-to" / "consistent-region.md"


def test_the_first_program_counts_every_record(scenario: Scenario, tmp_path: Path) -> None:
    """Also after Ctrl-C before its first checkpoint, which commits nothing that has no copy."""
    examples = Examples(scenario)
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    text = found[1]
    for shown, own in {
        "localhost:2181": examples.lab.cluster.zookeeper,
        "localhost:9092": examples.lab.cluster.bootstrap,
        '"counters"': repr(examples.group),
        '"orders"': repr(examples.topic),
        "/var/lib/counts": str(tmp_path),
    }.items():
        assert text.count(shown) == 1, shown
        text = text.replace(shown, own)

    def start(every_s: float) -> Program:
        path = tmp_path / f"program-{every_s}.py"
        path.write_text(text.replace('name="counts"', f'name="counts", every_s={every_s}'))
        return examples.start(str(path))

    assert text.count('name="counts"') == 1
    first, group = start(3_600), examples.group
    examples.wait_for("partitions", first, lambda: len(examples.lab.group(group).owned()) == PARTITIONS)
    os.kill(first.pid, signal.SIGINT)
    examples.lab.wait_for("the end of the first one", lambda: not first.is_running)
    program = start(0.3)
    wanted = [tmp_path / f"{examples.topic}-{partition}-{RECORDS}" for partition in range(PARTITIONS)]
    examples.wait_for("all records", program, lambda: all(file.exists() for file in wanted))
    assert [file.read_text() for file in wanted] == [str(RECORDS)] * PARTITIONS
    program.kill()
    scenario.stop(*scenario.coordinators)
