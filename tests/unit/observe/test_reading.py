"""Event files are merged by time; torn last lines are counted, any other unreadable line is reported."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.observe.history import moved
from zkrebalancer.observe import reading
from zkrebalancer.observe.checker import check, judge
from zkrebalancer.observe.reading import REORDERED_LINES, Event, EventFiles, NoEventsError, Problems

FETCHER = '"mono_us": 1, "group": "g", "member": "m", "topic": "t"'
RECORDS = '"mono_us": 1, "topic": "t", "partition": 0'


def lines(events: list[Event]) -> str:
    return "".join(json.dumps(event) + "\n" for event in events)


def test_files_are_merged_by_time_and_a_torn_last_line_is_counted(tmp_path: Path) -> None:
    events = moved().events
    (tmp_path / "a.jsonl").write_text(lines(events[::2]))
    (tmp_path / "b.jsonl").write_text(lines(events[1::2]) + '{"mono_us": 5, "ki')
    (tmp_path / "notes.txt").write_text("not an event file")
    verdict = check(tmp_path)
    assert verdict.ok
    assert verdict.torn_lines == 1


def test_threads_of_one_process_may_write_slightly_out_of_order(tmp_path: Path) -> None:
    events: list[Event] = [{"mono_us": number, "kind": "x"} for number in range(3 * REORDERED_LINES)]
    events.insert(REORDERED_LINES, events.pop(0))
    (tmp_path / "a.jsonl").write_text(lines(events))
    assert [event["mono_us"] for event in EventFiles(tmp_path, Problems())] == list(range(3 * REORDERED_LINES))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("nonsense", "not JSON: b'nonsense\\n'"),
        ("[]", "not a JSON object"),
        ('{"mono_us": "x", "kind": "fault"}', "event 'fault': mono_us is 'x', not of type int"),
        ('{"mono_us": 1, "kind": "ownership_ended", "group": "g", "reason": "expired"}', "member is None"),
        (
            f'{{"kind": "fetcher_started", {FETCHER}, "partitions": [1], "positions": []}}',
            "must be equally many integers",
        ),
        (f'{{"kind": "produced", {RECORDS}, "first_offset": 2, "last_offset": 1}}', "offsets 2 to 1"),
        (
            (
                f'{{"kind": "delivered", "group": "g", "member": "a", {RECORDS}, '
                '"first_offset": 0, "last_offset": 2, "count": 2}'
            ),
            "2 records, offsets 0 to 2",
        ),
        (f'{{"kind": "repositioned", {FETCHER}, "partitions": [], "positions": []}}', "reason is None"),
        ('{"mono_us": 1, "kind": "x", "generation": "7"}', "generation is '7'"),
    ],
)
def test_an_invalid_line_is_a_problem(tmp_path: Path, line: str, problem: str) -> None:
    (tmp_path / "a.jsonl").write_text(f"{line}\n" + lines(moved().events))
    verdict = check(tmp_path)
    assert not verdict.ok
    assert verdict.problems[0].startswith("a.jsonl, line 1: ")
    assert problem in verdict.problems[0]


def test_files_of_one_process_are_complete_only_with_its_first(tmp_path: Path) -> None:
    """Without this, records whose events were deleted would be called lost."""
    events = moved().events
    (tmp_path / "a-1.jsonl").write_text(lines(events[:3]))
    (tmp_path / "a-1.0001.jsonl").write_text(lines(events[3:5]))
    (tmp_path / "a-1.0002.jsonl").write_text(lines(events[5:]))
    assert check(tmp_path).ok
    (tmp_path / "a-1.0001.jsonl").unlink()
    missing = "a-1.0001.jsonl, which precedes a-1.0002.jsonl, is missing: a process keeps only its last files"
    assert check(tmp_path).problems[0] == missing
    (tmp_path / "a-1.jsonl").rename(tmp_path / "a-1.0001.jsonl")
    assert check(tmp_path).problems[0].startswith("a-1.jsonl, which precedes a-1.0001.jsonl")


def test_what_is_written_while_files_are_read_does_not_count(tmp_path: Path) -> None:
    """In `reading.lines_of`, read to the end: a short file ends before a long one, so its owner would stop too late."""
    started = moved().events[1]
    stopped = {**started, "kind": "fetcher_stopped", "reason": "revoked", "mono_us": 9_000_000}
    others: list[Event] = [{"mono_us": number, "kind": "x"} for number in range(3 * REORDERED_LINES)]
    (tmp_path / "a.jsonl").write_text(lines([started]))
    (tmp_path / "b.jsonl").write_text(lines(others))
    files = iter(EventFiles(tmp_path, Problems()))
    first = next(files)
    for name, event in (("a", stopped), ("b", {**started, "member": "b", "mono_us": 9_000_001})):
        with (tmp_path / f"{name}.jsonl").open("a") as file:
            file.write(lines([event]))
    found = [first, *files]
    assert len(found) == len(others) + 1
    assert judge(found).overlaps == 0


def test_a_file_that_is_deleted_while_they_are_listed_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jsonl").write_text(lines(moved().events))
    found = [tmp_path / "a.jsonl", tmp_path / "gone.jsonl"]
    monkeypatch.setattr(Path, "glob", lambda *_: iter(found))
    assert len(list(EventFiles(tmp_path, Problems()))) == len(moved().events)


def test_a_folder_without_events_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NoEventsError, match=r"contains no event file \(\*\.jsonl\)"):
        check(tmp_path)
    (tmp_path / "a.jsonl").touch()
    with pytest.raises(NoEventsError, match="are empty"):
        check(tmp_path)


@pytest.mark.parametrize(("end", "torn"), [(b"\n", 0), (b"", 1)])
def test_a_line_that_is_too_long_is_not_kept(
    end: bytes, torn: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power failure left zeros. In `reading.lines_of`, read whole lines: 400 MB of them take 850 MB."""
    limit = 4_000
    monkeypatch.setattr(reading, "MAX_LINE_BYTES", limit)
    asked: list[int] = []
    loads = json.loads

    def noting(line: bytes) -> object:
        asked.append(len(line))
        return loads(line)

    monkeypatch.setattr(reading, "json", SimpleNamespace(loads=noting))
    event = b'{"mono_us":1,"kind":"x"}\n'
    for size in (limit, 3 * limit, 3 * limit + 1):
        problems = Problems()
        (tmp_path / "a.jsonl").write_bytes(event + b"\0" * size + end + (event if end else b""))
        files = EventFiles(tmp_path, problems)
        assert len(list(files)) == (2 if end else 1)
        assert (files.torn_lines, len(problems.lines())) == (torn, 1 - torn)
    assert max(asked) < limit


