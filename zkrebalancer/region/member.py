"""A member of a consistent region: what follows from each order of the leader.

Its methods that need ZooKeeper are generators: they yield calls and receive the replies, so that the same code runs in
an application's thread and in the simulation, which interrupts it between any two calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import (
    Check,
    Content,
    Create,
    Done,
    Get,
    Multi,
    Operation,
    Refusal,
    Refused,
    SetContent,
    Sync,
)
from zkrebalancer.protocol.cluster_nodes import may_be_same_topic
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.region import documents
from zkrebalancer.region.documents import Initial, Merge, Order, Request, Round, Settings
from zkrebalancer.region.limits import MAX_PIECES
from zkrebalancer.region.permitted import require_permitted
from zkrebalancer.region.replies import is_refused, order_in, portions
from zkrebalancer.region.roles import Application, Phase, RegionMismatchError, Source, Steps
from zkrebalancer.region.states import TRANSITIONS, InvalidTransitionError, RegionState


@dataclass(slots=True)
class _Answer:
    """What a member has answered to one round."""

    round: int
    kind: str
    contents: list[bytes]  # of its pieces
    partitions: set[TopicPartition]
    sent: int = 0  # pieces that are stored


class Member:
    """One member, from its first registration on."""

    def __init__(
        self, group: str, name: str, settings: Settings, source: Source, application: Application, piece_bytes: int
    ) -> None:
        """Start unregistered; `register` comes first."""
        self.group, self.name, self.settings = group, name, settings
        self._source, self._application, self._piece_bytes = source, application, piece_bytes
        self.state = RegionState.INITIALIZED
        self.zxid: int | None = None  # of the registration
        self._admitted_as: int | None = None  # the last registration under which it was admitted
        self.done = 0  # the last reset that this member has done
        self.is_leaving = self._has_asked_to_leave = self._is_admitted = False
        self.last_checkpoint = 0  # its last answer to a checkpoint
        self.last_merge: Merge | None = None
        self.is_restoring = False  # as `register` has found
        self.completed = 0  # the last complete checkpoint with its answer: older copies may be deleted
        self._asks_from = 0  # the first round in which it may request a reset
        self._is_reset_wanted: str | None = None  # why; until a reset has come
        self._answer: _Answer | None = None
        self._sought: set[TopicPartition] = set()  # by the last reset; others have come since
        self._initial: dict[TopicPartition, str] = {}  # whose initial offset is stored -> for which incarnation

    # ---- states

    def go(self, state: RegionState) -> None:
        """Change the state; raises InvalidTransitionError."""
        if state is self.state:
            return
        if state not in TRANSITIONS[self.state]:
            raise InvalidTransitionError(f"member {self.name}: {self.state.value} -> {state.value}")
        self.state = state

    def _become_pending(self) -> None:
        if self.state in {RegionState.INITIALIZED, RegionState.EVENT_THREAD_STARTED}:
            self.go(RegionState.SUBSCRIBED)
        self.go(RegionState.RESET_PENDING)

    def revoked(self) -> bool:
        """Note that a classic client gives partitions up; return whether all have to reset: if it has had a record."""
        if self.state is not RegionState.RECORDS_FETCHED:
            return False
        self.lost("partitions were revoked")
        return True

    def lost(self, reason: str) -> None:
        """Have all members reset: records were processed whose partitions went elsewhere, or an answer is too long."""
        self._become_pending()
        self._is_reset_wanted, self._asks_from = f"{self.name}: {reason}", 0

    # ---- registration

    def register(self, session_id: Callable[[], int | None]) -> Steps[bool]:
        """Make the region's nodes, compare settings, register; False: its name is still taken, or a restore runs.

        Raises:
            RegionMismatchError: the group is in another region, or recovers in another way.
            NodeContentError: the node of the region is foreign.
            ZooKeeperRefusedError: rights are missing, so that the region cannot be joined.

        """
        self.zxid, self._is_admitted, self._answer = None, False, None
        (look,) = yield [Get(paths.RESTORE)]
        self.is_restoring = isinstance(look, Content)
        if self.is_restoring or (isinstance(look, Refused) and look.outcome_unknown):
            return False
        top = [paths.CONSUMERS, paths.GROUPS, paths.group(self.group), paths.region(self.group)]
        for path in (*top, *(paths.region(self.group, child) for child in paths.REGION_CHILDREN)):
            (reply,) = yield [Multi((Create(path),))]
            if is_refused(reply, Refusal.NO_AUTH):  # also if it is there
                replies = yield [Get(path)]
                require_permitted(self.group, path, replies[0])
            elif not isinstance(reply, Done) and not is_refused(reply, Refusal.NODE_EXISTS):
                return False
        if not (yield from self._compare()):
            return False
        return (yield from self._create(session_id))

    def _compare(self) -> Steps[bool]:
        path = paths.region(self.group)
        (node,) = yield [Get(path)]
        if isinstance(node, Content) and not node.content:
            write = SetContent(path, documents.encode_settings(self.settings), node.stat.version)
            _written, node = yield [Multi((write,)), Get(path)]
        if not isinstance(node, Content) or not node.content:
            return False
        found = documents.decode_settings(node.content)
        if (found.name, found.recovery) != (self.settings.name, self.settings.recovery):
            raise RegionMismatchError(
                f"group {self.group} is in the region {found.name} with recovery {found.recovery!r}, "
                f"not in {self.settings.name} with {self.settings.recovery!r}: all its members must be in one region"
            )
        self.settings = found
        return True

    def _create(self, session_id: Callable[[], int | None]) -> Steps[bool]:
        """Create the registration, or use one that this session has already: the reply to its creation was lost.

        One under which this member was admitted before is not used: what it has done since then is unknown.
        """
        path = paths.region(self.group, "members", self.name)
        created, found = yield [Multi((Create(path, ephemeral=True),)), Get(path)]
        if not isinstance(found, Content) or found.stat.ephemeral_owner != session_id():
            return False
        is_lost_reply = is_refused(created, Refusal.NODE_EXISTS) and found.stat.created_zxid != self._admitted_as
        if isinstance(created, Done) or is_lost_reply:
            self.zxid = found.stat.created_zxid
            self.done = self.last_checkpoint = self.completed = 0  # the region may have been made anew since
            self.last_merge, self._initial = None, {}
        return self.zxid is not None

    def session_lost(self) -> None:
        """Note that the registration is gone."""
        self.zxid = None

    # ---- orders

    def advance(self, order: Order | None) -> Steps[Phase]:
        """Do what the order says; return what the member may do until the next one."""
        if self.zxid is None or order is None:
            return Phase.OUT if self.zxid is None else (yield from self._without_order())
        if order.members.get(self.name) != self.zxid or order.id < max(self.done, self.last_checkpoint):
            return (yield from self._not_named(order))
        if not self._is_admitted and not (yield from self._be_admitted(order)):
            return Phase.WAIT
        if order.reset > self.done:
            yield from self._reset(order)
        elif self._is_reset_wanted is not None and order.id >= self._asks_from:
            yield from self._want_reset(order)
        if order.open is not None and order.is_resetting:
            yield from self._answer_rest(order.open)
        if self._must_wait(order):
            return Phase.WAIT
        self._maybe_retire(order)  # first: the next answer hides that the last one has become complete
        if order.open is not None and self.name in order.open.members and not (yield from self._checkpoint(order.open)):
            return Phase.WAIT
        if self.is_leaving:
            yield from self._ask_to_leave(order)
        return Phase.WAIT if self.is_leaving else Phase.FLOW

    def _without_order(self) -> Steps[Phase]:
        """Wait for an order that names it; register again if its node is gone, perhaps with the whole region."""
        (own,) = yield [Get(paths.region(self.group, "members", self.name))]
        self.zxid = None if is_refused(own, Refusal.NO_NODE) else self.zxid
        return Phase.OUT if self.zxid is None else Phase.WAIT

    def _must_wait(self, order: Order) -> bool:
        """Whether a reset is wanted, ordered, or not done by all."""
        is_wanted = self.state is RegionState.RESET_PENDING or order.pending is not None
        return is_wanted or order.reset > self.done or order.is_resetting

    def _maybe_retire(self, order: Order) -> None:
        """Let the application delete its copies before the last complete checkpoint, if it contributed to that."""
        if order.complete is not None and self.completed < order.complete == self.last_checkpoint:
            self.completed = order.complete
            self._application.retire(order.complete)

    def _not_named(self, order: Order) -> Steps[Phase]:
        if not self._is_admitted:
            return (yield from self._without_order())
        if order.left.get(self.name) == self.zxid:
            return Phase.LEFT
        self.zxid = None
        return Phase.OUT

    def _be_admitted(self, order: Order) -> Steps[bool]:
        """Begin with its own state of the last complete checkpoint, or with none; in a central group, seek nothing."""
        merge = yield from self._read_merge(order)
        if merge is None and order.complete is not None:
            return False
        held = self._source.held() if self.settings.recovery == "forced" else {}  # no reset has waited for these
        targets = yield from self._targets([tp for tp, at in held.items() if at != documents.UNKNOWN], merge)
        if targets is None:
            return False
        self._restore(merge)
        if targets:
            self._source.seek(targets)
        if self.state in {RegionState.INITIALIZED, RegionState.EVENT_THREAD_STARTED}:
            self.go(RegionState.SUBSCRIBED)
        elif self.state is not RegionState.RESET_COMPLETE:
            self.go(RegionState.RESET_PENDING)
            self.go(RegionState.RESET_COMPLETE)
        self.done = order.reset - 1 if order.is_resetting else order.reset
        self._is_admitted, self._is_reset_wanted, self._has_asked_to_leave = True, None, False
        self._admitted_as = self.zxid
        return True

    def _restore(self, merge: Merge | None) -> None:
        self.last_merge = merge
        self._application.reset(None if merge is None else merge.states.get(self.name))

    def _reset(self, order: Order) -> Steps[None]:
        self._become_pending()
        merge = yield from self._read_merge(order)
        if merge is None and order.complete is not None:
            return
        held = self._source.held().keys()
        targets = yield from self._targets(held, merge)
        if targets is None:
            return
        self._restore(merge)
        self._source.seek(targets)
        self._sought = set(held)
        self.go(RegionState.RESET_COMPLETE)
        self.done, self._is_reset_wanted, self._answer = order.reset, None, None

    def _want_reset(self, order: Order) -> Steps[None]:
        """Request a reset; again in the second round after that, as only the first can be opened unaware of it."""
        if (yield from self.request("reset", self._is_reset_wanted or "")):
            self._asks_from = order.id + 2

    def request(self, kind: str, reason: str = "") -> Steps[bool]:
        """Ask the leader for something; return whether the request is stored."""
        content = documents.encode_request(Request(kind, self.name, reason[: documents.MAX_REASON]))
        create = Create(paths.region(self.group, "requests", f"{kind}-"), content, sequence=True)
        replies = yield [Multi((create,))]
        return isinstance(replies[0], Done)

    def leave(self) -> None:
        """Process nothing more, and ask for a last checkpoint; `advance` returns LEFT once it is complete."""
        self.is_leaving = True

    def _ask_to_leave(self, order: Order) -> Steps[None]:
        if not self._has_asked_to_leave and self.name not in order.leaving:
            self._has_asked_to_leave = yield from self.request("leave", "it leaves")

    # ---- where partitions continue

    def _read_merge(self, order: Order) -> Steps[Merge | None]:
        """Return the merge that an order names, None if there is none, or if it is retired meanwhile."""
        if order.complete is None:
            return None
        if self.last_merge is not None and self.last_merge.id == order.complete:
            return self.last_merge
        names = [f"{order.complete}.{piece}" for piece in range(order.pieces)]
        replies = yield [Get(paths.region(self.group, "merged", name)) for name in names]
        contents = [reply.content for reply in replies if isinstance(reply, Content)]
        if len(contents) < len(names):
            return None
        try:
            return documents.joined_merge(documents.decode_merge(content) for content in contents)
        except NodeContentError as error:
            raise NodeContentError(f"{paths.region(self.group, 'merged')}: {error}") from None

    def _targets(
        self, held: Collection[TopicPartition], merge: Merge | None
    ) -> Steps[dict[TopicPartition, int] | None]:
        """Return where held partitions continue after a reset, None if that cannot be read now.

        That is their offset in the merge, else the initial one. A partition without either stays where it is, because
        no member has ever processed a record of it.
        """
        targets: dict[TopicPartition, int] = {}
        if merge is not None:
            for tp in held:
                if tp in merge.offsets and may_be_same_topic(
                    merge.incarnations.get(tp[0], ""), self._source.identity(tp[0])
                ):
                    targets[tp] = merge.offsets[tp]
        rest = sorted(set(held) - targets.keys())
        for some in portions(rest):
            replies = yield [Get(self._initial_path(tp)) for tp in some]
            for tp, reply in zip(some, replies, strict=True):
                if isinstance(reply, Content):
                    initial = self._decoded_initial(tp, reply.content)
                    if may_be_same_topic(initial.incarnation, self._source.identity(tp[0])):
                        targets[tp] = initial.offset
                elif not is_refused(reply, Refusal.NO_NODE):
                    return None
        return targets

    def place(self, partitions: Collection[TopicPartition]) -> Steps[dict[TopicPartition, int] | None]:
        """Return where partitions begin that a classic group has assigned, None if that is not known now.

        The order is read anew: their former owner may have left with a later checkpoint than this member has seen.
        """
        path = paths.region(self.group, "order")
        replies = yield [Sync(path), Get(path)]
        order = order_in(replies[1]) if isinstance(replies[0], Done) else None
        if order is None or self._must_wait(order):
            return None
        merge = yield from self._read_merge(order)
        if merge is None and order.complete is not None:
            return None
        return (yield from self._targets(partitions, merge))

    def begin_records(self, first: Mapping[TopicPartition, int]) -> Steps[bool]:
        """Store the initial offset of each partition before its first record; False: the records have to wait."""
        if self.state is RegionState.RESET_PENDING:
            return False
        marks = {topic: self._source.identity(topic) for topic, _number in first}
        new = sorted(tp for tp in first if self._initial.get(tp) != marks[tp[0]])
        topics = sorted({topic for topic, _number in new})
        for some_topics in portions(topics):
            yield [Multi((Create(paths.region(self.group, "initial", topic)),)) for topic in some_topics]
        for some in portions(new):
            contents = [documents.encode_initial(Initial(first[tp], marks[tp[0]])) for tp in some]
            replies = yield [
                Multi((Create(self._initial_path(tp), content),)) for tp, content in zip(some, contents, strict=True)
            ]
            for tp, content, reply in zip(some, contents, replies, strict=True):
                is_stored = isinstance(reply, Done)
                if is_refused(reply, Refusal.NODE_EXISTS):
                    is_stored = yield from self._renew_initial(tp, content)
                if not is_stored:
                    return False
                self._initial[tp] = marks[tp[0]]
        self.go(RegionState.RECORDS_FETCHED)
        return True

    def _renew_initial(self, tp: TopicPartition, content: bytes) -> Steps[bool]:
        """Keep an initial offset, unless it is that of another incarnation of the topic."""
        path = self._initial_path(tp)
        (found,) = yield [Get(path)]
        if not isinstance(found, Content):
            return False
        if may_be_same_topic(self._decoded_initial(tp, found.content).incarnation, self._source.identity(tp[0])):
            return True
        replies = yield [Multi((SetContent(path, content, found.stat.version),))]
        return isinstance(replies[0], Done)

    def _initial_path(self, tp: TopicPartition) -> str:
        return f"{paths.region(self.group, 'initial', tp[0])}/{tp[1]}"

    def _decoded_initial(self, tp: TopicPartition, content: bytes) -> Initial:
        try:
            return documents.decode_initial(content)
        except NodeContentError as error:
            raise NodeContentError(f"{self._initial_path(tp)}: {error}") from None

    # ---- answers

    def _checkpoint(self, opened: Round) -> Steps[bool]:
        """Let the application store its state, then answer; return whether the answer is stored."""
        if self._answer is None or self._answer.round != opened.id:
            if self.name in opened.leaving and not self._source.store():  # nobody is reset once it has left
                return False
            held = self._source.held()
            if self._source.has_given_up:  # the state may have records of partitions that `held` lacks
                return False
            self._application.checkpoint(opened.id)
            self._prepare(opened, held)
        return (yield from self._send(opened))

    def _answer_rest(self, opened: Round) -> Steps[None]:
        """Answer a reset for every partition that is held, also for those that came after the first answer."""
        if self.state is not RegionState.RESET_COMPLETE:
            return
        held = self._source.held()
        if self._answer is None or self._answer.round != opened.id:
            self._prepare(opened, {tp: at for tp, at in held.items() if tp in self._sought})
        elif new := held.keys() - self._answer.partitions:
            # Others may process records by now, and these partitions may come from them: read the order anew.
            path = paths.region(self.group, "order")
            replies = yield [Sync(path), Get(path)]
            order = order_in(replies[1]) if isinstance(replies[0], Done) else None
            if order is None or order.open != opened:
                return
            targets = yield from self._targets(new, self.last_merge)
            if targets is None:
                return
            self._source.seek(targets)
            now = self._source.held()
            self._extend(opened, {tp: now[tp] for tp in new if tp in now})
        yield from self._send(opened)

    def _prepare(self, opened: Round, held: Mapping[TopicPartition, int]) -> None:
        self._answer = _Answer(opened.id, opened.kind, self._pieces(opened, held, 0), set(held))

    def _extend(self, opened: Round, held: Mapping[TopicPartition, int]) -> None:
        if self._answer is not None and held:
            more = self._pieces(opened, held, len(self._answer.contents))
            if len(self._answer.contents) + len(more) > MAX_PIECES:
                self.lost("partitions came too often during a reset")
                return
            self._answer.contents += more
            self._answer.partitions |= held.keys()

    def _pieces(self, opened: Round, held: Mapping[TopicPartition, int], first: int) -> list[bytes]:
        marks = {topic: self._source.identity(topic) for topic in {topic for topic, _number in held}}
        consumer = self._source.consumer if held else None
        return documents.contribution_pieces(opened.id, consumer, held, marks, self._piece_bytes, first)

    def _send(self, opened: Round) -> Steps[bool]:
        """Store the pieces that are not stored yet, in transactions that check the registrations."""
        answer = self._answer
        while answer is not None and answer.sent < len(answer.contents):
            content = answer.contents[answer.sent]
            checks: list[Operation] = [Check(paths.region(self.group, "members", self.name))]
            consumer = documents.decode_contribution(content).consumer
            if consumer is not None:
                checks.append(Check(paths.owners(self.group, consumer)))
            path = paths.region(self.group, "contributions", f"{opened.id}/{self.name}.{answer.sent}")
            replies = yield [Multi((*checks, Create(path, content)))]
            if not isinstance(replies[0], Done) and not is_refused(replies[0], Refusal.NODE_EXISTS):
                return False
            answer.sent += 1
        if answer is not None and answer.kind == documents.CHECKPOINT:
            self.last_checkpoint = max(self.last_checkpoint, answer.round)
        return True
