"""The next order of a region's leader: one pure function of the stored and seen state.

Rounds are checkpoints and resets. One is open at a time; the leader's next order ends it. Every order is one write of
the node `order` at its version, so the next leader continues from it, or from the one before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import Enum

from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.numbers import decimal
from zkrebalancer.region.documents import CHECKPOINT, RESET, Order, Request, Round, Settings
from zkrebalancer.region.limits import FIRST_CHECKPOINT_MS, MAX_MEMBERS, MAX_PIECES
from zkrebalancer.region.merge import Answers

MAX_ROUND = 2**61  # of merges that count when an order is made anew, so that there is room for later ones


class Next(Enum):
    """What the leader does next."""

    WAIT = "wait"  # for an event, or until a time
    WRITE = "write"  # the order
    COMPLETE = "complete"  # the open checkpoint: all answers are here
    FLOW = "flow"  # the open reset is over: records may be processed again
    EVICT = "evict"  # members that have not answered a reset in time: their registrations are deleted


@dataclass(frozen=True, slots=True)
class Seen:
    """What the leader knows."""

    settings: Settings
    registered: Mapping[str, int]  # member -> id of the transaction that registered it
    requests: Mapping[str, Request]  # by node
    answers: Answers | None  # to the open round
    holdings: Mapping[str, AbstractSet[TopicPartition]] | None  # by consumer; None: only members know
    is_at_rest: bool  # no plan is made or carried out
    since_us: int  # when the open round was ordered, or the last one ended; under this leadership
    now_us: int
    knows_last: bool = True  # when the last checkpoint was; else it may be due: with many leaders, none ever would be
    last_void: str = ""  # why the last checkpoint was void, under this leadership
    has_moved: bool = False  # a rebalance has sent commands since the open round was ordered
    is_read_anew: bool = False  # the group has not been at rest since it was read again: its plan may move nothing
    hidden: str = ""  # a node of a member that may not be read: until it may, the group is not known to be at rest


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do next."""

    next: Next
    order: Order
    reason: str = ""
    wake_us: int | None = None  # when to look again
    names: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()  # that are answered by this order
    is_obstacle: bool = False  # a person has to know the reason


def decide(order: Order, seen: Seen) -> Decision:
    """Return what the leader does next."""
    changed = _with_members(order, seen) or _with_requests(order, seen)
    if changed is not None:
        return changed
    if order.open is not None and order.open.kind == RESET:
        return _follow_reset(order, order.open, seen)
    if order.pending is not None:
        return _maybe_reset(order)
    if order.open is not None:
        return _follow_checkpoint(order, order.open, seen)
    return _maybe_checkpoint(order, seen)


def _with_members(order: Order, seen: Seen) -> Decision | None:
    """Admit new members, and want a reset if one is lost: what it has processed is in no checkpoint."""
    lost = sorted(name for name, zxid in order.members.items() if seen.registered.get(name) != zxid)
    if lost:
        members = {name: zxid for name, zxid in order.members.items() if name not in lost}
        reason = f"member {lost[0]} is lost" + (f", and {len(lost) - 1} more" if len(lost) > 1 else "")
        leaving = tuple(name for name in order.leaving if name in members)
        after = replace(order, members=members, leaving=leaving, open=None, pending=reason)
        return Decision(Next.WRITE, after, reason)
    room = MAX_MEMBERS - len(order.members)
    new = (name for name, zxid in seen.registered.items() if name not in order.members and order.left.get(name) != zxid)
    joined = sorted(new)[: max(0, room)]
    if joined:
        members = {**order.members, **{name: seen.registered[name] for name in joined}}
        return Decision(Next.WRITE, replace(order, members=members), f"member {joined[0]} joins")
    return None


def _with_requests(order: Order, seen: Seen) -> Decision | None:
    """Note which members leave or want a reset; requests for checkpoints are answered when one is opened.

    A request to leave that is older than its member's registration is of a former process of that name: the present one
    would go on after the checkpoint with which it leaves, and what it processes then would be lost.
    """
    leaving = {node: wanted for node, wanted in seen.requests.items() if wanted.kind == "leave"}
    if leaving:
        new = {one.member for one in leaving.values() if one.zxid > order.members.get(one.member, one.zxid)}
        after = replace(order, leaving=tuple(sorted({*order.leaving, *new})))
        reason = f"{min(new)} leaves" if new else "who asked to leave is gone"
        return Decision(Next.WRITE, after, reason, requests=tuple(sorted(leaving)))
    nodes = sorted(node for node, wanted in seen.requests.items() if wanted.kind in {"reset", "reset-initial"})
    if not nodes:
        return None
    wanted = [seen.requests[node] for node in nodes]
    initial = any(one.kind == "reset-initial" for one in wanted)
    after = replace(order, open=None, pending=wanted[0].reason or f"{wanted[0].member} asks for it")
    if initial:
        after = replace(after, complete=None, pieces=0)
    return Decision(Next.WRITE, after, after.pending or "", requests=tuple(nodes))


