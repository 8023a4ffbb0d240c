"""A child process behind its two pipes: large frames, closed ends, and its end."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from consumer_agent.errors import ConsumerError
from consumer_agent.records import Record
from consumer_agent.sidecar.child import Child, ChildEndedError, command_line
from consumer_agent.sidecar.frames import Ack, Frame, FrameError, JsonLines
from tests.support.deadlines import WITHIN_S
from zkrebalancer.localcluster.processes import began
from zkrebalancer.protocol.errors import ConfigurationError

WAIT_S = WITHIN_S
LARGE = Record("t", 0, 0, None, b"x" * 5_000_000, (), None, 1)
ANSWERS = """
import json, sys
for line in sys.stdin:
    place = json.loads(line)["record"]
    print(json.dumps({"ack": {key: place[key] for key in ("topic", "partition", "offset")}}), flush=True)
"""


@contextmanager
def running(program: str, *arguments: object) -> Iterator[Child]:
    child = Child([sys.executable, "-c", program, *map(str, arguments)], JsonLines())
    try:
        yield child
    finally:
        child.kill()


def until_it_ends(child: Child) -> tuple[list[Frame], str]:
    """Exchange until the child has ended; return what it has said, and how it ended."""
    frames: list[Frame] = []
    give_up_s = time.monotonic() + WAIT_S
    while time.monotonic() < give_up_s:
        try:
            for frame in child.exchange(0.1):
                frames.append(frame)  # noqa: PERF402  # those before an error count
        except ChildEndedError as error:
            return frames, str(error)
    raise AssertionError("it has not ended")


def test_a_large_record_reaches_the_child_whole() -> None:
    with running(ANSWERS) as child:
        child.send(child.codec.record(LARGE))
        frames: list[Frame] = []
        give_up_s = time.monotonic() + WAIT_S
        while not frames and time.monotonic() < give_up_s:
            frames = list(child.exchange(0.1))
        assert frames == [Ack(("t", 0), 0)]


def test_a_child_that_does_not_read_holds_nobody_up() -> None:
    with running("import time; time.sleep(3600)") as child:
        child.send(child.codec.record(LARGE))
        assert list(child.exchange(0.0)) == []


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("raise SystemExit(3)", "ended with exit status 3"),
        ("import os; os.kill(os.getpid(), 11)", "was killed by SIGSEGV"),
        ("import os; os.kill(os.getpid(), 40)", "was killed by signal 40"),  # Python has no name for it
        ("import os, time; os.close(0); time.sleep(3600)", "closed its input"),
        ("import os, time; os.close(1); time.sleep(3600)", "closed its output"),
    ],
)
@pytest.mark.parametrize("size", [0, 5_000_000])
def test_how_a_child_ends(program: str, reason: str, size: int) -> None:
    with running(program) as child:
        child.send(b"x" * size)
        assert until_it_ends(child) == ([], f"the child {reason}")


def test_what_a_child_has_said_before_its_end_is_heard() -> None:
    said = """print('{"ack": {"topic": "t", "partition": 0, "offset": 7}}', flush=True); raise SystemExit(1)"""
    with running(said) as child:
        assert until_it_ends(child) == ([Ack(("t", 0), 7)], "the child ended with exit status 1")


def test_what_a_child_has_said_is_heard_although_it_has_left_its_input_unread() -> None:
    """It answers one record and ends, while the agent is still writing the next."""
    with running(ANSWERS.replace("flush=True)", "flush=True); break")) as child:
        child.send(child.codec.record(LARGE._replace(value=b"x")) + b"x" * 5_000_000)
        assert until_it_ends(child) == ([Ack(("t", 0), 0)], "the child ended with exit status 0")


def test_what_a_child_has_said_before_nonsense_is_heard() -> None:
    said = """print('{"ack": {"topic": "t", "partition": 0, "offset": 7}}\\nHello\\n', flush=True); input()"""
    with running(said) as child:
        frames = child.exchange(WAIT_S)
        assert next(frames) == Ack(("t", 0), 7)
        with pytest.raises(FrameError, match="'Hello'"):
            next(frames)


def test_the_end_of_its_input_ends_a_child_in_good_order(tmp_path: Path) -> None:
    tidy = "import sys; from pathlib import Path; sys.stdin.read(); print('x' * 1_000_000); Path(sys.argv[1]).touch()"
    with running(tidy, tmp_path / "tidy") as child:
        give_up_s = time.monotonic() + WAIT_S
        child.end(lambda: time.monotonic() > give_up_s)
        assert (tmp_path / "tidy").exists()


@pytest.mark.parametrize("then", ["sys.stdin.read(); p.wait()", "os._exit(1)"], ids=["running", "ended"])
def test_what_a_child_has_started_is_killed_with_it(tmp_path: Path, then: str) -> None:
    pid = tmp_path / "pid"
    starts = "import os, subprocess, sys; p = subprocess.Popen(['sleep', '3600']); f = open(sys.argv[1], 'w')"
    with running(f"{starts}; f.write(f'{{p.pid}} '); f.close(); {then}", pid) as child:
        give_up_s = time.monotonic() + WAIT_S
        while not (pid.exists() and pid.read_text().endswith(" ")):
            assert time.monotonic() < give_up_s
        if "exit" in then:
            assert until_it_ends(child) == ([], "the child ended with exit status 1")
        child.kill()
        while began(int(pid.read_text())) is not None:
            assert time.monotonic() < give_up_s


def test_ctrl_c_in_a_terminal_does_not_reach_it() -> None:
    """Else it would die with what it has in hand, before the agent lets it finish."""
    with running("import sys; sys.stdin.read()") as child:
        pid = child._process.pid
        assert os.getpgid(pid) == pid != os.getpgrp()


@pytest.mark.parametrize("text", ["", "  ", "no-such-program", "sh -c 'open"])
def test_a_command_that_cannot_be_run_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        command_line(text)
    assert "\n" not in str(refused.value)


def test_a_child_that_may_not_be_killed_is_told_as_such_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `--exec "sudo …"`. As it was: "the output cannot be written: Operation not permitted"."""

    def refuse(_group: int, _signal: int) -> None:
        raise PermissionError

    with running("import sys; sys.stdin.read()") as child:
        monkeypatch.setattr(os, "killpg", refuse)
        with pytest.raises(ConsumerError, match="the child is another user's and may not be killed"):
            child.kill()
        child.kill()  # its caller cleans up after an error, too
        assert child._process.wait(WAIT_S) == 0  # its input has ended


