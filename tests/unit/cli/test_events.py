"""`zkrebalancer events`: filters, order, torn and foreign lines, and following files that grow."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner, Result

from zkrebalancer.cli.events import events, line
from zkrebalancer.cli.open_files import allow_open_files
from zkrebalancer.experiments import tail
from zkrebalancer.experiments.tail import EventTail
from zkrebalancer.observe.reading import REORDERED_LINES, NoEventsError

AT_US = 1_763_953_200_000_000  # 2025-11-24 03:00:00 UTC


def event(second: int, kind: str, *, host: str = "h", mono_us: int | None = None, **fields: object) -> dict[str, Any]:
    mono_us = second if mono_us is None else mono_us
    ts_us = AT_US + second * 1_000_000
    return {"ts_us": ts_us, "mono_us": mono_us, "host": host, "process": f"c-{host}", "kind": kind, **fields}


def write(path: Path, *lines: dict[str, Any] | bytes) -> None:
    with path.open("ab") as file:
        for each in lines:
            file.write(each if isinstance(each, bytes) else json.dumps(each).encode() + b"\n")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(events, [str(each) for each in arguments])


def shown(*arguments: object) -> list[int]:
    """Return the seconds of the events that are shown with `--json`."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return [(each["ts_us"] - AT_US) // 1_000_000 for each in json.loads(result.stdout)["events"]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Events of two hosts, whose monotonic clocks have nothing in common."""
    requested: dict[str, Any] = {"cause_id": "i", "trigger": "member-joined"}
    finished: dict[str, Any] = {"generation": 7, "cause_id": "i", "outcome": "finished", "settled_us": 5}
    write(
        tmp_path / "a.jsonl",
        event(1, "rebalance_requested", group="g", mono_us=9_001, **requested),
        event(3, "rebalance_finished", group="g", mono_us=9_003, **finished),
        event(5, "leader_resigned", group=None, epoch=3, mono_us=9_005),
    )
    write(
        tmp_path / "b.jsonl",
        event(2, "member_joined", host="k", group="g", member="m"),
        event(4, "member_joined", host="k", group="h", member="n", topic="t"),
    )
    return tmp_path


def test_events_of_several_hosts_are_in_order_and_filtered(folder: Path) -> None:
    """In `Filter.admits`, ignore any field; in `EventFiles._time`, use `mono_us`."""
    assert shown(folder, "--last", 100) == [1, 2, 3, 4, 5]
    assert shown(folder, "--last", 2) == [4, 5]
    assert shown(folder, "--group", "g") == [1, 2, 3]
    assert shown(folder, "--kind", "member_joined") == [2, 4]
    assert shown(folder, "--kind", "member_joined", "--kind", "leader_resigned", "--last", 2) == [4, 5]
    assert shown(folder, "--member", "m") == [2]
    assert shown(folder, "--topic", "t") == [4]
    assert shown(folder, "--cause", "i") == [1, 3]
    assert shown(folder, "--since", "2025-11-24T03:00:04") == [4, 5]
    assert shown(folder, "--since", "2025-11-24T04:00:04+0100") == [4, 5]
    assert shown(folder, "--group", "nowhere") == []


def test_a_file_of_two_boots_is_in_order(tmp_path: Path) -> None:
    """In `EventFiles._in_order`, order by `mono_us`: events before the reboot come last."""
    boots = [(second, 10**9 + second) for second in (1, 2, 3)] + [(second, second) for second in (60, 62, 61)]
    lines = [event(second, "stalled", mono_us=mono_us, role="machine", gap_ms=1) for second, mono_us in boots]
    write(tmp_path / "c-1.jsonl", *lines)
    assert shown(tmp_path, "--last", 4) == [3, 60, 61, 62]


def test_an_event_is_one_readable_line(folder: Path) -> None:
    first, *_others = run(folder, "--last", 100).stdout.splitlines()
    text = "2025-11-24 03:00:01.000 c-h rebalance_requested group=g cause_id=i trigger=member-joined"
    assert first == text
    odd = event(1, "fault", name="a\nb\x1b[2J", target="x" * 500)
    assert line(odd).endswith("…")
    assert line(odd).isprintable()
    assert line({**odd, "ts_us": 2**62}).startswith("4611686018427387904 us")
    assert line({"mono_us": 1, "kind": "k", "ts_us": "no"}).startswith("1970-01-01")


