"""Regions whose tree is lost and put back: the real restore, call by call, while members and coordinators start.

The operator stops everybody before. The restore may be killed between any two calls; then, and when it is refused
because of somebody who came too early, everybody is stopped, and it is repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from random import Random
from typing import cast
from unittest import mock

from greenlet import GreenletExit, greenlet

from tests.simulation.operators import Disk
from tests.simulation.region import STEPS, RegionRun
from tests.support.zk_model import Change, ZkModel
from zkrebalancer.operations import backup
from zkrebalancer.operations.backup import RestoreLostError, RestoreRefusedError
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Call, Delete, Multi, Operation, Refusal, Reply
from zkrebalancer.protocol.refusals import require_expected
from zkrebalancer.protocol.requests import DEFAULT_LIMIT, RequestLimit
from zkrebalancer.runtime.zk import BlockingZk

RESTORES = 2  # in one run
CALM = 600  # steps without a restore at the end of the faults
MAX_COORDINATORS = 2
MAX_KILLS = 3  # of one restore
LOST = 0.5  # share of the restores before which the group is lost
KILLED, BEGUN, EARLY = 0.03, 0.3, 0.01  # in each step: kill it; let a process start, also before the barrier is there
MAX_TRIES = 40
MOVING = 0.4  # share of the steps in which the restore makes a call
FILE = Path("kept")


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
                cast("BlockingZk", self), FILE, overwrite=True, adopt_topics=False, progress=lambda _count, _total: None
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


class RestoredRun(RegionRun):
    """A run with restores; what concerns them is drawn apart."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.drawn = Random(f"{seed}/restores")
        self.moments = sorted(self.drawn.randrange(STEPS - CALM) for _ in range(RESTORES))
        self.steps = 0
        self.restore: SteppedRestore | None = None
        self.kills = self.tries = 0
        self.disk = Disk()
        self.first_barred: int | None = None  # id of the first session that began while a restore was not complete
        self.world.zk.observe = self.committed

    def run(self) -> None:
        with (
            mock.patch.object(backup, "backup_file", self.disk),
            mock.patch.object(backup, "MAX_READS", self.drawn.choice((3, 200))),
            mock.patch.object(backup, "MAX_WRITES", self.drawn.choice((2, 200))),
        ):
            super().run()

    def step(self) -> None:
        self.steps += 1
        if self.restore is None and self.moments and self.steps >= self.moments[0]:
            self.moments.pop(0)
            self._begin()
        if self.restore is not None:
            self._restore(self.restore)
        super().step()

    def fault(self) -> None:
        if self.restore is None:  # an operator who restores does nothing else
            super().fault()

    def _begin(self) -> None:
        """Stop everybody, take a backup, and perhaps lose the group."""
        self._stop_all()
        keeper = SteppedRestore(self.world.zk)
        backup.back_up(cast("BlockingZk", keeper), FILE, 0, lambda _count, _total: None)
        keeper.kill()
        if self.drawn.random() < LOST:
            below = [path for path in self.world.zk.nodes if path.startswith(f"{paths.GROUPS}/")]
            self.world.evictions_seen.clear()
            self.world.zk.perform(Multi(tuple(map(Delete, sorted(below, reverse=True)))))
        self.restore = SteppedRestore(self.world.zk)
        self.kills = self.tries = 0
        self.seen["restores"] += 1

    def _stop_all(self, *, only_registered: bool = False) -> None:
        for member in self.running():
            if member.member.zxid is not None or not only_registered:
                member.kill()
        for process in self.world.coordinators:
            if process.alive and not only_registered:
                self.world.kill_coordinator(process)

    def _restore(self, restore: SteppedRestore) -> None:
        draw = self.drawn
        is_barred = paths.RESTORE in self.world.zk.nodes
        if draw.random() < (BEGUN if is_barred else EARLY):
            self._start_one()
        if draw.random() < MOVING:
            restore.move()
        if not restore.is_over and self.kills < MAX_KILLS and draw.random() < KILLED:
            restore.kill()
            self.kills += 1
            self.seen["restores killed"] += 1
        if restore.is_complete:
            self.restore = None
            self.seen["restores complete"] += 1
            for _ in range(MAX_COORDINATORS + len(self.names)):
                self._start_one()
        elif restore.is_over:
            self.tries += 1
            assert self.tries <= MAX_TRIES, "no restore completes"
            self.world.zk.kill(restore.session)
            self._stop_all(only_registered=paths.RESTORE in self.world.zk.nodes)  # the others wait
            self.restore = SteppedRestore(self.world.zk)

    def _start_one(self) -> None:
        if sum(process.alive for process in self.world.coordinators) < MAX_COORDINATORS:
            self.world.add_coordinator()
        else:
            self.join()

    def committed(self, session_id: int, _operations: tuple[Operation, ...], changes: tuple[Change, ...]) -> None:
        """Check that nobody writes into a part of a tree who has come while it is restored."""
        if paths.RESTORE not in self.world.zk.nodes:
            self.first_barred = None
        elif self.first_barred is None:
            self.first_barred = len(self.world.zk.sessions) + 1
        elif session_id >= self.first_barred and (
            self.restore is None or session_id != self.restore.session.session_id
        ):
            written = [change.path for change in changes if change.path.startswith(f"{paths.GROUPS}/")]
            assert not written, f"{written[0]} in a part of a tree: written by session {session_id}"

    def _is_restores(self, session_id: int) -> bool:
        return self.restore is not None and session_id == self.restore.session.session_id
