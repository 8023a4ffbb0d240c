"""A process of members loads its own client, and has made one before the first member joins."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from zkrebalancer.experiments.members import program

OTHER = {"central": "kafka", "kafka": "central"}


@pytest.mark.parametrize("kind", program.KINDS)
def test_a_client_is_made_and_closed_before_the_process_is_ready(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `main`, leave `warm_up`: the first member's join takes some milliseconds more, whatever its protocol."""
    done = []

    class Client:
        def __init__(self, settings: dict[str, object]) -> None:
            done.append(f"made, {len([*tmp_path.iterdir()])} event files, {'group.id' in settings}")

        def close(self) -> None:
            done.append(f"closed, {len([*tmp_path.iterdir()])} event files")

    monkeypatch.setattr(program, "Consumer", Client)
    monkeypatch.setattr(program, "Orders", lambda: io.StringIO(""))
    options = ["--kind", kind, "--process", "p", "--group", "g", "--zookeeper", "z:1", "--bootstrap", "b:1"]
    ended = CliRunner().invoke(program.main, [*options, "--events", str(tmp_path)])
    assert ended.exit_code == 0, ended.output
    assert done == ["made, 0 event files, True", "closed, 0 event files"]
    assert len([*tmp_path.iterdir()]) == 1


@pytest.mark.parametrize("kind", program.KINDS)
def test_a_process_has_no_modules_of_the_other_kind(kind: str) -> None:
    """At the head of `program`, import `CentralReader`: Kafka's members are charged for the agent's memory."""
    look = f"""
import sys
from zkrebalancer.experiments.members.program import reader_of
reader_of({kind!r})
print(*(name in sys.modules for name in ("consumer_agent.consumer", "zkrebalancer.experiments.members.{OTHER[kind]}")))
"""
    found = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.split() == [str(kind == "central"), "False"]