def test_torn_and_foreign_lines_are_reported_and_hide_nothing(folder: Path) -> None:
    write(folder / "a.jsonl", b"\xff\n", b"[1]\n", b'{"torn":')
    result = run(folder, "--last", 100)
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 5)
    assert [text.startswith("problem: a.jsonl, line ") for text in result.stderr.splitlines()] == [True, True]
    document = json.loads(run(folder, "--last", 100, "--json").stdout)
    assert (len(document["events"]), len(document["problems"]), document["torn_lines"]) == (5, 2, 1)


def test_no_match_is_said_and_wrong_usage_is_refused(folder: Path, tmp_path: Path) -> None:
    result = run(folder, "--kind", "nothing")
    assert (result.exit_code, result.stdout, "matches" in result.stderr) == (0, "", True)
    assert run(folder, "--follow", "--json").exit_code == 2
    assert run(folder, "--since", "yesterday").exit_code == 2
    assert run(folder, "--last", 0).exit_code == 2
    for mode in ((), ("--follow",)):
        assert isinstance(run(tmp_path / "missing", *mode).exception, NoEventsError)


def test_what_a_file_contained_before_is_skipped_but_an_incomplete_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `EventTail.skip`, go to the end; look only at the last block."""
    monkeypatch.setattr(tail, "BLOCK", 16)
    begun = json.dumps(event(2, "fault", name="n", target="t")).encode()
    write(tmp_path / "a.jsonl", event(1, "fault", name="n", target="t"), begun[:50])
    write(tmp_path / "b.jsonl", begun[:5])
    follower = EventTail(tmp_path)
    follower.skip()
    assert follower.read() == []
    write(tmp_path / "a.jsonl", begun[50:] + b"\n", b"[]\n", b"{}\n")
    write(tmp_path / "b.jsonl", begun[5:] + b"\n")
    write(tmp_path / "c.jsonl", event(3, "fault", name="n", target="t"))
    assert [each["mono_us"] for each in follower.read()] == [2, 2, 3]
    assert follower.read() == []


def test_new_events_are_followed_until_an_interrupt(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `_follow`, do not filter, or begin with what is there."""
    rounds = iter(range(2))

    def sleep(_seconds: float) -> None:
        if next(rounds, None) is None:
            raise KeyboardInterrupt
        write(folder / "d.jsonl", event(6, "member_joined", group="g", member="new"))
        write(folder / "a.jsonl", event(6, "member_joined", group="h", member="other"))

    monkeypatch.setattr("time.sleep", sleep)
    result = run(folder, "--follow", "--group", "g")
    assert (result.exit_code, ["member=new" in text for text in result.stdout.splitlines()]) == (0, [True, True])


@pytest.mark.parametrize("arguments", [[], ["--last", "3"]], ids=["overview", "events"])
def test_many_files_are_read_as_far_as_the_system_allows(tmp_path: Path, arguments: list[str]) -> None:
    """In `events`, leave the limit of open files as a shell sets it: hundreds of restarts leave as many files."""
    for number in range(30):
        some = [event(second, "member_joined", group="g", member=f"m{number}") for second in range(REORDERED_LINES + 1)]
        write(tmp_path / f"agent-{number}.jsonl", *some)
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (24, {hard}))"
    program = f"{limit}; from zkrebalancer.cli.main import main; main()"
    command = [sys.executable, "-c", program, "events", str(tmp_path), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_limit_of_open_files_that_may_not_be_raised_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `allow_open_files`, expect OSError only: of EPERM, as by a filter of calls, Python makes a ValueError."""
    refused = mock.Mock(side_effect=ValueError("not allowed to raise maximum limit"))
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (10, 100))
    monkeypatch.setattr(resource, "setrlimit", refused)
    allow_open_files(50)
    refused.assert_called_once_with(resource.RLIMIT_NOFILE, (50, 100))


def test_names_in_problems_cannot_command_the_terminal(tmp_path: Path) -> None:
    """In `events`, print problems as they are."""
    delivered: dict[str, Any] = {"group": "g", "topic": "t", "partition": 0, "count": 1}
    write(tmp_path / "a.jsonl", event(1, "delivered", member="m\u202e", first_offset=0, last_offset=0, **delivered))
    assert "m? received offsets 0 without owning the partition" in run(tmp_path).output
