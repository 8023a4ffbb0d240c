"""The first program of the page about consistent regions, as a reader would paste it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.integration.scenario import Scenario
from tests.integration.test_examples import PARTITIONS, RECORDS, Examples
from tests.style.sources import ROOT

PAGE = ROOT / "docs" / "how-to" / "consistent-region.md"


def test_the_first_program_counts_every_record(scenario: Scenario, tmp_path: Path) -> None:
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
        'name="counts"': 'name="counts", every_s=0.3',
    }.items():
        assert text.count(shown) == 1, shown
        text = text.replace(shown, own)
    (tmp_path / "program.py").write_text(text)
    program = examples.start(str(tmp_path / "program.py"))
    wanted = [tmp_path / f"{examples.topic}-{partition}-{RECORDS}" for partition in range(PARTITIONS)]
    examples.wait_for("all records", program, lambda: all(file.exists() for file in wanted))
    assert [file.read_text() for file in wanted] == [str(RECORDS)] * PARTITIONS
    program.kill()
    scenario.stop(*scenario.coordinators)
