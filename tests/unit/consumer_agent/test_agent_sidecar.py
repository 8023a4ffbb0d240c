"""The frames of a child process."""

from __future__ import annotations

import sys
import threading

import pytest

from consumer_agent import sidecar
from consumer_agent.batch import Record
from consumer_agent.sidecar import (
    Ack,
    ChildError,
    Fail,
    Revoked,
    Sidecar,
    StoppedInFlightError,
    read_frame,
    record_document,
)

DEAF = f"{sys.executable} -c 'import time; time.sleep(60)'"
FILLS_A_PIPE = Record("t", 0, 0, None, b"x" * 1_000_000, (), None, 1)


def test_a_record_as_a_document() -> None:
    record = Record("t", 1, 9, None, b"\x00\xff", (("h", b"x"), ("empty", None)), 123, 4)
    assert record_document(record) == {
        "topic": "t",
        "partition": 1,
        "offset": 9,
        "timestamp_ms": 123,
        "generation": 4,
        "key_base64": None,
        "value_base64": "AP8=",
        "headers": [["h", "eA=="], ["empty", None]],
    }


def test_frames() -> None:
    assert read_frame(b'{"ack": {"topic": "t", "partition": 0, "offset": 5}}\n') == Ack(("t", 0), 5)
    fail = b'{"fail": {"topic": "t", "partition": 0, "offset": 5, "reason": "no"}}'
    assert read_frame(fail) == Fail(("t", 0), 5, "no")
    assert read_frame(b'{"revoked": {"t": [0, 2]}}') == Revoked(frozenset({("t", 0), ("t", 2)}))


@pytest.mark.parametrize(
    "line",
    [
        b"hello\n",
        b"[]",
        b"{}",
        b'{"done": 1}',
        b'{"ack": 5}',
        b'{"ack": {"topic": "t", "partition": "0", "offset": 5}}',
        b'{"fail": {"topic": "t", "partition": 0, "offset": 5}}',
        b'{"revoked": {"t": 0}}',
        b'{"revoked": {"t": ["0"]}}',
        b"\xff\xfe",
        b"x" * 5_000,
    ],
)
def test_a_line_that_is_no_frame_is_quoted(line: bytes) -> None:
    with pytest.raises(ChildError) as refused:
        read_frame(line)
    text = str(refused.value)
    assert "\n" not in text
    assert line[:20].decode(errors="backslashreplace").rstrip("\n").replace("\\", "\\\\") in text
    assert len(text) < 1_000


def test_a_child_that_does_not_read_cannot_keep_the_agent_from_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidecar, "DRAIN_TIMEOUT_S", 0.1)
    monkeypatch.setattr(sidecar, "END_TIMEOUT_S", 0.1)
    told_to_stop = threading.Event()
    raised: list[type[BaseException]] = []

    def process() -> None:
        try:
            child.process([FILLS_A_PIPE])
        except StoppedInFlightError as error:
            raised.append(type(error))

    with Sidecar(DEAF, told_to_stop.is_set) as child:
        application = threading.Thread(target=process, daemon=True)
        application.start()
        application.join(3 * sidecar.LOOK_INTERVAL_S)
        assert application.is_alive()  # it waits as long as it may
        told_to_stop.set()
        application.join(10)
        assert raised == [StoppedInFlightError]


def test_a_large_record_reaches_the_child_whole() -> None:
    answers = "import sys, json; place = json.loads(sys.stdin.readline())['record']; "
    answers += "print(json.dumps({'ack': {key: place[key] for key in ('topic', 'partition', 'offset')}}), flush=True)"
    with Sidecar(f'{sys.executable} -c "{answers}"', lambda: False) as child:
        child.process([FILLS_A_PIPE])


def test_a_child_that_has_ended_is_told() -> None:
    with (
        Sidecar(f"{sys.executable} -c 'raise SystemExit(3)'", lambda: False) as child,
        pytest.raises(ChildError, match="exit status 3"),
    ):
        child.process([FILLS_A_PIPE])
