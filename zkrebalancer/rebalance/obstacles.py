"""Publishes why groups are stuck, so that `groups describe --state` can show it from outside.

The node is ephemeral and names the leader's epoch, because a former leader's obstacles do not apply now. It is
written only when something changes, at most once in PUBLISH_INTERVAL_US.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Create, Delete, Operation, Refusal, Refused, Reply
from zkrebalancer.protocol.obstacles import (
    BACKING_OFF,
    MAX_OBSTACLES,
    MAX_REASON,
    QUARANTINED,
    REFUSED,
    UNAPPROVED,
    PublishedObstacle,
    encode,
)
from zkrebalancer.rebalance.quarantine import Quarantine
from zkrebalancer.rebalance.scheduler import Scheduler, Waiting

OWNER = "/obstacles"  # no group has such a name
PUBLISH_INTERVAL_US = 1_000_000
OF_A_FORMER_LEADER = frozenset({Refusal.NODE_EXISTS, Refusal.NO_NODE})

Published = tuple[list[PublishedObstacle], int]  # the latter: how many more there are
NOTHING: Published = ([], 0)


class Obstacles:
    """The obstacles that one leader publishes."""

    def __init__(self, scheduler: Scheduler, quarantine: Quarantine, path: str) -> None:
        """Publish nothing before `begin`, and then at `path`."""
        self._path = path
        self._scheduler = scheduler
        self._quarantine = quarantine
        self._own = scheduler.part(OWNER)
        self._epoch: int | None = None  # None: not leading
        self._exists = False  # whether the node may exist
        self._published: Published | None = NOTHING  # None: unknown
        self._shown: list[tuple[str, Any]] = []  # contents of the node: kind, and group or (path, right)
        self._is_writing = False

    def begin(self, epoch: int) -> None:
        """Start publishing, or continue after a broken connection, when the outcome of a write is unknown."""
        self._own.forget()
        if epoch != self._epoch:
            self._epoch, self._exists, self._published = epoch, False, NOTHING
        elif self._is_writing:
            self._exists, self._published = True, None
        self._is_writing = False
        self.look()

    def end(self) -> None:
        """Stop publishing."""
        self._own.forget()
        self._epoch = None

    def look(self) -> None:
        """Publish changes, if any, after a delay that gathers further ones."""
        if self._epoch is None:
            return
        if self._scheduler.refusals.known and not self._own.has_timer("refused"):
            self._forget_refused()
        known = self._scheduler
        is_any = bool(known.refusals.known or known.backing_off or known.unapproved or self._quarantine.out)
        may_differ = is_any or self._published != NOTHING  # not compared here, as there may be thousands
        if may_differ and not self._is_writing and not self._own.has_timer("publish"):
            self._own.wake("publish", self._own.now.mono_us + PUBLISH_INTERVAL_US, self._publish)

    def _forget_refused(self) -> None:
        refusals = self._scheduler.refusals
        count = len(refusals.known)
        at_us = refusals.forget(self._own.now.mono_us)
        self._scheduler.is_news = self._scheduler.is_news or len(refusals.known) < count
        if at_us is not None:
            self._own.wake("refused", at_us, self._forget_refused)

    def _now(self) -> Published:
        """Return the obstacles to show, and the number of all others.

        Plans that wait for an operator come first. Others that were shown before stay as long as they apply, so that
        neither work nor changes grow with their total number.
        """
        sources: dict[str, Mapping[Any, Any]] = {
            UNAPPROVED: self._scheduler.unapproved,  # first, as `groups resume` reads them here
            QUARANTINED: self._quarantine.out,
            REFUSED: self._scheduler.refusals.known,
            BACKING_OFF: self._scheduler.backing_off,
        }
        shown = [(kind, name) for kind, name in self._shown if name in sources[kind]]
        waiting = {name for kind, name in shown if kind == UNAPPROVED}
        missing = min(len(sources[UNAPPROVED]), MAX_OBSTACLES) - len(waiting)
        too_many = max(0, missing + len(shown) - MAX_OBSTACLES)
        others = [each for each in shown if each[0] != UNAPPROVED]
        gone = set(others[len(others) - too_many :])
        shown = [each for each in shown if each not in gone]
        for kind, source in sources.items():
            known = {name for other, name in shown if other == kind}
            first = islice(source, MAX_OBSTACLES)  # enough: those already shown take up room as well
            new = [(kind, name) for name in first if name not in known]
            shown += new[: MAX_OBSTACLES - len(shown)]
        self._shown = shown
        found = [to_publish(kind, name, sources[kind][name]) for kind, name in shown]
        found.sort(key=lambda each: (each.group or "", each.kind, each.path or ""))
        return found, sum(map(len, sources.values())) - len(shown)

    def _publish(self) -> None:
        now = self._now()
        if self._epoch is None or self._is_writing or now == self._published:
            return
        operations: list[Operation] = [Delete(self._path)] if self._exists else []
        if now != NOTHING:
            operations.append(self._create(self._epoch, now, operations))
        if operations:
            self._is_writing = True
            self._own.write(operations, self._written, now, expected=OF_A_FORMER_LEADER)

    def _create(self, epoch: int, now: Published, before: list[Operation]) -> Create:
        """Return the operation that fits: if paths of other programs' nodes are too long, they are only counted."""
        found, more = now
        while True:
            create = Create(self._path, encode(epoch, found, more), ephemeral=True)
            if self._own.room([*before, create]) >= 0 or not found:
                return create
            kept = set(sorted(found, key=lambda each: len(each.path or ""))[: len(found) // 2])
            found, more = [each for each in found if each in kept], more + len(found) - len(kept)

    def _written(self, reply: Reply, now: Published) -> None:
        self._is_writing = False
        if isinstance(reply, Refused):  # left by a former leader, or deleted by someone else
            self._exists = reply.refusal is Refusal.NODE_EXISTS
            self._published = None if self._exists else NOTHING
        else:
            self._published, self._exists = now, now != NOTHING
        if self._now() != self._published:
            self.look()


def to_publish(kind: str, name: Any, what: Any) -> PublishedObstacle:  # noqa: ANN401  # of four dictionaries
    """Return what to publish of an entry of one of the leader's dictionaries."""
    if kind == UNAPPROVED:
        return unapproved(name, what)
    if kind != REFUSED:
        return PublishedObstacle(name, kind, what[:MAX_REASON])
    (path, right), (refusal, _at_us) = name, what
    missing = right if refusal is Refusal.NO_AUTH else None
    return PublishedObstacle(group_of(path), REFUSED, refusal.value, path, missing)


def unapproved(group: str, waiting: Waiting) -> PublishedObstacle:
    """Return why a group waits for an operator."""
    reason = f"it would move {waiting.moves} partitions"
    return PublishedObstacle(group, UNAPPROVED, reason, moves=waiting.moves, generation=waiting.generation)


def group_of(path: str) -> str | None:
    """Return the group to which a path belongs; None if it affects all groups."""
    name, _, _rest = path.removeprefix(f"{paths.GROUPS}/").partition("/")
    return name if path.startswith(f"{paths.GROUPS}/") else None
