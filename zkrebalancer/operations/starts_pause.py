"""Pauses starts of a group while its offsets are written from outside.

A consumer that registers meanwhile must not start at an offset that is about to be replaced. The pause is a setting of
the group, whose version every command checks. Each transaction that writes offsets renews it, which fails if it is no
longer in force. The coordinator ends a pause that is not renewed for a while (`rebalance/expiry.py`), so a killed
operation does not stop the group for long, and one that was too slow can write no more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from uuid import uuid4

import gevent

from zkrebalancer.operations import audit
from zkrebalancer.operations.gateway_members import members_at_gateways
from zkrebalancer.operations.nodes import members_of_region, names_below
from zkrebalancer.protocol import last_change, paths, settings
from zkrebalancer.protocol.calls import (
    ABSENT,
    CHANGED,
    Check,
    Content,
    Done,
    Get,
    Multi,
    Operation,
    Refusal,
    SetContent,
)
from zkrebalancer.protocol.errors import NodeContentError, RebalancerError
from zkrebalancer.protocol.last_change import LastChange
from zkrebalancer.runtime import clock
from zkrebalancer.runtime.zk import BlockingZk

MAX_WRITES_PER_TRANSACTION = 500
RENEW_AFTER_S = 10.0  # without a write, so that several slow readings do not exceed the coordinator's limit together
MAX_SILENT_S = 30.0  # without a write: half of the coordinator's limit
CLEANUP_TIMEOUT_S = 1.0
CLEANUP_INTERVAL_S = 0.05
_log = logging.getLogger(__name__)


class OffsetsRefusedError(RebalancerError):
    """The group has consumers, or may have changed while its offsets were written; nothing more was written."""


@dataclass(slots=True)
class Pause:
    """A pause of starts; each write renews it."""

    group: str
    node: Content  # the former settings; only their version has changed since
    change: LastChange  # what the pause is for
    version: int = field(init=False)
    has_written: bool = field(default=False, init=False)  # an operation, with which it was renewed
    has_asked_kafka: bool = field(default=False, init=False)  # to store offsets: an interrupt leaves in doubt if it did
    name: str = field(default_factory=lambda: uuid4().hex)
    _written_us: int = field(default=0, init=False)  # when it was renewed last

    def __post_init__(self) -> None:
        self.version = self.node.stat.version

    def renew(self, zk: BlockingZk) -> None:
        """Renew the pause after a reading that may have taken long; raises as `write`."""
        if self._silent_s >= RENEW_AFTER_S:
            self.write(zk)

    @property
    def _silent_s(self) -> float:
        return (clock.steady_us() - self._written_us) / 1e6

    def require_recent(self) -> None:
        """Raise OffsetsRefusedError if the coordinator may have ended the pause while this process was suspended.

        For writes to Kafka, which checks nothing: consumers may run by then, and would lose what they have committed.
        It cannot help if the process is suspended later, while the Kafka client still holds the request.
        """
        if self._silent_s > MAX_SILENT_S:
            text = f"the pause of starts of group {self.group} may be over, as this process was suspended"
            raise OffsetsRefusedError(f"{text}: nothing more is written to Kafka; try again")
        self.has_asked_kafka = True

    def write(
        self, zk: BlockingZk, waiting: list[Operation] | None = None, guards: Mapping[str, Check] | None = None
    ) -> None:
        """Renew the pause, and perform with it as many of the operations as fit, taking them from the list.

        `guards`: parent of a node -> what has to be true when the node is written.

        Raises:
            OffsetsRefusedError: the group or its offsets changed meanwhile.
            ZooKeeperRefusedError: a node may not be written.

        """
        waiting = [] if waiting is None else waiting
        paused = settings.paused(self.node.content, f"{self.name}/{self.version}")
        content = last_change.noted(paused, self.change, self.version)
        renewal = SetContent(paths.group(self.group), content, self.version)
        guarded = [*_guarded(waiting[:MAX_WRITES_PER_TRANSACTION], guards or {})]
        fitting = zk.request_limit.fitting(guarded, (renewal,))
        if fitting and isinstance(guarded[fitting - 1], Check):  # what it guards did not fit
            fitting = fitting - 1 or 2  # alone, it would write nothing: the request may be too large instead
        asked_us = clock.steady_us()
        reply = zk.perform(Multi((renewal, *guarded[:fitting])), {*CHANGED, Refusal.NOT_EMPTY})
        if not isinstance(reply, Done):
            raise OffsetsRefusedError(f"group {self.group} changed while its offsets were written; try again")
        del waiting[: sum(not isinstance(done, Check) for done in guarded[:fitting])]
        self.has_written = self.has_written or fitting > 0
        self.version += 1
        self._written_us = asked_us


def _guarded(operations: Iterable[Operation], guards: Mapping[str, Check]) -> Iterator[Operation]:
    """Yield the operations, each guard before the first one that needs it."""
    left = dict(guards)
    for operation in operations:
        guard = left.pop(operation.path.rpartition("/")[0], None)
        if guard is not None:
            yield guard
        yield operation


@contextmanager
def starts_paused(zk: BlockingZk, group: str, what: str) -> Iterator[Pause]:
    """Pause starts while the block runs, and check first that the group still has no consumers.

    `what`: what is done meanwhile, for the group's last change.

    Raises:
        OffsetsRefusedError: it has some, its settings changed, or coordinators could not read the pause in them.
        ZooKeeperRefusedError: a node of the group may not be read or written.

    """
    pause = Pause(group, _read_settings(zk, group), audit.change(what))
    _refuse_invalid_settings(pause)
    try:
        pause.write(zk)
        refuse_consumers(zk, group)
        yield pause
    except BaseException as error:
        if pause.has_written or (pause.has_asked_kafka and not isinstance(error, RebalancerError)):
            warn_of_a_half(group)
        with suppress(RebalancerError):  # the first error says why nothing was written
            _resume(zk, pause)
        raise
    _resume(zk, pause)


def warn_of_a_half(group: str) -> None:
    """Tell the operator that some offsets of a group are new, and others are not."""
    _log.warning("group %s: cut off half-way: repeat this before the consumers of the group start", group)


def refuse_consumers(zk: BlockingZk, group: str) -> None:
    """Raise OffsetsRefusedError if the group has consumers, ZooKeeperRefusedError if they may not be listed.

    The leader removes what consumers leave behind that have just ended; this waits for it for CLEANUP_TIMEOUT_S. Then
    a channel alone belongs to nobody: a consumer creates and loses it together with the nodes that are read after it.
    Members at gateways and of a region count, and may take as long to leave.
    """
    give_up_s = time.monotonic() + CLEANUP_TIMEOUT_S
    while True:
        channels = names_below(zk, paths.channel(group))
        live, owners = names_below(zk, paths.ids(group)), names_below(zk, paths.owners(group))
        evicted = names_below(zk, paths.evicted(group))
        is_late = time.monotonic() > give_up_s
        if live or (owners and is_late):
            names = ", ".join((live or owners)[:3])
            raise OffsetsRefusedError(f"group {group} has consumers ({names}); stop them first")
        if evicted and is_late:
            text = "their leases may not be over; try again once a coordinator has removed them"
            raise OffsetsRefusedError(f"group {group} has evicted consumers ({', '.join(evicted[:3])}): {text}")
        if is_late or not (owners or evicted or channels):
            in_region, at_gateways = members_of_region(zk, group), members_at_gateways(zk, group)
            if not (in_region or at_gateways):
                return
            if in_region and is_late:
                names = ", ".join(in_region[:3])
                raise OffsetsRefusedError(f"group {group} has members of a region ({names}); stop them first")
            if is_late:
                raise OffsetsRefusedError(at_gateways)
        gevent.sleep(CLEANUP_INTERVAL_S)


def _read_settings(zk: BlockingZk, group: str) -> Content:
    node = zk.perform(Get(paths.group(group)), ABSENT)
    if not isinstance(node, Content):
        raise OffsetsRefusedError(f"group {group} was deleted meanwhile")
    return node


def _is_in_force(pause: Pause, node: Content) -> bool:
    try:
        return settings.is_paused_by(node.content, f"{pause.name}/")
    except NodeContentError:
        return False  # somebody has replaced the settings


def _refuse_invalid_settings(pause: Pause) -> None:
    try:
        settings.decode(pause.node.content)
    except NodeContentError as error:
        path = paths.group(pause.group)
        raise OffsetsRefusedError(f"{path}: {error}; coordinators ignore a pause there: correct it first") from None


def _resume(zk: BlockingZk, pause: Pause) -> None:
    """End the pause, if it is still this one; if the settings change at that moment, the coordinator does it later."""
    node = zk.perform(Get(paths.group(pause.group)), ABSENT)
    if isinstance(node, Content) and _is_in_force(pause, node):
        content = last_change.noted(settings.resumed(node.content), pause.change, node.stat.version)
        zk.perform(Multi((SetContent(paths.group(pause.group), content, node.stat.version),)), CHANGED)
