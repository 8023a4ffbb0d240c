"""What `docs/architecture.md` says of the coordinator's files, compared with the files and with a join that runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType

from tests.style.sources import ROOT
from tests.support.world import World

PAGE = (ROOT / "docs/architecture.md").read_text()
CORE = ROOT / "zkrebalancer/rebalance"
CORE_FILES = {path.name for path in CORE.glob("*.py")} - {"__init__.py"}


def section(heading: str) -> str:
    """Return the text below a heading, up to the next one."""
    return PAGE.split(f"{heading}\n", 1)[1].split("\n#", 1)[0]


def named_files(text: str) -> set[str]:
    return set(re.findall(r"`(\w+\.py)`", text)) & CORE_FILES


def files_of_a_join() -> set[str]:
    """Return the files of the core with a function that runs while a third consumer joins a settled group."""
    world = World()
    world.set_topic("t", 4)
    world.create_group(b'{"version": 1}')
    world.add_coordinator()
    for client in "ab":
        world.add_agent(client)
    world.pass_time(20_000)
    entered: set[str] = set()

    def note(frame: FrameType, _event: str, _argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if path.parent == CORE:
            entered.add(path.name)

    before = sys.gettrace()
    sys.settrace(note)
    try:
        world.add_agent("c")
        world.pass_time(5_000)
    finally:
        sys.settrace(before)
    assert sorted(map(len, world.owned().values())) == [1, 1, 2]
    return entered


def test_every_file_of_the_core_is_named() -> None:
    assert named_files(PAGE) == CORE_FILES


def test_a_join_goes_through_the_files_that_are_named() -> None:
    walk = section("### A join, file by file")
    assert named_files(walk) == files_of_a_join()
    steps = re.findall(r"^\d+\. `(\w+\.py)`", walk, re.MULTILINE)
    others = re.findall(r"^- `(\w+\.py)`", walk, re.MULTILINE)
    assert named_files(walk) == {*steps, *others}, "a file of the join has no line"
    assert (len({*steps, *others}), len(steps), len(others)) == (26, 10, 16), "the text says so"
