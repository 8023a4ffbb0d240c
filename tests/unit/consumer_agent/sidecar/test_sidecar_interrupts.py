"""A signal, or an exception, at any point of the sidecar: what counts as finished was acknowledged; no child is left.

The child is a real process; Kafka's client and the consumer's threads are the test's.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias, cast
from unittest import mock

import pytest

from consumer_agent import Consumer
from consumer_agent.config import ConsumerConfig
from consumer_agent.runtime.notices import Tell
from consumer_agent.sidecar import sidecar as module
from consumer_agent.sidecar.dead_letters import DeadLetters, LetterFile, LetterTopic
from consumer_agent.sidecar.run_counts import RunCounts
from consumer_agent.sidecar.sidecar import Sidecar, SidecarSettings, StoppedInFlightError
from tests.support.deadlines import WITHIN_S
from tests.unit.consumer_agent.runtime.interrupts import (
    COUNT,
    PARTITION,
    Interrupt,
    Interrupted,
    RevokingSetting,
    Signal,
    uninterrupted,
)

BAD = 3  # the record that the child cannot process
PLACE = '"topic":"orders","partition":0,"offset":'
ANSWERS = rf"""
s/^.*{PLACE}({BAD}),.*/{{"fail":{{{PLACE}\1,"reason":"bad"}}}}/
s/^.*{PLACE}([0-9]+),"timestamp.*/{{"ack":{{{PLACE}\1}}}}/
s/^.*"revoke"/{{"revoked"/
"""


class SidecarSetting(RevokingSetting):
    """A sidecar that ends by itself when all records are finished; its child answers each record at once."""

    def __init__(self, folder: Path) -> None:
        self.finished: dict[Any, int] = {}
        super().__init__()
        self.folder, self.count, self.polls = folder, 0, 0
        self.script = folder / "answers.sed"
        self.given, self.letters_path = folder / "given", folder / "letters"
        for path in (self.given, self.letters_path):
            path.unlink(missing_ok=True)
        self.script.write_text(f"w {self.given}\n{ANSWERS}")
        self.children: list[subprocess.Popen[bytes]] = []
        self.letters = self.new_letters()
        finish = self.consumer.finish
        consumer: Any = self.consumer
        consumer.finish = lambda offsets: self._note_finished(finish, offsets)
        consumer.subscribe = self._subscribe
        settings = SidecarSettings(command=f"sed -E -u -f {shlex.quote(str(self.script))}", max_failures=1)
        self.sidecar = Sidecar(settings, consumer, self.letters, lambda: self.count, RunCounts(), self._polled)

    def new_letters(self) -> DeadLetters:
        return LetterFile(self.letters_path, "g")

    def written_letters(self) -> list[int]:
        return [json.loads(line)["record"]["offset"] for line in self.letters_path.read_text().splitlines()]

    def made(self, **settings: Any) -> Consumer:
        return Consumer(**settings, enable_auto_finish=False)

    def _note_finished(self, finish: Callable[[Mapping[Any, int]], None], offsets: Mapping[Any, int]) -> None:
        self.finished |= offsets
        finish(offsets)

    def _subscribe(self, *, on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        self.frontend._callbacks = {Tell.ASSIGNED: on_assign, Tell.REVOKE: on_revoke, Tell.LOST: on_lost}
        self.shared.tell(Tell.ASSIGNED, [PARTITION])

    def _polled(self) -> None:
        self.polls += 1
        assert self.polls < 10_000, "it goes on for ever"
        self.fetcher_round()
        self.count += self.finished == {PARTITION: COUNT} and not self.count

    def run(self) -> None:
        self.sidecar.run({})

    def _holds_letters(self) -> bool:
        """Whether the file of letters is still open; another thread may have got its descriptor meanwhile."""
        try:
            letters: Any = self.letters
            return os.path.samestat(os.fstat(letters._file), self.letters_path.stat())
        except OSError:
            return False

    def check(self) -> int:
        """Check what is left; return how many records are finished."""
        for process in self.children:
            process.wait(WITHIN_S)
        if self.children:  # else it has not begun
            assert not self._holds_letters()
        finished = self.finished.get(PARTITION, 0)
        given = (
            [int(offset) for offset in re.findall(r'"offset":(\d+)', self.given.read_text())]
            if self.given.exists()
            else []
        )
        assert set(given) >= set(range(finished))
        assert len(given) == len(set(given))
        letters = self.written_letters()
        assert letters in ([], [BAD])
        assert letters or finished <= BAD
        return finished


class LetterProducer:
    """Kafka's client for letters: a broker confirms them between two polls, and `flush` waits for that."""

    def __init__(self, *_: object, **__: object) -> None:
        self.sent: list[tuple[int, Callable[[None, None], None]]] = []
        self.confirmed: list[int] = []

    def list_topics(self, topic: str, **_: float) -> SimpleNamespace:
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None)})

    def produce(
        self, _topic: str, *_: object, headers: list[tuple[str, bytes]], on_delivery: Any, **__: object
    ) -> None:
        self.sent.append((int(dict(headers)["dead_letter.offset"]), on_delivery))

    def poll(self, _timeout_s: float) -> None:
        while self.sent:
            offset, on_delivery = self.sent.pop(0)
            self.confirmed.append(offset)
            on_delivery(None, None)

    flush = poll


