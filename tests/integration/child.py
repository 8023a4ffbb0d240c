"""`consumer-agent run --exec` with a scripted child, on real servers."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.integration.commands import begin, catches, communicate
from tests.integration.fake_coordinator import SESSION_TIMEOUT_MS, WAIT_S, Stage
from tests.support.waiting import wait_until
from zkrebalancer.protocol import paths
from zkrebalancer.protocol import settings as group_settings
from zkrebalancer.protocol.calls import Create, Done, Multi, Refusal
from zkrebalancer.protocol.settings import GroupSettings

ACK = 'say({"ack": place})'
CHILD = """
import json, os, sys, time
from pathlib import Path

here = Path(sys.argv[1])
seen = open(here / "seen", "a")
held = []
agent = os.getppid()

def wait_while(is_true):
    while is_true() and os.getppid() == agent:  # a test that fails kills the agent
        time.sleep(0.01)

def say(frame):
    print(json.dumps(frame), flush=True)

def note(*words):
    print(*words, file=seen, flush=True)

note("child", os.getpid())
for line in sys.stdin:
    frame = json.loads(line)
    if "revoke" in frame:
        note("revoke")
        wait_while((here / "hold-revoke").exists)
        for place in held:
            say({"ack": place})
        held.clear()
        say({"revoked": frame["revoke"]})
        continue
    record = frame["record"]
    place = {key: record[key] for key in ("topic", "partition", "offset")}
    offset = record["offset"]
    note(record["partition"], offset)
    {ACT}
note("end")
"""


RUNNING: list[subprocess.Popen[str]] = []


class Agent:
    """An agent with a scripted child, which records what it receives."""

    def __init__(self, stage: Stage, folder: Path, act: str, *options: str, command: str | None = None) -> None:
        self.folder = folder
        self.seen = folder / "seen"
        self.seen.touch()
        script = folder / "child.py"
        script.write_text(CHILD.replace("{ACT}", act))
        own = ["--exec", command or f"{sys.executable} {script} {folder}", "--auto-commit-interval-ms", "50"]
        where = ["--zookeeper", stage.cluster.zookeeper, "--bootstrap", stage.cluster.bootstrap]
        wanted = ["--group", stage.group, "--topic", stage.topic, "--session-timeout-ms", str(SESSION_TIMEOUT_MS)]
        self.process = begin("consumer-agent", "run", *where, *wanted, *own, *options)
        RUNNING.append(self.process)

    def notes(self) -> list[str]:
        return self.seen.read_text().splitlines()

    def given(self, partition: int) -> list[int]:
        """Return the offsets sent to children, in order."""
        words = [note.split() for note in self.notes()]
        return [
            int(offset) for number, offset in (pair for pair in words if len(pair) == 2) if number == f"{partition}"
        ]

    def children(self) -> list[int]:
        return [int(note.split()[1]) for note in self.notes() if note.startswith("child ")]

    def signal(self, number: signal.Signals) -> None:
        wait_until(lambda: catches(self.process.pid, number), "the agent to handle signals")
        self.process.send_signal(number)

    def end(self, code: int = 0) -> str:
        """Wait for its end; return its stderr."""
        _, errors = communicate(self.process, WAIT_S)
        assert self.process.returncode == code, errors
        assert "Traceback" not in errors
        for pid in self.children():
            assert not Path(f"/proc/{pid}").exists(), "a child is left"
        return errors

    def stop(self, code: int = 0) -> str:
        self.signal(signal.SIGTERM)
        return self.end(code)


def configure(stage: Stage, settings: GroupSettings) -> None:
    """Write a group's settings as the operator's command does, before the group has a consumer."""
    for path in (paths.CONSUMERS, paths.GROUPS):
        stage.zk.perform(Multi((Create(path),)), {Refusal.NODE_EXISTS})  # may exist already
    node = Create(paths.group(stage.group), group_settings.encode(settings))
    assert isinstance(stage.zk.perform(Multi((node,))), Done)
