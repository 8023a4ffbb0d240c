"""A process in which an operator runs a command: the real operation, in a greenlet that waits in virtual time.

It replaces only the client's waiting (`BlockingZk`), the pauses between two looks, and clocks. The process may be
killed, interrupted or suspended, lose its connection or be refused, at any of its calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from greenlet import GreenletExit, getcurrent, greenlet

from tests.simulation.ensemble import Ensemble
from tests.simulation.host import Host
from tests.simulation.network import LONG_SLOW_US, VERY_SLOW_US, Connection
from tests.simulation.refusing import Refusing
from tests.simulation.schedule import Schedule
from zkrebalancer.operations import audit, backup, group_lifecycle, starts_pause
from zkrebalancer.operations.backup_file import Node
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import (
    Call,
    Connected,
    Content,
    Create,
    Delete,
    Get,
    ListChildren,
    Refusal,
    Refused,
    Replied,
    Reply,
    SetContent,
)
from zkrebalancer.protocol.errors import RebalancerError, ZooKeeperUnavailableError
from zkrebalancer.protocol.refusals import require_expected
from zkrebalancer.protocol.requests import DEFAULT_LIMIT, RequestLimit
from zkrebalancer.runtime.zk import BlockingZk

SESSION_MS = 10_000
THINK_US = (50, 3_000)  # between a reply and the next call
TROUBLES = ("kill", "kill", "kill", "kill later", "interrupt", "drop", "lose", "slow", "suspend", "refuse")
TROUBLE_PROBABILITY = 0.6
TROUBLE_AFTER_WRITE = 0.6
MAX_WAITS = 16  # of them, trouble begins at one
SOON_US = 4_000
SUSPENDED_US = (100_000, 100_000_000)  # also longer than a pause of starts lasts without its operation
REFUSED_US = 3_000_000

Command = Callable[[BlockingZk], object]


class OperatorHost(Host):
    """One run of a command."""

    def __init__(self, name: str, schedule: Schedule, seed: int, ensemble: Ensemble, command: Command) -> None:
        super().__init__(name, schedule, seed)
        self.ensemble = ensemble
        self.versions: dict[str, int] = {}  # path -> version that it has read or written last
        self.written: dict[str, bytes] = {}  # path -> content that it has written last
        self.is_restoring = False  # it puts the whole tree back
        self.may_skip = False  # its operator has said that records before the offsets that it writes are done
        self.connection = Connection(ensemble, self, SESSION_MS, self._handle, reads_together=False)
        self._command = command
        self._greenlet = _Run(self)
        self._has_begun = False
        self._awaited: dict[int, Call] = {}
        self._replies: dict[int, Reply] = {}
        self._next_id = 0
        self._waits = 0
        draw = self.random
        self._trouble = draw.choice(TROUBLES) if draw.random() < TROUBLE_PROBABILITY else ""
        self._trouble_at = draw.randint(1, draw.randint(1, MAX_WAITS))
        self._is_writing_first = draw.random() < TROUBLE_AFTER_WRITE  # the waits before its first write do not count

    # The schedule's side --------------------------------------------------------------------------------------------

    def _handle(self, event: object) -> None:
        if isinstance(event, Connected) and not self._has_begun:
            self._has_begun = True
            self.after(self.random.randrange(*THINK_US), self._go_on)
        elif isinstance(event, Replied) and (call := self._awaited.pop(event.call_id, None)) is not None:
            self._replies[event.call_id] = event.reply
            if isinstance(call, Get) and isinstance(event.reply, Content):
                self.versions[call.path] = event.reply.stat.version
            if not self._awaited:
                self.after(self.random.randrange(*THINK_US), self._go_on)

    def _go_on(self) -> None:
        if not self._greenlet.dead:
            self._greenlet.switch()

    def _throw(self, error: type[BaseException]) -> None:
        if self._greenlet and not self._greenlet.dead:
            self.tell(f"is ended by {error.__name__}")
            if error is GreenletExit:
                self.kill()
            self._greenlet.throw(error)

    def kill(self) -> None:
        super().kill()
        self.connection.drop()

    # The command's side ---------------------------------------------------------------------------------------------

    def run_command(self) -> None:
        """Run the command to its end; the greenlet's function."""
        try:
            self._command(cast("BlockingZk", OperatorZk(self)))
            self.tell("is done")
        except RebalancerError as error:
            self.tell(f"fails: {type(error).__name__}: {error}")
        except KeyboardInterrupt:
            self.tell("is interrupted")
        finally:
            if self.alive:
                self.connection.close()
                super().kill()

    def ask(self, many: Sequence[Call]) -> list[Reply]:
        """Make calls and wait for all replies."""
        self._meet_trouble()
        asked = range(self._next_id + 1, self._next_id + len(many) + 1)
        self._next_id += len(many)
        self._awaited = dict(zip(asked, many, strict=True))
        for call_id, call in zip(asked, many, strict=True):
            if self.schedule.tells:
                self.tell(f"-> {call}")
            self.connection.request(call_id, call)
        while self._awaited:
            self._wait()
        return [self._replies.pop(call_id) for call_id in asked]

    def sleep(self, seconds: float) -> None:
        self._meet_trouble()
        until_us = self.schedule.now_us + int(seconds * 1_000_000)
        self.after(until_us - self.schedule.now_us, self._go_on)
        while self.schedule.now_us < until_us:
            self._wait()

    def _wait(self) -> None:
        parent = self._greenlet.parent
        assert parent is not None
        parent.switch()

    def _meet_trouble(self) -> None:
        """Die, if dead; meet what the seed has in store for this call."""
        if not self.alive:
            raise GreenletExit
        self._waits += bool(self.written) or not self._is_writing_first
        if not self._trouble or self._waits != self._trouble_at:
            return
        self._waits += 1  # once
        self.tell(f"meets trouble: {self._trouble}")
        soon_us = self.random.randrange(SOON_US)
        if self._trouble == "kill":
            self.kill()
            raise GreenletExit
        if self._trouble == "kill later":
            self.after(soon_us, self._throw, GreenletExit)
        elif self._trouble == "interrupt":
            self.after(soon_us, self._throw, KeyboardInterrupt)
        elif self._trouble == "suspend":
            self.schedule.after(soon_us, self._sleep_long)
        else:
            self._trouble_connection(soon_us)

    def _trouble_connection(self, soon_us: int) -> None:
        if self._trouble == "drop":
            self.after(soon_us, self.connection.break_off)
        elif self._trouble == "lose":
            self.connection.loses_next_reply = True
        elif self._trouble == "slow":
            self.connection.slow_down(LONG_SLOW_US, VERY_SLOW_US)
        else:
            refusal = self.random.choice((Refusal.NO_AUTH, Refusal.QUOTA_EXCEEDED))
            kinds = self.random.choice(((Create, SetContent, Delete), (Get, ListChildren)))
            self.connection.refusing = Refusing(kinds, paths.GROUPS, refusal, self.schedule.now_us + REFUSED_US)

    def _sleep_long(self) -> None:
        if self.alive:
            self.suspend()
            self.connection.heard_or_not()
            self.schedule.after(self.random.randrange(*SUSPENDED_US), self._wake_up)

    def _wake_up(self) -> None:
        self.resume()
        self.connection.heard_or_not()


