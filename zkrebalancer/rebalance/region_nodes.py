"""A region's order and containers: reads the order, and makes anew what is foreign, or what somebody has deleted.

Who deletes a region may do so node by node. A region without members is made anew only when nothing has been deleted
for a while: otherwise its leader would make nodes anew while the others are deleted, and no deletion would succeed.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from zkrebalancer.protocol import fields, paths
from zkrebalancer.protocol.calls import (
    Children,
    Content,
    Create,
    Done,
    Get,
    ListChildren,
    Operation,
    Refusal,
    Refused,
    Reply,
    SetContent,
)
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.rebalance.scheduler import ANY, PartScheduler
from zkrebalancer.rebalance.view import GroupView
from zkrebalancer.region import documents
from zkrebalancer.region.documents import Order
from zkrebalancer.region.leader import made_anew

MAX_QUARANTINED_BYTES = 10_000
MISSING_PAUSE_US = 30_000_000  # of a region without members; also before what may not be made is tried again
TRACES = ("merged", "contributions", "initial")  # one has children as soon as the region has read, or has had a round


@dataclass(slots=True)
class _Traces:
    """Whether there was an order before the one that is missing."""

    missing: int = len(TRACES)
    names: list[str] = field(default_factory=list)
    is_whole: bool = True  # otherwise somebody has deleted a container: members make all of them at first


class RegionNodes:
    """The order and the containers of one group's region."""

    def __init__(
        self,
        scheduler: PartScheduler,
        view: GroupView,
        found: Callable[[Order, int], None],
        begin_later: Callable[[], None],
        known_merge: Callable[[], list[Operation]],
    ) -> None:
        """`found` gets the order and its version; `begin_later` has the region read again.

        `known_merge`: returns what makes the last complete checkpoint anew, as far as it is known.
        """
        self._scheduler = scheduler
        self._view = view
        self._found, self._begin_later, self._known_merge = found, begin_later, known_merge
        self._has_members = False  # none was registered when they were last listed
        self.had_order = False  # under this leadership
        self._is_settled = False  # nothing has been deleted for a while
        self._missing: list[str] = []  # while it waits for that
        self._is_missed = False  # a container was not there when it was read, so that it has no watch

    def _path(self, kind: str | None = None) -> str:
        return paths.region(self._view.group, kind)

    # ---- the order

    def read_order(self) -> None:
        """Read the order; make it if there is none, and anew if it was lost."""
        self._scheduler.ask(Get(self._path("order")), self._order_read)

    def _order_read(self, reply: Reply) -> None:
        if not isinstance(reply, Content):
            traces = _Traces()
            for kind in TRACES:
                self._scheduler.ask(ListChildren(self._path(kind)), self._trace_read, traces)
            return
        path = self._path("order")
        try:
            order = documents.decode_order(reply.content)
        except NodeContentError as error:
            why = error if reply.content else "it was deleted"
            self._scheduler.complain(path, f"{path}: {why}; it is made anew")
            self._scheduler.ask(ListChildren(self._path("merged")), self._make_anew, reply)
            return
        self.had_order = True
        self._found(order, reply.stat.version)

    def _trace_read(self, reply: Reply, traces: _Traces) -> None:
        """Begin if the region is new; else make an empty order, whose transaction has a number above all former ids.

        Each id was given by one transaction, but only the deleted node's version told how many there were.
        """
        traces.missing -= 1
        traces.names += reply.names if isinstance(reply, Children) else ()
        traces.is_whole = traces.is_whole and isinstance(reply, Children)
        if traces.missing:
            return
        content = b"" if traces.names or self.had_order else documents.encode_order(Order())
        if content and traces.is_whole:
            self._make_order(content)
        else:
            self._scheduler.ask(ListChildren(self._path("members"), watch=True), self._members_listed, content)

    def _members_listed(self, reply: Reply, content: bytes) -> None:
        """Make a lost order anew for those who are registered, or when no deletion is under way."""
        if (isinstance(reply, Children) and reply.names) or self._is_settled:
            self._make_order(content)
        else:
            self._wait(["order"])

    def _make_order(self, content: bytes) -> None:
        self._scheduler.write([Create(self._path("order"), content)], self._order_made)

    def _order_made(self, reply: Reply) -> None:
        if isinstance(reply, Refused) and reply.refusal is not Refusal.NODE_EXISTS:
            self._begin_later()
        else:
            self.read_order()

    def _make_anew(self, reply: Reply, foreign: Content) -> None:
        """Replace foreign bytes, and keep a copy of them."""
        names, stat = reply.names if isinstance(reply, Children) else (), foreign.stat
        at_least = stat.version if foreign.content else stat.created_zxid
        write = SetContent(self._path("order"), documents.encode_order(made_anew(names, at_least)), stat.version)
        if not foreign.content:
            self._scheduler.write([write], self._order_made)
            return
        encoded = base64.b64encode(foreign.content[:MAX_QUARANTINED_BYTES]).decode()
        copy = fields.write_document({"reason": "no order of a region", "content_base64": encoded})
        path = paths.quarantine(self._view.group, hashlib.sha256(foreign.content).hexdigest()[:32])
        self._scheduler.write([Create(path, copy), write], self._made_anew, write)

    def _made_anew(self, reply: Reply, write: SetContent) -> None:
        if isinstance(reply, Done):
            self.read_order()
        else:  # the same bytes were quarantined before
            self._scheduler.write([write], self._order_made)

    # ---- what somebody deletes

    def look(self) -> None:
        """Look whether a node is missing, now and whenever one is deleted: whoever uses it would wait for ever."""
        self._scheduler.ask(ListChildren(self._path(), watch=True), self._listed)

    def look_for_missed(self) -> None:
        """Look because a container was not there when it was read; once it is there, the region is read again."""
        self._is_missed = True
        self.look()

    def members_read(self, *, has_members: bool) -> None:
        """Look again if nodes are missing and members need them."""
        self._has_members = has_members
        if self._has_members and self._scheduler.has_timer("region-missing"):
            self.look()

    def _wait(self, missing: list[str]) -> None:
        if missing == self._missing and self._scheduler.has_timer("region-missing"):
            return  # nothing has been deleted since
        self._missing = missing
        self._scheduler.wake("region-missing", self._scheduler.now.mono_us + MISSING_PAUSE_US, self._waited)

    def _waited(self) -> None:
        if self._view.settings.starts_paused:  # so does a command that deletes the group
            self._wait(self._missing)
        else:
            self._is_settled = True
            self.look()

    def _listed(self, reply: Reply) -> None:
        if not isinstance(reply, Children):
            self._is_settled = False
            return  # the region is gone
        missing = [self._path(kind) for kind in paths.REGION_CHILDREN if kind not in reply.names]
        if not missing and "order" in reply.names:
            self._is_settled = False
            self._scheduler.cancel_wake("region-missing")
            if self._is_missed:
                self._is_missed = False
                self._begin_later()
        elif self._has_members or self._is_settled:
            self._make_missing(missing)
            if "order" not in reply.names:
                self._begin_later()
        else:
            self._wait(missing)

    def _make_missing(self, missing: list[str]) -> None:
        for path in missing:
            self._scheduler.complain(path, f"{path}: it was deleted; it is made anew")
            for create in (Create(path), *(self._known_merge() if path == self._path("merged") else ())):
                self._scheduler.write([create], self._container_made, create, expected=ANY)

    def _container_made(self, reply: Reply, create: Operation) -> None:
        """Read the region again, because its watches went with the container; or name a missing right, and try later.

        Only what was made is read again: what may not be made would have the region read again for ever.
        """
        if not isinstance(reply, Refused) or reply.refusal is Refusal.NODE_EXISTS:
            self._is_missed = False
            self._begin_later()
        elif reply.refusal is not Refusal.NO_NODE:
            self._scheduler.note_refused(create, reply.refusal)
            self._wait([create.path])
