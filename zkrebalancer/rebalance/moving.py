"""Carries a plan out: sends commands, takes acknowledgements, and deals with consumers that do not answer.

One transaction of commands is under way at a time and a consumer has at most one command to answer, so that what is
released meanwhile joins the next transaction.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zkrebalancer.protocol import cluster_nodes, command, paths
from zkrebalancer.protocol.calls import (
    Check,
    Content,
    Create,
    Delete,
    Done,
    Get,
    Operation,
    Refusal,
    Refused,
    Reply,
    SetContent,
)
from zkrebalancer.protocol.command import Cause, Command, StartFetcher, StopFetcher
from zkrebalancer.protocol.errors import ConsumerRebalanceFailedError
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.rebalance.plan import Plan
from zkrebalancer.rebalance.states import GroupState
from zkrebalancer.rebalance.view import Member, PendingCommand, Released

if TYPE_CHECKING:
    from zkrebalancer.rebalance.group import Group

# What is made in one go, so that no other group waits long for its turn (`tests/benchmarks/hub.py`).
MAX_COMMANDS_PER_TRANSACTION = 64
MAX_LOOKS_PER_TRANSACTION = 700  # at consumers and partitions, ready or not; the command that passes it goes along
MAX_TRANSACTION_BYTES = 500_000  # ZooKeeper refuses a request of about 1 MB


@dataclass(frozen=True, slots=True)
class Batch:
    """The commands of one transaction, in the order of its `Create` operations, which begin at `first_index`."""

    plan: Plan
    commands: tuple[tuple[str, Command], ...]
    first_index: int
    group_index: int = 1
    generation_index: int | None = None


class Moving:
    """The commands of one group."""

    def __init__(self, group: Group) -> None:
        """Send nothing yet."""
        self._group = group
        self.sending = False
        self.outstanding: set[str] = set()  # consumers that have commands to answer
        self._candidates: OrderedDict[str, None] = OrderedDict()  # consumers to which something may be sent now

    def reset(self) -> None:
        """Everything is read anew: what is outstanding will be found in the channels."""
        self.sending = False
        self.outstanding.clear()
        self._candidates.clear()

    def adopt(self) -> None:
        """After loading: take over the commands that are pending, with a new time limit for each."""
        for consumer, member in self._group.view.members.items():
            if member.pending:
                self.outstanding.add(consumer)
                self.limit(member)
            if member.blocked_topics():
                self.expect_readable(member)

    # Sending --------------------------------------------------------------------------------------------------------

    def advance(self, consumers: Iterable[str]) -> None:
        """Send what can be sent now to these consumers, and to those that could not be served before."""
        self._candidates.update(dict.fromkeys(consumers))
        plan = self._group.plan
        if plan is None or self.sending or self._group.state in {GroupState.PLANNING, GroupState.LOADING}:
            return
        commands: list[tuple[str, Command, bytes]] = []
        size = looks = 0
        while self._candidates:
            consumer, _ = self._candidates.popitem(last=False)
            looks += 1 + len(plan.starts.get(consumer, ())) + len(plan.stops.get(consumer) or ())
            next_command = self._next_command(plan, consumer)
            if next_command is not None:
                content = command.encode(next_command)
                commands.append((consumer, next_command, content))
                size += len(content)
            if (
                len(commands) >= MAX_COMMANDS_PER_TRANSACTION
                or looks >= MAX_LOOKS_PER_TRANSACTION
                or size >= MAX_TRANSACTION_BYTES
            ):
                break
        if commands:
            self._send(plan, commands)
        elif self._candidates:
            self._advance_later()

    def begin(self, consumers: Collection[str]) -> None:
        """Carry out a plan for these consumers: at once, or in a step of its own if there is much to send."""
        if len(consumers) <= MAX_COMMANDS_PER_TRANSACTION:
            self.advance(consumers)
        else:
            self._candidates.update(dict.fromkeys(consumers))
            self._advance_later()

    def _advance_later(self) -> None:
        desk = self._group.desk
        desk.wake(self._group.name, "advance", desk.now.mono_us + 1, self.advance, ())

    def _next_command(self, plan: Plan, consumer: str) -> Command | None:
        group = self._group
        member = group.view.members.get(consumer)
        if member is None or member.busy:
            return None
        if consumer in plan.stops:
            return self._stop(plan, consumer)
        if plan.barrier_is_up:
            return None
        ready = {tp: thread for tp, thread in plan.starts.get(consumer, {}).items() if group.may_start(consumer, tp)}
        if not ready:
            return None
        start = command.fitting_start(group.desk.new_id(), group.leadership.epoch, plan.generation, plan.cause, ready)
        plan.withdraw_starts(consumer, start.partitions)
        return start

    def _stop(self, plan: Plan, consumer: str) -> StopFetcher:
        desk, epoch = self._group.desk, self._group.leadership.epoch
        wanted = plan.stops.pop(consumer)
        if wanted is None:
            plan.stopping.add(consumer)
            cause = Cause(plan.cause.id, command.INSTANCE_FENCED) if consumer in plan.fenced else plan.cause
            return StopFetcher(desk.new_id(), epoch, plan.generation, cause, None)
        stop = command.fitting_stop(desk.new_id(), epoch, plan.generation, plan.cause, wanted)
        if stop.partitions is not None and stop.partitions < wanted:
            plan.stops[consumer] = wanted - stop.partitions
        return stop

    def _send(self, plan: Plan, commands: list[tuple[str, Command, bytes]]) -> None:
        group, view = self._group, self._group.view
        operations: list[Operation] = [Check(paths.group(group.name), view.settings_version)]
        generation_index = None
        if not plan.stored:
            content = cluster_nodes.encode_counter(plan.generation)
            operations.append(SetContent(paths.generation(group.name), content, view.generation_version))
            generation_index = len(operations)
        starts = [(c, start) for c, start, _content in commands if isinstance(start, StartFetcher)]
        operations += group.topic_reset.markers(topic for _c, start in starts for topic, _p in start.partitions)
        operations += group.static_members.records(starts)
        first_index = len(operations) + 1  # after the fence
        for consumer, sent, content in commands:
            prefix = f"{paths.channel(group.name, consumer)}/{paths.COMMAND_PREFIX}"
            operations.append(Create(prefix, content, sequence=True))
            view.members[consumer].pending.append(PendingCommand(sent, None))
            self.outstanding.add(consumer)
            view.refresh(consumer)
        self.sending = True
        batch = Batch(
            plan, tuple((c, sent) for c, sent, _content in commands), first_index, generation_index=generation_index
        )
        group.desk.ask(group.name, group.leadership.fenced(*operations), self._sent, batch)

    def _sent(self, reply: Reply, batch: Batch) -> None:
        group = self._group
        if group.leadership.is_deposed(reply) or (isinstance(reply, Refused) and reply.outcome_unknown):
            return  # not leading any more; or everything is read again once the connection is back
        self.sending = False
        if isinstance(reply, Refused):
            self._not_sent(reply, batch)
        elif isinstance(reply, Done):
            self._note_sent(reply, batch)
        self.advance(())
        group.maybe_finish()

    def _note_sent(self, reply: Done, batch: Batch) -> None:
        group, view = self._group, self._group.view
        if batch.generation_index is not None:
            batch.plan.stored = True
            view.generation = batch.plan.generation
            version = reply.results[batch.generation_index]
            view.generation_version = version if isinstance(version, int) else view.generation_version + 1
        group.topic_reset.markers_written()
        for (consumer, sent), node in zip(batch.commands, reply.results[batch.first_index :], strict=True):
            member = view.members.get(consumer)
            if member is None:
                continue
            for pending in member.pending:
                if pending.command is sent and isinstance(node, str):
                    pending.node = node
            self.limit(member)
            count = len(view.held_by(consumer) if sent.partitions is None else sent.partitions)
            group.desk.emit(
                "command_sent",
                group.name,
                sent.generation,
                sent.cause.id,
                command_id=sent.command_id,
                option=sent.option,
                member=consumer,
                partition_count=count,
            )

    def _not_sent(self, reply: Refused, batch: Batch) -> None:
        """Nothing was written. Take the commands back, find out what was in the way, and send the rest again."""
        group, view = self._group, self._group.view
        for consumer, sent in batch.commands:
            member = view.members.get(consumer)
            if member is not None:
                member.pending = [pending for pending in member.pending if pending.command is not sent]
                self._answered(member)
                self.released(view.refresh(consumer))
            self._take_back(consumer, sent)
        index = reply.index
        if index is not None and index >= batch.first_index:
            consumer = batch.commands[index - batch.first_index][0]
            if group.plan is not None:
                group.plan.drop_member(consumer)  # one death must not hold up the others
                self.barrier_may_be_down()
            group.membership.read_owners(consumer)
        elif index == batch.group_index:
            group.read_settings()
        elif reply.refusal in {Refusal.BAD_VERSION, Refusal.NODE_EXISTS, Refusal.NO_NODE}:
            group.load("outdated")
        else:
            group.desk.warn(f"group {group.name}: commands were refused by ZooKeeper: {reply.refusal.value}")
            group.fail(reply.refusal.value)

    def _take_back(self, consumer: str, sent: Command) -> None:
        plan = self._group.plan
        if plan is None or consumer not in self._group.view.members:
            return
        if isinstance(sent, StartFetcher):
            plan.give_back_starts(consumer, sent.partitions)
        elif sent.generation == plan.generation:
            plan.stopping.discard(consumer)
            rest = plan.stops.get(consumer, frozenset())
            plan.stops[consumer] = None if sent.partitions is None or rest is None else sent.partitions | rest
        self._candidates[consumer] = None

    # Acknowledgements -----------------------------------------------------------------------------------------------

    def owners_changed(self, member: Member, before: OwnersRecord | None) -> None:
        """`owners/C` was read again: only this decides what is acknowledged."""
        group = self._group
        acknowledged: list[PendingCommand] = []
        if member.owners is not None:
            for position, pending in enumerate(member.pending):
                if pending.command.command_id == member.owners.command_id:
                    acknowledged = member.pending[: position + 1]
                    member.pending = member.pending[position + 1 :]
                    break
        self.expect_readable(member)
        released = group.view.refresh(member.consumer)
        for pending in acknowledged:
            self._acknowledged(member, pending.command)
        if acknowledged:
            self._answered(member)
        elif before is not None and member.owners is not None and before.partitions != member.owners.partitions:
            group.request("ownership-changed")  # not by any command of ours
        self.released(released)
        self.advance((member.consumer,))
        group.maybe_finish()

    def _acknowledged(self, member: Member, done: Command) -> None:
        group, plan, now = self._group, self._group.plan, self._group.desk.now.mono_us
        member.failed_tries = 0
        group.desk.emit(
            "command_acked",
            group.name,
            done.generation,
            done.cause.id,
            command_id=done.command_id,
            member=member.consumer,
        )
        if isinstance(done, StopFetcher):
            if plan is not None and member.consumer in plan.stopping:
                plan.stopping.discard(member.consumer)
                self.barrier_may_be_down()
            return
        for partition in done.partitions:
            vacancy = group.vacant.pop(partition, None)
            if plan is not None and vacancy is not None:
                plan.pause_us_max = max(plan.pause_us_max, now - vacancy.since_us)

    def barrier_may_be_down(self) -> None:
        """Eager: one more has stopped, or is gone; once all have, everybody may start."""
        plan = self._group.plan
        if plan is not None and not plan.barrier_is_up:
            self._candidates.update(dict.fromkeys(plan.starts))

    def _answered(self, member: Member) -> None:
        if member.pending:
            self.limit(member)
        else:
            self.outstanding.discard(member.consumer)
            self._group.desk.cancel_wake(self._group.name, ("command", member.consumer))

    def released(self, released: Released) -> None:
        """Partitions were let go: whoever waits for them may be sent a start."""
        group, plan = self._group, self._group.plan
        group.note_vacant(released.consumer, released.partitions)
        if plan is not None:
            for partition in sorted(released.partitions):
                waiting = plan.waiting(partition)
                if waiting is not None:
                    self._candidates[waiting] = None
            if released.unblocked:
                self._candidates.update(dict.fromkeys(plan.starts))
        if released.partitions or released.unblocked:
            group.topic_reset.maybe_begin()

    # Consumers that do not answer -----------------------------------------------------------------------------------

    def limit(self, member: Member) -> None:
        """Give the consumer `rebalance_timeout_ms` for the oldest command that it has to answer, if there is one."""
        if not member.pending:
            return
        at_us = self._group.desk.now.mono_us + self._group.view.settings.rebalance_timeout_ms * 1_000
        self._group.desk.wake(self._group.name, ("command", member.consumer), at_us, self._late, member.consumer)

    def expect_readable(self, member: Member) -> None:
        """A consumer whose record or commands cannot be read blocks every topic: it has a time limit too."""
        key = ("unreadable", member.consumer)
        if not member.blocked_topics():
            self._group.desk.cancel_wake(self._group.name, key)
        elif not self._group.desk.is_awake_planned(self._group.name, key):
            at_us = self._group.desk.now.mono_us + self._group.view.settings.rebalance_timeout_ms * 1_000
            reason = "what it holds cannot be read"
            evict = self._group.departures.evict
            self._group.desk.wake(self._group.name, key, at_us, evict, member.consumer, reason)

    def _late(self, consumer: str) -> None:
        """A stop that is not acknowledged means eviction; a start is cancelled and tried again."""
        group = self._group
        member = group.view.members.get(consumer)
        if member is None or not member.pending or member.pending[0].node is None:
            return
        late = member.pending[0]
        if group.plan is not None:
            group.plan.late_members.add(consumer)
        if isinstance(late.command, StopFetcher):
            group.departures.evict(consumer, "stop-fetcher was not acknowledged in time", late)
        elif late.node is not None:
            cancel = group.leadership.fenced(Delete(late.node))
            group.desk.ask(group.name, cancel, self._cancelled, consumer, late)

    def _cancelled(self, reply: Reply, consumer: str, late: PendingCommand) -> None:
        group = self._group
        if group.leadership.is_deposed(reply):
            return
        if isinstance(reply, Done):
            self._drop_cancelled(consumer, late)
        elif isinstance(reply, Refused) and reply.refusal is Refusal.NO_NODE:
            # The acknowledgement was quicker, or the command is gone.
            owners = Get(paths.owners(group.name, consumer), watch=True)
            group.desk.ask(group.name, owners, self._gone_command_read, consumer, late)

    def _gone_command_read(self, reply: Reply, consumer: str, late: PendingCommand) -> None:
        self._group.membership.take_owners(reply, consumer)
        member = self._group.view.members.get(consumer)
        if isinstance(reply, Content) and member is not None and late in member.pending:
            self._drop_cancelled(consumer, late)  # deleted by somebody, but never applied

    def _drop_cancelled(self, consumer: str, late: PendingCommand) -> None:
        group = self._group
        member = group.view.members.get(consumer)
        if member is None or late not in member.pending:
            return
        member.pending.remove(late)
        member.failed_tries += 1
        self._answered(member)
        self.released(group.view.refresh(consumer))
        if member.failed_tries > group.view.settings.max_rebalance_retries:
            error = ConsumerRebalanceFailedError(group.name, (consumer,), member.failed_tries)
            group.desk.warn(str(error))
            group.departures.evict(consumer, "start-fetcher was not acknowledged in time")
            group.fail("a consumer did not acknowledge")
        elif group.plan is not None:
            self._take_back(consumer, late.command)
            self.advance((consumer,))
        else:
            group.request("retry")
        group.maybe_finish()