class _Run(greenlet):
    """The greenlet of one command."""

    def __init__(self, host: OperatorHost) -> None:
        super().__init__(host.run_command)
        self.host = host


class OperatorZk:
    """Replaces `BlockingZk`."""

    def __init__(self, host: OperatorHost) -> None:
        self._host = host

    @property
    def request_limit(self) -> RequestLimit:
        most = self._host.ensemble.zk.max_request_bytes
        return DEFAULT_LIMIT if most is None else RequestLimit(most)

    def perform(self, call: Call, expected: Collection[Refusal] = ()) -> Reply:
        return self.perform_all([call], expected)[0]

    def perform_all(self, many: Sequence[Call], expected: Collection[Refusal] = ()) -> list[Reply]:
        replies = self._host.ask(many)
        for call, reply in zip(many, replies, strict=True):
            if isinstance(reply, Refused) and reply.outcome_unknown:
                raise ZooKeeperUnavailableError("the connection broke during a call")
            require_expected(call, reply, expected)
        return replies


class Disk:
    """Replaces `backup_file`: a file appears when it is complete."""

    def __init__(self) -> None:
        self.files: dict[Path, list[Node]] = {}

    def write(self, file: Path, nodes: Iterable[Node], _now_ms: int) -> int:
        self.files[file] = [*nodes]
        return len(self.files[file])

    def check(self, file: Path, _is_left_out: Callable[[str], bool]) -> int:
        return len(self.files[file])

    def taken_at_ms(self, _file: Path) -> int:
        return 0

    def read(self, file: Path) -> Iterator[Node]:
        return iter(self.files[file])


def _host() -> OperatorHost:
    current = getcurrent()
    assert isinstance(current, _Run)
    return current.host


def _name() -> Any:
    return SimpleNamespace(hex=f"{_host().random.getrandbits(64):x}")


@contextmanager
def in_virtual_time(seed: int, disk: Disk) -> Iterator[None]:
    """Let operations sleep and read clocks in virtual time, and make few writes at once in some runs."""
    draw = Random(f"{seed}/operators")
    patches: list[tuple[Any, str, object]] = [
        (starts_pause, "gevent", SimpleNamespace(sleep=lambda seconds: _host().sleep(seconds))),
        (starts_pause, "time", SimpleNamespace(monotonic=lambda: _host().clock_us() / 1e6)),
        (starts_pause, "uuid4", _name),
        (starts_pause, "MAX_WRITES_PER_TRANSACTION", draw.choice((1, 2, 500))),
        (group_lifecycle, "MAX_NODES_AT_ONCE", draw.choice((3, 5_000))),
        (backup, "backup_file", disk),
        (backup, "secrets", SimpleNamespace(token_hex=lambda _bytes: _name().hex)),
        (backup, "MAX_READS", draw.choice((3, 200))),
        (backup, "MAX_WRITES", draw.choice((2, 200))),
        (audit, "clock", SimpleNamespace(epoch_ms=lambda: _host().wall_ms())),
    ]
    with ExitStack() as stack:
        for module, name, value in patches:
            stack.enter_context(mock.patch.object(module, name, value))
        yield