class TopicSetting(SidecarSetting):
    """The same, with letters in a topic. No file is open."""

    def new_letters(self) -> DeadLetters:
        config = ConsumerConfig(zookeeper="z:1", bootstrap="b:1", group="g")
        with mock.patch("consumer_agent.sidecar.dead_letters.Producer", LetterProducer):
            letters = LetterTopic("dead", config)
        self.producer = cast("LetterProducer", letters._producer)
        return letters

    def written_letters(self) -> list[int]:
        return self.producer.confirmed

    def _holds_letters(self) -> bool:
        return False


New: TypeAlias = Callable[[type[SidecarSetting]], SidecarSetting]


@pytest.fixture
def new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> New:
    current: list[SidecarSetting] = []

    class Popen(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            current[-1].children.append(self)

    # Python's own, interrupted, forgets the process that it has begun; no handler of the sidecar's signals raises.
    monkeypatch.setattr(
        "consumer_agent.sidecar.child.subprocess.Popen", lambda *words, **rest: uninterrupted(Popen, *words, **rest)
    )
    monkeypatch.setattr(module, "BUSY_POLL_S", 0.0)  # the test plays the fetcher between two polls
    monkeypatch.setattr(module, "IDLE_POLL_S", 0.0)

    def make(kind: type[SidecarSetting]) -> SidecarSetting:
        current.append(kind(tmp_path))
        return current[-1]

    return make


OF_EACH_DESTINATION = pytest.mark.parametrize("kind", [SidecarSetting, TopicSetting])
STRIDES = [pytest.param(1, marks=pytest.mark.long), 101]


@pytest.mark.parametrize("stride", STRIDES)
@OF_EACH_DESTINATION
@pytest.mark.parametrize("signals", [1, 2])
def test_after_a_signal_only_what_the_child_has_acknowledged_is_finished(
    new: New, kind: type[SidecarSetting], signals: int, stride: int
) -> None:
    """Two of them end the child at once."""
    ends = set[int]()
    for at in range(1, 100_000, stride):
        setting = new(kind)

        def note() -> None:
            setting.count += signals  # noqa: B023

        signal = Signal(at, note)
        with suppress(StoppedInFlightError):
            signal.during(setting.run)
        assert setting.frontend._is_ended
        ends.add(setting.check())
        if signal.points < at:
            break
    assert ends >= {0, COUNT}


@pytest.mark.parametrize("stride", STRIDES)
@OF_EACH_DESTINATION
def test_an_exception_leaves_no_child_and_no_record_that_was_not_acknowledged(
    new: New, kind: type[SidecarSetting], stride: int
) -> None:
    interrupted = 0
    for at in range(1, 100_000, stride):
        setting = new(kind)
        interrupt = Interrupt(at)
        try:
            interrupt.during(setting.run)
        except Interrupted:
            interrupted += 1
            setting.consumer.close()
        assert setting.frontend._is_ended
        setting.check()
        if interrupt.points < at:
            break
    assert interrupted


@OF_EACH_DESTINATION
def test_an_exception_just_before_the_child_is_ended_leaves_no_child(
    new: New, kind: type[SidecarSetting], monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = new(kind)

    def interrupted() -> None:
        raise Interrupted

    monkeypatch.setattr(setting.sidecar, "_end", interrupted)
    with pytest.raises(Interrupted):
        setting.run()
    assert setting.check() == COUNT


def test_a_child_whose_poll_was_interrupted_can_be_killed(new: New) -> None:
    """In `Child._reap`, call `Popen.wait`: the lock that the interrupt has left is never released."""
    setting = new(SidecarSetting)
    setting.sidecar._start()
    child = setting.sidecar._child
    assert child is not None
    with child._process._waitpid_lock:  # type: ignore[attr-defined]
        setting.in_own_thread(child.kill)
    assert child._process.returncode == -signal.SIGKILL
