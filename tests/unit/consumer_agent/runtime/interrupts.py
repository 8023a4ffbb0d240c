"""A consumer whose threads a test replaces, and something that happens at a point of a call of it.

Python calls a signal's handler where a function begins, after a call of C, and where a loop goes back. A profiler and a
tracer find each of these points in turn.
"""

from __future__ import annotations

import dis
import gc
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any, TypeVar

import pytest
from confluent_kafka import Message, TopicPartition

from consumer_agent import Consumer
from consumer_agent.membership.events import (
    Abandoned,
    CloseRequested,
    CommitRequested,
    Event,
    Revoked,
    StoredRequested,
)
from consumer_agent.runtime.engine import Engine
from consumer_agent.runtime.notices import Tell
from consumer_agent.runtime.usage import _calling
from tests.support.deadlines import WITHIN_S
from tests.unit.consumer_agent.messages import messages

HERE = str(Path(__file__).parent)
CHANGING_NOTHING = ("/signal.py", "/enum.py", "/mock.py", "/inspect.py")
PARTITION = ("orders", 0)
COUNT = 12
ORDERS = SimpleNamespace(topics={"orders": SimpleNamespace(partitions={0: SimpleNamespace(leader=1)})})
T = TypeVar("T")
JUMPS_BACK = frozenset(code for name, code in dis.opmap.items() if "JUMP_BACKWARD" in name)


class Interrupted(BaseException):
    """Stands for what a signal's handler raises."""


class Interrupt:
    """Raises in this thread at the points with these numbers; counts the points on the way."""

    def __init__(self, *at: int) -> None:
        self.at, self.points = at, 0

    def _point(self) -> None:
        self.points += 1
        if self.points in self.at:
            raise Interrupted

    def profile(self, frame: FrameType, event: str, _argument: object) -> None:
        if event in {"call", "c_return"} and _has_points(frame, is_called=event == "call"):
            self._point()

    def trace(self, frame: FrameType, event: str, _argument: object) -> Any:  # as typeshed has it
        if event == "call":
            if not (_jumps_back(frame.f_code) and _has_points(frame)):
                return None  # what it calls is traced even so
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode" and frame.f_lasti in _jumps_back(frame.f_code):
            self._point()
        return self.trace

    def during(self, call: Callable[[], T]) -> T:
        """Call; Python drops what is raised in a deallocation, and telling that would be interrupted, too."""
        told, sys.unraisablehook = sys.unraisablehook, _tell_nobody
        sys.settrace(self.trace)
        sys.setprofile(self.profile)
        try:
            return call()
        finally:
            sys.setprofile(None)
            sys.settrace(None)
            sys.unraisablehook = told
            _release_logs()


@contextmanager
def no_longer_than(limit_s: float) -> Iterator[None]:
    """Raise if it takes longer, also in what cleans up: a thread that waits for itself would wait for ever."""

    def over(*_: object) -> None:
        raise AssertionError(f"it waits for more than {limit_s:g} s")

    former = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, limit_s, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


def _tell_nobody(_: object) -> None: ...


def _release_logs() -> None:
    """Release what an interrupt within `logging` has left locked; other threads of this process would wait for ever."""
    for reference in logging._handlerList:  # type: ignore[attr-defined]
        handler = reference()
        while handler is not None and handler.lock is not None and handler.lock._is_owned():
            handler.release()


_JUMPS_BACK: dict[int, tuple[CodeType, frozenset[int]]] = {}  # by the code's id: its hash is computed at each look


def _jumps_back(code: CodeType) -> frozenset[int]:
    """Return where loops go back; found once for each code, of which `co_code` makes a copy."""
    known = _JUMPS_BACK.get(id(code))
    if known is None:
        instructions = code.co_code
        jumps = (at for at in range(0, len(instructions), 2) if instructions[at] in JUMPS_BACK)
        known = _JUMPS_BACK[id(code)] = (code, frozenset(jumps))  # with the code, so that its id stays its own
    return known[1]


def _has_points(frame: FrameType, *, is_called: bool = False) -> bool:
    """Leave out the test's own calls, and thousands of points in code that changes nothing."""
    code = frame.f_code
    is_test = is_called and code.co_filename.startswith(HERE)
    return (
        not is_test
        and code.co_name not in {"_code_of", "uninterrupted"}
        and not code.co_filename.endswith(CHANGING_NOTHING)
    )


