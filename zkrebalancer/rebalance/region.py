"""The leader's part of a group's consistent region: reads its nodes, and carries out what `region.leader` decides.

A group without a region costs one watch. No rebalance waits for a region, and the region's nodes are read without
waiting for a rebalance. An order that fails because another client wrote first is decided again from what is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import (
    Children,
    Content,
    Create,
    Delete,
    Get,
    ListChildren,
    Operation,
    Refusal,
    Refused,
    Reply,
    SetContent,
)
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.numbers import decimal
from zkrebalancer.rebalance.region_nodes import RegionNodes
from zkrebalancer.rebalance.region_writes import RegionWrites
from zkrebalancer.rebalance.round_times import RoundTimes
from zkrebalancer.rebalance.scheduler import ANY, PartScheduler, pause_us
from zkrebalancer.rebalance.view import GroupView
from zkrebalancer.region import documents
from zkrebalancer.region.documents import CHECKPOINT, Merge, Order, Request, Settings
from zkrebalancer.region.leader import Decision, Next, Seen, decide
from zkrebalancer.region.limits import MAX_MEMBERS, MAX_PIECES, MAX_REQUESTS, piece_bytes
from zkrebalancer.region.merge import Answers, ContradictionError

READ_AGAIN_US = 300_000_000  # as a group's RECONCILE_INTERVAL_US
OWN_CHILDREN = ("",)  # stands for the list of the children of a group's own node


class Region:
    """The region of one group, under one leadership."""

    def __init__(self, scheduler: PartScheduler, view: GroupView, is_at_rest: Callable[[], bool]) -> None:
        """Start without a region. `is_at_rest`: whether no plan is wanted, made or carried out."""
        self._scheduler = scheduler
        self._view = view
        self._is_at_rest = is_at_rest
        self._writes = RegionWrites(scheduler, view)
        self._nodes = RegionNodes(scheduler, view, self._order_found, self._begin_later, self._known_merge)
        self._tries = 0  # to write an order, in a row
        self._begun = 0  # how often it was read: a reply to what was written before counts for nothing
        self._staying: set[str] = set()  # requests that cannot be deleted
        self._times = RoundTimes()
        self._forget()

    def _forget(self) -> None:
        self._settings: Settings | None = None
        self.order: Order | None = None
        self._version = -1  # of the order
        self._registered: dict[str, int] = {}
        self._found, self._unread = dict[str, int](), set[str]()  # of those that are listed; 0: not registered
        self._requests: dict[str, Request] = {}
        self._answers: Answers | None = None
        self._merge: Merge | None = None  # of the last complete checkpoint
        self._pieces, self._unread_pieces = list[Merge](), set[str]()  # of it
        self._is_known = False
        self._is_busy = False  # an order is being written
        self.reason = ""  # what the last decision waits for

    # ---- reading

    def begin(self, children: tuple[str, ...]) -> None:
        """Read the region, if the group has one; what was read before is forgotten."""
        self._times.begin(is_busy=self._is_busy)
        self._begun += 1
        self._forget()
        self._writes.forget()
        if "region" in children:
            self._begin_at(self._scheduler.now.mono_us + READ_AGAIN_US)  # a group without consumers is not reconciled
            self._scheduler.ask(Get(self._path(), watch=True), self._settings_read)
        else:
            self._scheduler.cancel_wake("region-anew")
            self._nodes.had_order = False

    def watched(self, path: tuple[str, ...]) -> None:
        """Read what changed: the list of the group's children, or below the region's node."""
        if path == OWN_CHILDREN:
            self._scheduler.ask(ListChildren(paths.group(self._view.group), watch=True), self._children_listed)
        elif path == ("region",):
            self._scheduler.ask(Get(self._path(), watch=True), self._settings_read)
            if self.order is not None:
                self._nodes.look()
        elif path == ("region", "members"):
            if self.order is None and self._scheduler.has_timer("region-missing"):
                self._nodes.read_order()  # it was deleted, and is made anew for members
            self._list_members()
        elif path == ("region", "requests"):
            self._list_requests()
        elif path[1] == "contributions":
            self._list_answers()

    def _children_listed(self, reply: Reply) -> None:
        if isinstance(reply, Children) and (self._settings is None or "region" not in reply.names):
            self.begin(reply.names)

    def _path(self, kind: str | None = None, name: str | None = None) -> str:
        return paths.region(self._view.group, kind, name)

    def _settings_read(self, reply: Reply) -> None:
        if not isinstance(reply, Content) or not reply.content:
            return
        try:
            self._settings = documents.decode_settings(reply.content)
        except NodeContentError as error:
            self._scheduler.complain(self._path(), f"{self._path()}: {error}; its members cannot begin")
            return
        if self.order is None:
            self._nodes.read_order()

    def _order_found(self, order: Order, version: int) -> None:
        self.order, self._version = order, version
        if self._settings is not None:
            self._times.read(order, self._scheduler.now.mono_us, self._settings.reset_ms)
        self._nodes.look()
        self._read_merge()

    def _begin_later(self) -> None:
        """Read the region again after a pause, because another client has changed it; it may be gone by then."""
        self._tries += 1
        self._begin_at(self._scheduler.now.mono_us + pause_us(self._tries))

    def _begin_at(self, at_us: int) -> None:
        self._scheduler.wake("region-anew", at_us, self.begin, ("region",))

    def _read_merge(self) -> None:
        order = self.order
        if order is None:
            return
        names = [f"{order.complete}.{piece}" for piece in range(min(order.pieces, MAX_PIECES))]
        self._pieces, self._unread_pieces = [], set(names)
        for name in names:
            self._scheduler.ask(Get(self._path("merged", name)), self._piece_read, name)
        if not names:
            self._list_members()

    def _piece_read(self, reply: Reply, name: str) -> None:
        if name not in self._unread_pieces:
            return
        self._unread_pieces.discard(name)
        try:
            if isinstance(reply, Content):
                self._pieces.append(documents.decode_merge(reply.content))
            if not self._unread_pieces:
                self._merge = documents.joined_merge(self._pieces)
        except NodeContentError as error:
            self._scheduler.complain(self._path("merged"), f"{self._path('merged')}: {error}")
        if not self._unread_pieces:
            self._list_members()

    def _known_merge(self) -> list[Operation]:
        """Return what makes the merge of the last complete checkpoint anew that somebody has deleted."""
        order, merge = self.order, self._merge
        if merge is None or order is None or merge.id != order.complete:
            return []
        pieces = documents.merge_pieces(merge, piece_bytes(self._scheduler.limit.max_bytes))
        if len(pieces) != order.pieces:  # another leader has stored it, whose requests may be longer or shorter
            return []
        return [Create(self._path("merged", f"{merge.id}.{at}"), content) for at, content in enumerate(pieces)]

    def _list_members(self) -> None:
        if self.order is not None:
            self._scheduler.ask(ListChildren(self._path("members"), watch=True), self._members_listed)

    def _members_listed(self, reply: Reply) -> None:
        """Read all members, because a name that was registered again differs only in its transaction's id."""
        if not isinstance(reply, Children):  # the list may be there again before anybody misses it, without a watch
            self._nodes.look_for_missed()
        names = reply.names[: 2 * MAX_MEMBERS] if isinstance(reply, Children) else ()
        self._found, self._unread = dict.fromkeys(names, 0), set(names)
        for name in names:  # a refused read counts for all lists since then, so that it is repeated only once
            self._scheduler.ask(Get(self._path("members", name)), self._member_read, name)
        self._maybe_members_read()

    def _member_read(self, reply: Reply, name: str) -> None:
        """Note a member. One that is not ephemeral is none, nor is one whose name would make the order unreadable."""
        legal = paths.is_legal_name(name)
        zxid = reply.stat.created_zxid if isinstance(reply, Content) and reply.stat.ephemeral_owner and legal else 0
        if name in self._unread or self._found.get(name, zxid) != zxid:  # two lists may have asked for it
            self._unread.discard(name)
            self._found[name] = zxid
            self._maybe_members_read()

    def _maybe_members_read(self) -> None:
        if self._unread:
            return
        self._registered = {name: zxid for name, zxid in self._found.items() if zxid}
        self._nodes.members_read(has_members=bool(self._registered))
        if self._is_known:
            self.look()
        else:
            self._list_requests()

    def _list_requests(self) -> None:
        if self.order is not None:
            self._scheduler.ask(ListChildren(self._path("requests"), watch=True), self._requests_listed)

    def _requests_listed(self, reply: Reply) -> None:
        if not isinstance(reply, Children):  # as above
            self._nodes.look_for_missed()
        names = reply.names if isinstance(reply, Children) else ()
        self._staying &= set(names)
        wanted = sorted(set(names) - self._staying, key=lambda name: (name.startswith(CHECKPOINT), name))
        names = tuple(wanted[:MAX_REQUESTS])  # those for checkpoints last: they wait for the others
        self._requests = {name: known for name, known in self._requests.items() if name in names}
        for name in names:
            if name not in self._requests:
                self._scheduler.ask(Get(self._path("requests", name)), self._request_read, name)
        if not self._is_known:
            self._is_known = True
            self._list_answers()
        self.look()

    def _request_read(self, reply: Reply, name: str) -> None:
        if not isinstance(reply, Content):
            return
        try:
            self._requests[name] = documents.decode_request(reply.content, reply.stat.created_zxid)
        except NodeContentError as error:
            path = self._path("requests", name)
            self._scheduler.complain(path, f"{path}: {error}; it is deleted")
            self._scheduler.write([Delete(path)], self._deleted, name, expected=ANY)
        self.look()

    def _deleted(self, reply: Reply, name: str) -> None:
        if isinstance(reply, Refused) and reply.refusal is Refusal.NOT_EMPTY:
            self._leave_out(name)

    def _leave_out(self, name: str) -> None:
        """Leave out a request that cannot be deleted, because another program has made a node below it."""
        self._staying.add(name)
        self._requests.pop(name, None)
        self._scheduler.note_refused(Delete(self._path("requests", name)), Refusal.NOT_EMPTY)

    def _list_answers(self) -> None:
        order = self.order
        if order is not None and order.open is not None:
            path = self._path("contributions", str(order.open.id))
            self._scheduler.ask(ListChildren(path, watch=True), self._answers_listed, order.open.id)

    def _answers_listed(self, reply: Reply, number: int) -> None:
        if not isinstance(reply, Children) or not self._is_open(number) or self.order is None or not self.order.open:
            return
        if self._answers is None or self._answers.round.id != number:
            self._answers = Answers(self.order.open)
        for name in reply.names:
            member, _dot, piece = name.rpartition(".")
            index = decimal(piece, MAX_PIECES)
            if index is not None and index not in self._answers.pieces.get(member, {}):
                path = self._path("contributions", f"{number}/{name}")
                self._scheduler.ask(Get(path), self._answer_read, number, member, path)

    def _answer_read(self, reply: Reply, number: int, member: str, path: str) -> None:
        if not isinstance(reply, Content) or not self._is_open(number) or self._answers is None:
            return
        try:
            self._answers.add(member, documents.decode_contribution(reply.content))
        except NodeContentError as error:
            self._scheduler.complain(path, f"{path}: {error}")
            if not self._is_busy:
                self._void(f"{path} cannot be read")
            return
        self.look()

    def _is_open(self, number: int) -> bool:
        return self.order is not None and self.order.open is not None and self.order.open.id == number

    # ---- deciding

    def look(self) -> None:
        """Decide what is next, and do it."""
        if self._settings is None or self.order is None or not self._is_known or self._is_busy:
            return
        if self.order.open is not None and self.order.open.kind == CHECKPOINT and not self._times.opened_us:
            self._write(Decision(Next.WRITE, replace(self.order, open=None), "its leader did not complete it"))
            return  # parts of its merge may be stored
        decision = decide(self.order, self._seen(self._settings))
        self.reason = decision.reason
        if decision.is_obstacle:
            self._scheduler.complain(self._path(), f"region: {decision.reason}")
        if decision.next is Next.WAIT:
            if decision.wake_us is not None:
                self._scheduler.wake("region", decision.wake_us, self.look)
        elif decision.next is Next.EVICT:
            self._evict(decision)
        elif decision.next is Next.WRITE:
            self._write(decision)
        else:
            self._end_round(decision)

    @property
    def _is_forced(self) -> bool:
        return self._settings is not None and self._settings.recovery == "forced"

    def _seen(self, settings: Settings) -> Seen:
        view, is_forced = self._view, self._is_forced
        names = () if is_forced else (*view.members, *view.evicted)
        self._times.is_read_anew = self._times.is_read_anew and not self._is_at_rest()
        return Seen(
            settings=settings,
            registered=self._registered,
            requests=self._requests,
            answers=self._answers,
            holdings=None if is_forced else {name: view.held_by(name).keys() for name in names},
            is_at_rest=is_forced or self._is_quiet(),
            has_moved=not is_forced and self._times.has_moved(view.generation),
            is_read_anew=self._times.is_read_anew,
            hidden="" if is_forced else view.refused_path(),
            since_us=self._times.since_us,
            now_us=self._scheduler.now.mono_us,
            knows_last=self._times.knows_last,
            last_void=self._times.last_void,
        )

    def _is_quiet(self) -> bool:
        """Whether nothing moves, and no change is known that will move something."""
        is_ready = all(member.is_settled for member in self._view.members.values())
        return is_ready and not self._view.evicted and self._is_at_rest()

    # ---- doing

    def _evict(self, decision: Decision) -> None:
        self._is_busy = True
        members = {name: self._registered.get(name, 0) for name in decision.names}
        self._writes.evict(members, decision.reason, self._evicted)

    def _evicted(self) -> None:
        self._is_busy = False
        self._list_members()

    def _end_round(self, decision: Decision) -> None:
        """Store what belongs to the end of a round, then its order, if nothing has moved meanwhile."""
        answers, before, is_forced = self._answers, self._merge, self._is_forced
        if answers is None:
            return
        self._is_busy = True
        generation = self._view.generation
        try:
            held = answers.union().keys()
        except ContradictionError as error:
            self._void(str(error))
            return
        if decision.next is Next.FLOW:
            self._writes.place_unheld(held, before, lambda: self._confirm(generation, None, 0), is_forced=is_forced)
        else:
            then = partial(self._confirm, generation)
            self._writes.store_merge(answers, before, then, is_forced=is_forced)

    def _confirm(self, generation: int, merge: Merge | None, pieces: int) -> None:
        """Write the order that ends the round, if the group is still at rest: only then do the unheld offsets apply."""
        self._is_busy = False
        if self._settings is None or self.order is None:
            return
        decision = decide(self.order, self._seen(self._settings))
        if decision.next is Next.COMPLETE and merge is None:
            self._void("its merge cannot be stored")
        elif decision.next not in {Next.COMPLETE, Next.FLOW} or generation != self._view.generation:
            if self.order.open is not None and self.order.open.kind == CHECKPOINT:
                self._void("a rebalance overtook the checkpoint")
            else:
                self.look()
        elif decision.next is Next.FLOW:
            self._write(decision)
        else:
            self._write(replace(decision, order=replace(decision.order, pieces=pieces)), merge)

    def _void(self, reason: str) -> None:
        """End a round without a result; a reset is ordered again."""
        self._is_busy = False
        if self.order is not None:
            self._scheduler.warn(f"region: a {'reset' if self.order.is_resetting else 'checkpoint'} is void: {reason}")
            pending = reason[: documents.MAX_REASON] if self.order.is_resetting else self.order.pending
            self._write(Decision(Next.WRITE, replace(self.order, open=None, pending=pending), reason))

    def _write(self, decision: Decision, merge: Merge | None = None) -> None:
        """Store an order; a round that it opens gets its container in the same transaction."""
        before, after = self.order, decision.order
        self._is_busy = True
        operations: list[Operation] = [SetContent(self._path("order"), documents.encode_order(after), self._version)]
        if after.open is not None and (before is None or before.open is None or before.open.id != after.open.id):
            operations.append(Create(self._path("contributions", str(after.open.id))))
        operations += [Delete(self._path("requests", name)) for name in decision.requests]
        self._scheduler.write(operations, self._written, self._begun, decision, merge, operations)

    def _written(
        self, reply: Reply, begun: int, decision: Decision, merge: Merge | None, operations: list[Operation]
    ) -> None:
        if begun != self._begun:
            return
        self._is_busy = False
        if isinstance(reply, Refused) and reply.refusal is Refusal.NOT_EMPTY and reply.index is not None:
            self._leave_out(operations[reply.index].path.rpartition("/")[2])
            self.look()
            return
        if isinstance(reply, Refused):
            if reply.refusal is Refusal.NODE_EXISTS and self.order is not None:
                self._writes.sweep(self.order)  # a foreign node is where the round would have its answers
            self.order = None  # it is another one: to write it again would be refused, and would put the reading off
            self._begin_later()
            return
        before, self.order, self._version = self.order, decision.order, self._version + 1
        self._tries = 0
        for name in decision.requests:
            self._requests.pop(name, None)
        if merge is not None:
            self._merge = merge
        elif decision.order.complete is None:
            self._merge = None
        if before is None or before.open != decision.order.open:
            self._round_changed(before or Order(), decision)
        self.look()

    def _round_changed(self, before: Order, decision: Decision) -> None:
        """Report the round that has begun or ended, and delete what no order names any more."""
        now_us, after = self._scheduler.now.mono_us, decision.order
        reason = decision.reason[: documents.MAX_REASON]
        if before.open is not None:
            kind = f"region_{before.open.kind}"
            is_done = after.complete == before.open.id or decision.next is Next.FLOW
            if before.open.kind == CHECKPOINT:
                self._times.checkpoint_ended("" if is_done else decision.reason)
            how = f"{kind}_{'completed' if is_done else 'abandoned'}"
            numbers = {"round": before.open.id, "member_count": len(before.open.members)}
            elapsed_us = now_us - self._times.since_us
            self._scheduler.emit(how, None, None, **numbers, elapsed_us=elapsed_us, reason=reason)
        if after.open is not None:
            self._scheduler.emit(f"region_{after.open.kind}_ordered", None, None, round=after.open.id, reason=reason)
        self._answers = None
        self._times.changed(after, now_us, self._view.generation)
        if after.open is not None:
            self._list_answers()
        self._writes.sweep(after)