def test_a_copy_of_a_file_is_told(tmp_path: Path) -> None:
    """Without this, its consumers start what they own, and get all records again."""
    (tmp_path / "a.jsonl").write_text(lines(moved().events))
    (tmp_path / "b.jsonl").write_text(lines(moved().events[:3]))
    problem = "b.jsonl begins as a.jsonl does: if one is a copy, its events count twice"
    assert check(tmp_path).problems[0] == problem


def test_a_file_that_is_deleted_before_it_is_read_is_a_problem(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text(lines([{"mono_us": 1, "kind": name}]))
    problems = Problems()
    files = EventFiles(tmp_path, problems)
    (tmp_path / "a.jsonl").unlink()
    assert [event["kind"] for event in files] == ["b"]
    assert problems.lines() == ("a.jsonl was deleted before it was read: a process keeps only its last files",)


@pytest.mark.parametrize(("order", "is_told"), [("mono_us", True), ("ts_us", False)])
def test_lines_of_several_processes_one_after_the_other_are_told(order: str, is_told: bool, tmp_path: Path) -> None:
    """Without this, a second process seems to begin when the first one has ended."""
    events: list[Event] = [{"mono_us": number, "kind": "x"} for number in range(2 * REORDERED_LINES)]
    (tmp_path / "a.jsonl").write_text(lines(events + events))
    problems = Problems()
    assert len(list(EventFiles(tmp_path, problems, order=order))) == 2 * len(events)
    text = f"a.jsonl: lines come more than {REORDERED_LINES} lines late, so events are judged in a wrong order"
    assert [line.startswith(text) for line in problems.lines()] == [True] * is_told