def uninterrupted(call: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Call what another thread or process would do, or the test itself."""
    profile, trace = sys.getprofile(), sys.gettrace()
    sys.setprofile(None)
    sys.settrace(None)
    try:
        return call(*arguments, **options)
    finally:
        sys.settrace(trace)
        sys.setprofile(profile)


class Signal(Interrupt):
    """Calls a function at one point, as Python calls a signal's handler there."""

    def __init__(self, at: int, handler: Callable[[], object]) -> None:
        super().__init__(at)
        self._handler = handler

    def _point(self) -> None:
        self.points += 1
        if self.points in self.at:
            self._handler()


class Client:
    """Kafka's client above a log of COUNT records; it hands over where it was assigned, in its own order of calls."""

    def __init__(self) -> None:
        self.next: int | None = None

    def consume(self, count: int, **_: float) -> list[Message]:
        if self.next is None:
            return []
        offsets = range(self.next, min(COUNT, self.next + count))
        self.next = offsets.stop
        return [one for at in offsets for one in messages(PARTITION, [at], str(at).encode())]

    def poll(self, *_: float) -> None: ...

    def close(self) -> None: ...

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self.next = partitions[0].offset

    def incremental_unassign(self, _partitions: list[TopicPartition]) -> None:
        self.next = None

    def list_topics(self, *_: str, **__: float) -> SimpleNamespace:
        return ORDERS


class Setting:
    """A consumer with one partition, whose threads the test replaces: it does their work between calls."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.sent: list[Event] = []
        self.due: list[Tell] = []  # callbacks that were taken
        self.iterator: Iterator[object] = iter(())
        self.client = Client()
        with pytest.MonkeyPatch.context() as patch:  # mocks would take most of the time
            patch.setattr("consumer_agent.kafka.fetcher.KafkaConsumer", lambda *_, **__: self.client)
            patch.setattr(Engine, "start", lambda _: None)
            self.consumer = self.made(zookeeper="z:1", bootstrap="b:1", group="g", max_poll_records=5)
            self.consumer.subscribe(["orders"], on_assign=self._note("assign"), on_revoke=self._note("revoke"))
            self.consumer.poll(0.0)
        self.frontend = self.consumer._frontend
        assert self.frontend._dropped is not None
        self.frontend._dropped.detach()  # it would keep the engine, and with `_machine` this: gigabytes in a long run
        self.shared = self.frontend.shared
        machine_thread = self.frontend.machine_thread
        assert machine_thread is not None
        machine_thread.send = self._machine  # type: ignore[method-assign]
        machine_thread.join = lambda *_: None  # type: ignore[method-assign]
        self.shared.emit_until(2**60)
        self.shared.admit(PARTITION, 1, 0)
        assert self.frontend._fetcher is not None
        self.fetcher = self.frontend._fetcher.current
        self.fetcher.change(lambda: {PARTITION: 0})
        self.fetcher_round()

    def made(self, **settings: Any) -> Consumer:
        """Make the consumer."""
        return Consumer(**settings)

    def _note(self, what: str) -> Callable[[list[tuple[str, int]]], None]:
        return lambda partitions: self.told.append((what, len(partitions)))

    def _machine(self, event: Event) -> None:
        self.sent.append(event)
        if isinstance(event, CommitRequested):
            self.shared.commit_finished([event.token], None)
        elif isinstance(event, StoredRequested):
            self.shared.answer(event.token, {}, None)
        elif isinstance(event, Abandoned | CloseRequested):
            self.shared.become_closed()

    def fetcher_round(self) -> None:
        """Do what the fetcher's thread does when it is woken; it must not be locked out."""
        assert self.fetcher._in_client.acquire(blocking=False)
        self.fetcher._begin_round()
        self.fetcher._in_client.release()

    def read_all(self) -> list[int]:
        """Return the offsets of all records that come now."""
        offsets: list[int] = []
        for _ in range(COUNT // 2 + 2):  # a poll takes 5 of them
            offsets += [record.offset for record in self.consumer.poll(0.0)]
            self.in_own_thread(self.fetcher_round)
        return offsets

    @staticmethod
    def in_own_thread(call: Callable[[], object]) -> None:
        """Call what another thread does: what the application's thread has left locked locks that out."""
        failures: list[BaseException] = []

        def run() -> None:
            try:
                call()
            except AssertionError as failure:
                failures.append(failure)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join(WITHIN_S)
        assert not thread.is_alive()
        assert failures == []

    def check_counts(self) -> None:
        """What the buffer counts is what it holds."""
        buffer = self.shared.buffer
        held = list(buffer._partitions.values())
        in_chunks = sum(len(chunk.messages) - chunk.taken for one in held for chunk in one.chunks)
        assert buffer.retained_count == in_chunks == sum(one.count for one in held)
        assert buffer.record_count == sum(one.count for one in held if one.wanted)
        assert set(buffer._ready) == {tp for tp, one in buffer._partitions.items() if one.count and one.wanted}


def interrupted_at_each_point(
    call: Callable[[Setting], object],
    prepare: Callable[[Setting], object] = lambda _: None,
    again_after: int = 0,
    *,
    kind: type[Setting] = Setting,
    stride: int = 1,
) -> Iterator[tuple[Setting, object, bool]]:
    """Make a setting for each point of a call, and interrupt it there; at last it is not interrupted.

    With `again_after`, it is interrupted again so many points later, while it cleans up. With `stride`, only some
    points are tried.
    """
    for at in range(1, 100_000, stride):
        setting = kind()
        prepare(setting)
        interrupt = Interrupt(at, *[at + again_after] * bool(again_after))
        result, is_interrupted, marks = None, False, _calling.get()
        gc.collect(0)
        try:
            result = interrupt.during(lambda: call(setting))  # noqa: B023
        except Interrupted:
            is_interrupted = True
        assert not setting.shared.changed.is_held
        assert gc.isenabled()
        if not again_after:
            setting.check_counts()
            assert _calling.get() == marks  # else the caller counts as a callback, and marks gather here
        yield setting, result, is_interrupted
        if interrupt.points < at:
            assert not is_interrupted
            assert at > 20
            return
    raise AssertionError("it has no end")


class RevokingSetting(Setting):
    """As `Setting`, but `close` first gives up the partition: it waits for `on_revoke`."""

    def _machine(self, event: Event) -> None:
        if isinstance(event, CloseRequested):
            self.shared.stop([PARTITION])
            self.shared.tell(Tell.REVOKE, [PARTITION], 7)
        elif isinstance(event, Revoked):
            self.shared.become_closed()
        else:
            super()._machine(event)
