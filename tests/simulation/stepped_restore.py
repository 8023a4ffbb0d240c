"""The real restore of a tree, call by call, on a ZooKeeper in memory; between its calls, others go on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import cast
from unittest import mock

from greenlet import GreenletExit, greenlet

from tests.simulation.operators import Disk
from tests.support.zk_model import Change, ZkModel
from zkrebalancer.operations import backup
from zkrebalancer.operations.backup import RestoreLostError, RestoreRefusedError
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Call, Delete, Multi, Operation, Refusal, Reply
from zkrebalancer.protocol.refusals import require_expected
from zkrebalancer.protocol.requests import DEFAULT_LIMIT, RequestLimit
from zkrebalancer.runtime.zk import BlockingZk

LOST = 0.5  # share of the restores before which all groups are lost
KILLED, MAX_KILLS = 0.05, 3  # of one restore, after each of its calls
MAX_TRIES = 40
FILE = Path("kept")


@contextmanager
def in_memory(draw: Random) -> Iterator[None]:
    """Keep backups in memory, and make restores read and write little at once in some runs."""
    with (
        mock.patch.object(backup, "backup_file", Disk()),
        mock.patch.object(backup, "MAX_READS", draw.choice((3, 200))),
        mock.patch.object(backup, "MAX_WRITES", draw.choice((2, 200))),
    ):
        yield


def _nothing(_count: int, _total: int | None) -> None:
    pass


class SteppedRestore:
    """One run of `zkrebalancer restore`; `move` makes its next call. It replaces `BlockingZk`."""

    request_limit: RequestLimit = DEFAULT_LIMIT

    def __init__(self, zk: ZkModel) -> None:
        self._zk = zk
        self.session = zk.open()
        self.is_over = self.is_complete = False
        self._greenlet = greenlet(self._run)

    def move(self) -> None:
        self._greenlet.switch()

    def kill(self) -> None:
        """End the process, and its session."""
        self.is_over = True
        if self._greenlet:
            self._greenlet.throw(GreenletExit)
        self._zk.kill(self.session)

    def _run(self) -> None:
        try:
            backup.restore(
                cast("BlockingZk", self), FILE, overwrite=True, adopt_topics=False, now_ms=0, progress=_nothing
            )
            self.is_complete = True
        except (RestoreRefusedError, RestoreLostError):
            pass
        self.is_over = True

    def perform(self, call: Call, expected: Collection[Refusal] = ()) -> Reply:
        return self.perform_all([call], expected)[0]

    def perform_all(self, many: Sequence[Call], expected: Collection[Refusal] = ()) -> list[Reply]:
        if greenlet.getcurrent() is self._greenlet:
            assert self._greenlet.parent is not None
            self._greenlet.parent.switch()
        if self.is_over:
            raise GreenletExit
        replies = [self._zk.perform(call, self.session.session_id) for call in many]
        for call, reply in zip(many, replies, strict=True):
            require_expected(call, reply, expected)
        return replies


class RepeatedRestore:
    """What an operator does to whom everybody has been stopped: a backup, and restores until one is complete."""

    def __init__(self, zk: ZkModel, draw: Random) -> None:
        self._zk, self._draw = zk, draw
        self.kills = self._tries = 0
        self._first_barred: int | None = None  # id of the first session that began while the restore was not complete
        self.is_partial = False  # whether a part is written
        keeper = SteppedRestore(zk)
        backup.back_up(cast("BlockingZk", keeper), FILE, 0, _nothing)
        keeper.kill()
        if draw.random() < LOST:
            below = [path for path in zk.nodes if path.startswith(f"{paths.GROUPS}/")]
            zk.perform(Multi(tuple(map(Delete, sorted(below, reverse=True)))))
        self._current = SteppedRestore(zk)
        self._observe, zk.observe = zk.observe, self._committed

    @property
    def is_barred(self) -> bool:
        """Whether everybody who comes has to wait."""
        return paths.RESTORE in self._zk.nodes

    @property
    def is_complete(self) -> bool:
        return self._current.is_complete

    def move(self) -> bool:
        """Make the next call, and perhaps die; return whether somebody may have to be stopped for the next try."""
        current = self._current
        current.move()
        if not current.is_over and self.kills < MAX_KILLS and self._draw.random() < KILLED:
            current.kill()
            self.kills += 1
        if current.is_complete:
            self._zk.observe = self._observe
        if current.is_complete or not current.is_over:
            return False
        self._tries += 1
        assert self._tries <= MAX_TRIES, "no restore completes"
        self._zk.kill(current.session)
        self._current = SteppedRestore(self._zk)
        return True

    def _committed(self, session_id: int, operations: tuple[Operation, ...], changes: tuple[Change, ...]) -> None:
        """Check that sessions that began during a restore write nothing below `groups` before it is complete."""
        if self._observe is not None:
            self._observe(session_id, operations, changes)
        written = [change.path for change in changes if change.path.startswith(f"{paths.GROUPS}/")]
        is_own = session_id == self._current.session.session_id
        self.is_partial |= is_own and bool(written)
        if not self.is_barred:
            self._first_barred = None
        elif self._first_barred is None:
            self._first_barred = len(self._zk.sessions) + 1
        elif session_id >= self._first_barred and not is_own:
            assert not written, f"{written[0]} in a part of a tree: written by session {session_id}"
