"""A signal's handler calls the consumer at any point of `poll`, `commit` and `close` of the same thread.

What can be served is served; anything else raises at once. Nothing waits for itself, and no record is lost or doubled.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pytest

from consumer_agent.errors import ConsumerError
from consumer_agent.membership.events import Event
from consumer_agent.runtime.notices import Tell
from tests.unit.consumer_agent.runtime.interrupts import COUNT, PARTITION, Setting, Signal, no_longer_than

MAX_POINTS = 10_000
LIMIT_S = 20.0
STRIDE = 23  # between the points of a sample
SHOWING = ("metrics", "assignment", "position", "finished", "generation", "paused", "known_lag")


class SlowSetting(Setting):
    """Its machine thread answers only while the application waits."""

    def __init__(self) -> None:
        self.unanswered: list[Event] = []
        super().__init__()
        self.consumer._frontend.shared.changed.wait_for_change = self._wait  # type: ignore[method-assign]

    def _machine(self, event: Event) -> None:
        self.unanswered.append(event)

    def _wait(self, changes: int, timeout_s: float | None) -> None:
        if self.shared.changed.changes == changes and timeout_s != 0:
            assert self.unanswered, "it waits, and nothing is to come"
            answered, self.unanswered = self.unanswered, []
            for event in answered:
                super()._machine(event)


Call = Callable[[SlowSetting], object]

CALLS: Mapping[str, Call] = {
    "poll": lambda one: one.consumer.poll(0.0),
    "poll some": lambda one: one.consumer.poll(0.0, max_records=3),
    "commit": lambda one: one.consumer.commit(),
    "commit_async": lambda one: one.consumer.commit_async(on_commit=lambda _: None),
    "committed": lambda one: one.consumer.committed(),
    "seek": lambda one: one.consumer.seek({PARTITION: 7}),
    "pause": lambda one: one.consumer.pause([PARTITION]),
    "resume": lambda one: one.consumer.resume([PARTITION]),
    "finish": lambda one: one.consumer.finish({PARTITION: 2}),
    "subscribe": lambda one: one.consumer.subscribe(["orders", "more"]),
    "unsubscribe": lambda one: one.consumer.unsubscribe(),
    "close": lambda one: one.consumer.close(),
    **{name: lambda one, name=name: getattr(one.consumer, name)() for name in SHOWING},  # type: ignore[misc]
}
LEAVING = {"close", "unsubscribe"}
INTERRUPTED = ("poll", "commit", "commit_async", "committed", "seek", "pause", "close")


@dataclass
class Handler:
    """The handler of a signal, which calls the consumer once."""

    setting: SlowSetting
    name: str
    result: object = None
    refusal: ConsumerError | None = None

    def __call__(self, *_: object) -> None:
        try:
            self.result = CALLS[self.name](self.setting)
        except ConsumerError as error:
            self.refusal = error


def handled_at_each_point(
    name: str, handled: str, first: int, stride: int
) -> Iterator[tuple[SlowSetting, Handler, list[int]]]:
    """Make a setting for each point of a call, and let a handler call the consumer there."""
    for at in range(first, MAX_POINTS, stride):
        setting = SlowSetting()
        offsets: list[int] = []
        if name != "poll":
            setting.shared.tell(Tell.ASSIGNED, [PARTITION])
            offsets = [record.offset for record in setting.consumer.poll(0.0, max_records=2)]
        handler = Handler(setting, handled)
        point = Signal(at, handler)
        former = signal.signal(signal.SIGUSR2, handler)
        try:
            with no_longer_than(LIMIT_S):
                result = point.during(lambda: CALLS[name](setting))  # noqa: B023
        except ConsumerError:  # the handler has closed the consumer
            assert handled in LEAVING
            result = ()
        finally:
            signal.signal(signal.SIGUSR2, former)
        if point.points < at:
            assert at > STRIDE
            return
        offsets += [record.offset for record in result] if name == "poll" else []  # type: ignore[attr-defined]
        yield setting, handler, offsets
    raise AssertionError("it has no end")


def check(setting: SlowSetting, handler: Handler, offsets: list[int]) -> None:
    """Whatever was called, the consumer goes on, and has all records in order."""
    assert not setting.shared.changed.is_held
    setting.check_counts()
    if handler.name in SHOWING:
        assert handler.refusal is None
    if handler.name in LEAVING and handler.refusal is None:
        setting.consumer.close()
        assert setting.frontend._is_ended or handler.name == "unsubscribe"
        return
    if setting.frontend.is_closed:
        setting.consumer.close()
        assert setting.frontend._is_ended
        return
    if setting.consumer.paused():
        setting.consumer.resume([PARTITION])
    setting.in_own_thread(setting.fetcher_round)
    position = setting.consumer.position()[PARTITION]
    rest = setting.read_all()
    if handler.name.startswith("poll") and handler.refusal is None:
        offsets = sorted(offsets + [record.offset for record in handler.result])  # type: ignore[attr-defined]
    assert rest == list(range(position, COUNT))
    if handler.name == "seek" and handler.refusal is None:
        assert position == 7 or offsets[-1:] == [position - 1]
    elif position != 7:
        assert offsets + rest == list(range(COUNT))
    setting.consumer.commit()
    assert setting.consumer.finished() == {PARTITION: COUNT}


@pytest.mark.long
@pytest.mark.parametrize("handled", CALLS)
@pytest.mark.parametrize("name", INTERRUPTED)
def test_a_handler_calls_the_consumer_at_any_point(name: str, handled: str) -> None:
    for setting, handler, offsets in handled_at_each_point(name, handled, 1, 1):
        check(setting, handler, offsets)


@pytest.mark.parametrize("handled", CALLS)
@pytest.mark.parametrize("name", INTERRUPTED)
def test_a_handler_calls_the_consumer_at_some_points(name: str, handled: str) -> None:
    for setting, handler, offsets in handled_at_each_point(name, handled, 1 + len(handled), STRIDE):
        check(setting, handler, offsets)
