"""A join goes through the files that `docs/architecture.md` walks through, and through no other."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType

from tests.style.sources import ROOT
from tests.support.groups import DEFAULTS, world_with

REBALANCE = ROOT / "zkrebalancer" / "rebalance"
WALK = re.compile(r"^(?:\d+\.|-) `(\w+\.py)`", re.MULTILINE)


def test_a_join_goes_through_the_files_of_the_walk() -> None:
    world = world_with(DEFAULTS, "a", "b", partitions=6)
    called: set[str] = set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            called.add(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        world.add_agent("c")
        world.pass_time(1_000)
    finally:
        sys.setprofile(before)
    assert len(world.owned()) == 3
    files = {Path(file).name for file in called if Path(file).parent == REBALANCE}
    walk = WALK.findall((ROOT / "docs" / "architecture.md").read_text())
    assert sorted(walk) == sorted(files)
