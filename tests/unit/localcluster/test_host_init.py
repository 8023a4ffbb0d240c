"""The first process of a host, as a real process: it restarts its programs and stops them in the opposite order."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.deadlines import WITHIN_S
from tests.support.waiting import wait_until
from zkrebalancer.localcluster import host_init

NOTES_ITS_END = 'trap "echo $0 >> $1; exit" TERM; echo started; while :; do sleep 0.05; done'


def test_programs_are_restarted_and_stopped_in_the_opposite_order(tmp_path: Path) -> None:
    ends, logs = tmp_path / "ends", {name: tmp_path / f"{name}.log" for name in ("first", "second", "short")}
    commands = {name: ["/bin/sh", "-c", NOTES_ITS_END, name, str(ends)] for name in ("first", "second")}
    commands["short"] = ["/bin/sh", "-c", "echo started; echo complaint >&2; exit 3"]
    programs = [{"command": command, "log": str(logs[name])} for name, command in commands.items()]
    file = tmp_path / "programs.json"
    file.write_text(json.dumps(programs))

    def lines(name: str) -> list[str]:
        return logs[name].read_text().splitlines() if logs[name].exists() else []

    with subprocess.Popen([sys.executable, "-I", "-S", host_init.__file__, str(file)]) as init:
        wait_until(lambda: lines("short")[:3] == ["started", "complaint", "started"], "the short one is restarted")
        wait_until(lambda: lines("first") == lines("second") == ["started"], "the others have started")
        init.send_signal(signal.SIGTERM)
        assert init.wait(WITHIN_S) == 0
    assert ends.read_text().split() == ["second", "first"]
