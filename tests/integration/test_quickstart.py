"""`docs/start/quickstart.md`: its code blocks are pasted into a shell, with other ports.

Where the page sleeps, the test waits for the expected output.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.docs.rules import blocks
from tests.style.sources import ROOT
from tests.support.deadlines import WITHIN_S
from zkrebalancer.localcluster.ports import free_ports
from zkrebalancer.localcluster.server import child_environment
from zkrebalancer.observe import inspection
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.runtime.zk import BlockingZk

PAGE = ROOT / "docs" / "start" / "quickstart.md"
ASK_INTERVAL_S = 0.1
PARTITIONS = 6


class Reader:
    """A shell in an empty folder, into which the page is pasted piece by piece."""

    def __init__(self, folder: Path) -> None:
        self.zookeeper_port, broker_port = free_ports(2)
        text = PAGE.read_text().replace("2181", str(self.zookeeper_port)).replace("9092", str(broker_port))
        script = "".join(content for language, content in blocks(text) if language == "sh")
        self.pieces = re.split(r"(?m)^sleep \d+\n", script)
        self.screen = folder / "screen"
        self.folder = folder
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        with self.screen.open("wb") as screen:
            self.shell = subprocess.Popen(
                ["bash"],
                stdin=subprocess.PIPE,
                stdout=screen,
                stderr=screen,
                cwd=folder,
                env={**child_environment(), "PATH": path, "XDG_STATE_HOME": str(folder / "state")},
                text=True,
                start_new_session=True,
            )

    def paste(self, piece: str) -> None:
        assert self.shell.stdin is not None
        self.shell.stdin.write(piece)
        self.shell.stdin.flush()

    def wait_for(self, what: str, is_so: Callable[[], bool]) -> None:
        give_up_at = time.monotonic() + WITHIN_S
        while not is_so():
            assert self.shell.poll() is None, f"the shell has ended before {what}:\n{self.screen.read_text()}"
            assert time.monotonic() < give_up_at, f"waited {WITHIN_S:g} s for {what}:\n{self.screen.read_text()}"
            time.sleep(ASK_INTERVAL_S)

    def shares(self) -> list[int]:
        """Return how many partitions each member of the group owns."""
        try:
            with BlockingZk(f"127.0.0.1:{self.zookeeper_port}") as zk:
                report = inspection.read_group(zk, "demo")
        except RebalancerError:  # no server yet, or no group
            return []
        return [len(member.owners.partitions) if member.owners else 0 for member in report.members]

    def close(self) -> None:
        if self.shell.poll() is None:
            os.killpg(self.shell.pid, signal.SIGKILL)
        self.shell.communicate()
        environment = {**child_environment(), "XDG_STATE_HOME": str(self.folder / "state")}
        command = [sys.executable, "-m", "zkrebalancer.cli.main", "cluster", "down"]
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=WITHIN_S)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    reader.close()


def test_the_page_does_what_it_says(reader: Reader) -> None:
    start, kill, end = reader.pieces
    reader.paste(start)
    reader.wait_for("two members", lambda: reader.shares() == [PARTITIONS // 2] * 2)
    seen = reader.screen.read_text()
    assert f"created orders with {PARTITIONS} partitions" in seen
    assert "coordinator 1 leads (epoch 1)" in seen
    reader.wait_for("both to say so", lambda: reader.screen.read_text().count("joined group demo") == 2)
    reader.paste(kill)
    reader.wait_for("one member", lambda: reader.shares() == [PARTITIONS])
    survivor = reader.folder / "agent-2.log"
    partitions = {f"orders/{number} " for number in range(PARTITIONS)}
    reader.wait_for("its records", lambda: all(partition in survivor.read_text() for partition in partitions))
    reader.paste(f"{end}exit\n")
    assert reader.shell.wait(WITHIN_S) == 0, reader.screen.read_text()
    assert "The cluster is down" in reader.screen.read_text()
    assert "Traceback" not in reader.screen.read_text()
    assert [path.name for path in reader.folder.iterdir() if path.suffix == ".log"] == []