def test_a_part_of_a_child_that_may_not_be_killed_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a shell before `sudo`: to kill a group succeeds as soon as one process of it may be killed."""
    killpg = os.killpg

    def kill_some(group: int, number: int) -> None:
        if not number:
            raise PermissionError
        killpg(group, number)

    with running("import sys; sys.stdin.read()") as child:
        monkeypatch.setattr(os, "killpg", kill_some)
        with pytest.raises(ConsumerError, match="the child is another user's and may not be killed"):
            child.kill()
        child.kill()
        assert child._process.returncode == -signal.SIGKILL


def test_what_was_killed_hides_no_process_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Child.kill`, ask once: until init has reaped a second shell, the group may be signalled."""
    killpg, answers = os.killpg, iter([None, None, PermissionError()])

    def kill_some(group: int, number: int) -> None:
        if number:
            killpg(group, number)
        elif error := next(answers):
            raise error

    with running("import sys; sys.stdin.read()") as child:
        monkeypatch.setattr(os, "killpg", kill_some)
        with pytest.raises(ConsumerError, match="the child is another user's and may not be killed"):
            child.kill()


def test_the_first_process_of_a_container_reaps_what_it_killed() -> None:
    """In `Child._wait_for_rest`, leave orphans to init, which this process is there."""
    prctl, set_child_subreaper = ctypes.CDLL(None).prctl, 36
    assert prctl(set_child_subreaper, 1, 0, 0, 0) == 0
    try:
        with running("import os, time; os.fork(); print(flush=True); time.sleep(60)") as child:
            assert child._poll.poll(WAIT_S * 1_000)
            child.kill()
            with pytest.raises(ProcessLookupError):
                os.killpg(child._process.pid, 0)
    finally:
        prctl(set_child_subreaper, 0, 0, 0, 0)