def _maybe_reset(order: Order) -> Decision:
    if not order.members:
        return Decision(Next.WAIT, order, "a reset waits for a member")
    number = order.id + 1
    opened = Round(number, RESET, tuple(sorted(order.members)))
    after = replace(order, id=number, reset=number, open=opened, pending=None)
    return Decision(Next.WRITE, after, order.pending or "")


def _follow_reset(order: Order, opened: Round, seen: Seen) -> Decision:
    limit_us = seen.since_us + seen.settings.reset_ms * 1_000
    missing = _missing(opened, seen)
    if missing and seen.now_us >= limit_us:
        return Decision(Next.EVICT, order, "not reset in time", names=tuple(missing))
    if missing:
        return Decision(Next.WAIT, order, f"waits for {missing[0]} to reset", limit_us)
    obstacle = _uncovered(seen)
    if obstacle is not None:  # at first, of partitions that have just come to a member
        is_late = seen.now_us >= limit_us
        is_obstacle = bool(seen.hidden) or (is_late and seen.is_at_rest)
        return Decision(Next.WAIT, order, obstacle, None if is_late else limit_us, is_obstacle=is_obstacle)
    return Decision(Next.FLOW, replace(order, open=None), "all are reset")


def _follow_checkpoint(order: Order, opened: Round, seen: Seen) -> Decision:
    limit_us = seen.since_us + seen.settings.reset_ms * 1_000
    is_late = seen.now_us >= limit_us
    if seen.has_moved or not (seen.is_at_rest or seen.is_read_anew):
        return Decision(Next.WRITE, replace(order, open=None), "a rebalance overtook the checkpoint")
    missing = _missing(opened, seen)
    if missing and is_late:
        reason = f"{missing[0]} stored no checkpoint in time"
        return Decision(Next.WRITE, replace(order, open=None), reason, is_obstacle=reason == seen.last_void)
    if missing:
        return Decision(Next.WAIT, order, f"waits for the checkpoint of {missing[0]}", limit_us)
    if not seen.is_at_rest:
        void = Decision(Next.WRITE, replace(order, open=None), "the group was not at rest in time")
        return void if is_late else Decision(Next.WAIT, order, "waits until the group is at rest", limit_us)
    obstacle = _uncovered(seen)
    if obstacle is not None:
        after = replace(order, open=None)
        return Decision(Next.WRITE, after, obstacle, is_obstacle=obstacle == seen.last_void)
    members = {name: zxid for name, zxid in order.members.items() if name not in opened.leaving}
    leaving = tuple(name for name in order.leaving if name in members)
    left = {name: zxid for name, zxid in order.left.items() if seen.registered.get(name) == zxid}
    left |= {name: order.members[name] for name in opened.leaving if name in order.members}
    after = replace(order, complete=opened.id, open=None, members=members, leaving=leaving, left=left)
    return Decision(Next.COMPLETE, after, "all have stored their checkpoints")


def _missing(opened: Round, seen: Seen) -> list[str]:
    return list(opened.members) if seen.answers is None else seen.answers.missing


def _unrest(seen: Seen) -> str:
    if seen.hidden:
        return f"neither a checkpoint nor a reset completes until {seen.hidden} may be read"
    return "waits until the group is at rest"


def _uncovered(seen: Seen) -> str | None:
    """Return what the answers do not cover, although every member has answered."""
    if not seen.is_at_rest:
        return _unrest(seen)
    if seen.holdings is None or seen.answers is None:
        return None
    uncovered = seen.answers.uncovered(seen.holdings)
    if not uncovered:
        return None
    topic, number = uncovered[0]
    holder = next(name for name, held in seen.holdings.items() if uncovered[0] in held)
    return (
        f"{holder} holds {topic}/{number} and has not answered for it; all members of the group must be in the region"
    )


def _maybe_checkpoint(order: Order, seen: Seen) -> Decision:
    every_ms = seen.settings.every_ms
    due_us = seen.since_us + 1_000 * (every_ms if seen.knows_last else min(every_ms, FIRST_CHECKPOINT_MS))
    nodes = sorted(seen.requests)
    if not order.members:
        return Decision(Next.WAIT, order, "has no members")
    if not seen.is_at_rest:
        return Decision(Next.WAIT, order, _unrest(seen), is_obstacle=bool(seen.hidden))
    if not nodes and not order.leaving and seen.now_us < due_us:
        return Decision(Next.WAIT, order, "flows", due_us)
    number, names = order.id + 1, tuple(sorted(order.members))
    opened = Round(number, CHECKPOINT, names, order.leaving)
    return Decision(Next.WRITE, replace(order, id=number, open=opened), "a checkpoint is due", requests=tuple(nodes))


def made_anew(merges: Iterable[str], version: int) -> Order:
    """Return the order that replaces a lost one: continue from the newest merge, with an id above all former ones.

    `merges`: names of their pieces. Each id was given by a write of the order's node, so none is above its `version`.
    """
    pieces: Counter[int] = Counter()
    for name in merges:
        number = decimal(name.partition(".")[0], MAX_ROUND)
        if number is not None:
            pieces[number] += 1
    complete = max(pieces, default=None)
    highest, count = max(version + 1, *pieces, 1), min(pieces[complete or 0], MAX_PIECES)
    return Order(id=highest, complete=complete, pieces=count, pending="the order was lost")
