"""Carries out a plan: sends commands, handles acknowledgements, and cancels or reports what is not answered in time.

At most one transaction of commands is in flight, and a consumer has at most one command to answer, so that partitions
released meanwhile join the next transaction (`gathering.py` lets a start wait a moment for more of them).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from functools import partial

from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Delete, Done, Get, Refusal, Refused, Reply
from zkrebalancer.protocol.command import Command, StartFetcher, StopFetcher
from zkrebalancer.protocol.errors import ConsumerRebalanceFailedError
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.protocol.registration import stop_limit_ms
from zkrebalancer.rebalance import facts
from zkrebalancer.rebalance import plan as plans
from zkrebalancer.rebalance.batch import GROUP_INDEX, Batch, GivenRecords, version_in
from zkrebalancer.rebalance.effects import Warn
from zkrebalancer.rebalance.full import Full
from zkrebalancer.rebalance.gathering import Gathering
from zkrebalancer.rebalance.left_out import LeftOut
from zkrebalancer.rebalance.plan import Plan, Start, Vacancies, keeps_its_share
from zkrebalancer.rebalance.scheduler import ANY, RACES, PartScheduler
from zkrebalancer.rebalance.states import MemberState
from zkrebalancer.rebalance.view import GroupView, Member, PendingCommand, Released

# Limits of one step's work, so that no other group waits long for its turn (`tests/benchmarks/hub.py`).
MAX_COMMANDS_PER_TRANSACTION = 64
MAX_LOOKS_PER_TRANSACTION = 700  # consumers and partitions to examine; the command that exceeds it is still included
MAX_RECORDED_PER_TRANSACTION = 20_000  # partitions in the records of what the receivers of starts may own
MAX_TRANSACTION_BYTES = 500_000  # of commands and what is written with them; ZooKeeper's own limit also applies


class Moving:
    """The commands of one group."""

    def __init__(
        self, scheduler: PartScheduler, view: GroupView, vacancies: Vacancies, epoch: int, report: facts.Report
    ) -> None:
        """Send nothing yet."""
        self._scheduler = scheduler
        self._view = view
        self._vacancies = vacancies
        self._epoch = epoch
        self._report = report
        self._given = GivenRecords(scheduler, view, report)
        self._full = Full(scheduler, view)
        self._left_out = LeftOut(scheduler, view, report)
        self._candidates: OrderedDict[str, None] = OrderedDict()  # consumers to which something may be sent now
        self._gathering = Gathering(scheduler, view, self._candidates, self.go_on)
        self.plan: Plan | None = None
        self.is_held_back = True  # nothing is sent while the group is read, or a new plan is made
        self.is_sending = False  # a transaction in flight may be refused, and its commands sent again
        self.outstanding: set[str] = set()  # consumers that have commands to answer
        self._late: dict[str, tuple[str, int]] = {}  # consumer -> its oldest command, and when its answer is late

    @property
    def is_complete(self) -> bool:
        """Whether every command is sent and acknowledged, and every consumer has its share of the plan."""
        return not (self.outstanding or self.is_sending or (self.plan is not None and self.plan.unserved))

    def reset(self, *, is_after_break: bool) -> None:
        """Forget outstanding commands, because the group is read again, which finds them in the channels.

        Their time limits stay, unless the connection was broken: then consumers may also have been cut off.
        """
        if is_after_break:
            self._late.clear()
        self.is_sending = False
        for part in (self._given, self._left_out, self._gathering):
            part.reset()
        self.outstanding.clear()
        self._candidates.clear()

    def adopt(self) -> None:
        """After loading, adopt the pending commands, with a time limit for each."""
        self._late = {consumer: late for consumer, late in self._late.items() if consumer in self._view.members}
        for member in self._view.members.values():
            self.adopt_member(member)
        self._left_out.adopt()
        self._given.look()
        self._full.adopt()

    def adopt_member(self, member: Member) -> None:
        """Adopt the commands that one consumer has to answer."""
        if member.pending:
            self.outstanding.add(member.consumer)
            self.limit(member)
        self.expect_readable(member)

    # Sending --------------------------------------------------------------------------------------------------------

    def begin(self, plan: Plan) -> None:
        """Carry out a plan, at once or, if there is much to send, in a separate step."""
        self.plan = plan
        self._candidates.update(dict.fromkeys(sorted(plan.unserved)))
        if len(plan.unserved) <= MAX_COMMANDS_PER_TRANSACTION:
            self.advance()
        else:
            self._advance_later()

    def advance(self, consumers: Iterable[str] = ()) -> None:
        """Send what can be sent now, to these consumers and to those that could not be served before."""
        self._candidates.update(dict.fromkeys(consumers))
        plan = self.plan
        if plan is None or self.is_sending or self.is_held_back:
            return
        batch = Batch(self._scheduler, self._view, plan)
        looks = 0
        while self._candidates:
            consumer, _ = self._candidates.popitem(last=False)
            next_command, looked = self._next_command(plan, consumer)
            looks += 1 + looked
            if next_command is not None and not batch.add(consumer, next_command):
                if batch.full is None:
                    self._candidates[consumer] = None
                else:
                    self._full.note(consumer)
                    self._drop(consumer)
                break
            if (
                len(batch.commands) >= MAX_COMMANDS_PER_TRANSACTION
                or looks >= MAX_LOOKS_PER_TRANSACTION
                or batch.recorded_count >= MAX_RECORDED_PER_TRANSACTION
                or batch.size_bytes >= MAX_TRANSACTION_BYTES
            ):
                break
        if batch.commands:
            self._send(batch)
        elif self._candidates:
            self._advance_later()

    def _advance_later(self) -> None:
        self._scheduler.wake_soon("advance", self.go_on)

    def go_on(self, consumers: Iterable[str] = ()) -> None:
        """Send what can be sent now, for instance what was held back."""
        self.advance(consumers)
        self._report(facts.Advanced())

    def _next_command(self, plan: Plan, consumer: str) -> tuple[Command | None, int]:
        member = self._view.members.get(consumer)
        if member is None or member.state is not MemberState.READY or member.owners is None or member.is_refused:
            return None, 0
        may_start = partial(self._view.may_start, consumer)
        step, looked = plans.next_step(plan, consumer, member.owners.partitions, may_start)
        if step is None:
            plan.look_at(member, self._view.is_withheld)
        if step is None or (isinstance(step, Start) and self._gathering.waits(consumer, step.lacking)):
            return None, looked
        return plans.to_command(plan, consumer, step, self._scheduler.new_id(), self._epoch), looked

    def _send(self, batch: Batch) -> None:
        view = self._view
        for consumer, sent in batch.commands:
            view.members[consumer].pending.append(PendingCommand(sent, None))
            self.outstanding.add(consumer)
            view.refresh(consumer)
            if isinstance(sent, StartFetcher):
                view.unrecorded.pop(consumer, None)  # the transaction records it
                self._gathering.sent(consumer)
        batch.note_statics()
        for instance in batch.left_out:
            self._scheduler.warn(
                f"static member {instance}: its record is too large, its partitions will not wait for it"
            )
        self.is_sending = True
        self._scheduler.write(batch.operations(), self._sent, batch, expected=ANY)

    def _sent(self, reply: Reply, batch: Batch) -> None:
        self.is_sending = False
        if isinstance(reply, Refused):
            self._not_sent(reply, batch)
        elif isinstance(reply, Done):
            self._note_sent(reply, batch)
        self.go_on()

    def _note_sent(self, reply: Done, batch: Batch) -> None:
        view = self._view
        if batch.generation_index is not None:
            batch.plan.stored = True
            view.generation = batch.plan.generation
            view.generation_version = version_in(reply, batch.generation_index, view.generation_version)
        if batch.mark_index is not None:
            view.given_version = version_in(reply, batch.mark_index, view.given_version)
        view.incarnations.update(batch.incarnations)
        view.recorded_incarnations.update(batch.incarnations)
        view.recorded.update(batch.recorded)
        if any(map(view.is_stale, batch.incarnations)):
            self._report(facts.Changed("topic-recreated"))  # while the transaction was in flight
        for (consumer, sent), node in zip(batch.commands, reply.results[batch.first_index :], strict=True):
            member = view.members.get(consumer)
            if member is None:
                self._report(facts.CameAndWent(consumer))  # while the transaction was in flight
                continue
            member.refused_tries = 0
            if isinstance(sent, StartFetcher):
                view.end_waiting(sent.partitions)
            for pending in member.pending:
                if pending.command is sent and isinstance(node, str):
                    pending.node, pending.sent_at_ms = node, self._scheduler.now.epoch_ms
            if member.instance is not None:
                self._scheduler.cancel_wake(("static", member.instance))
            self.limit(member)
            batch.plan.timing.sent(sent, self._scheduler.now.mono_us)
            count = len(view.held_by(consumer) if sent.partitions is None else sent.partitions)
            own = {"command_id": sent.command_id, "option": sent.option, "member": consumer}
            numbers = {"partition_count": count, "asked_us": batch.asked_us}
            self._scheduler.emit("command_sent", sent.generation, sent.cause.id, **own, **numbers)

    def _not_sent(self, reply: Refused, batch: Batch) -> None:
        """Find out why nothing was written, and send the rest again."""
        batch.forget_statics(reply)
        for consumer, sent in batch.commands:
            member = self._view.members.get(consumer)
            if member is not None:
                member.pending = [pending for pending in member.pending if pending.command is not sent]
                self._unsent(member)
        concerned, topic = batch.concerned(reply.index)
        is_race = reply.refusal in RACES
        if concerned is not None and not is_race:
            for consumer in self._left_out.leave_out(batch.refused_with(reply)):
                self._drop(consumer)
        elif topic is not None and not is_race:
            self._left_out.bar(batch.topics_like(reply.index))
        elif concerned is not None and batch.is_command(reply.index):
            self._note_without_channel(concerned)
            self._report(facts.OwnersInDoubt(concerned))
        elif reply.index == GROUP_INDEX and is_race:
            self._report(facts.SettingsInDoubt())
        elif reply.refusal in {Refusal.BAD_VERSION, Refusal.NODE_EXISTS, Refusal.NO_NODE}:
            self._report(facts.Outdated())
        else:
            self._report(facts.Failed(reply.refusal.value))

    def _note_without_channel(self, consumer: str) -> None:
        """Handle a missing channel: the session is over, or the consumer will leave by itself or be evicted."""
        member = self._view.members.get(consumer)
        if member is not None:
            member.unreadable_commands = True
            self._report(facts.LetGo(self._view.refresh(consumer)))
            self.expect_readable(member)

    def _unsent(self, member: Member) -> None:
        """Forget a command that was refused or cancelled; its partitions are sent again if the plan still needs it."""
        released = self._view.refresh(member.consumer)
        self._given.look()
        self._answered(member)
        self._report(facts.LetGo(released))
        self._candidates[member.consumer] = None

    def _drop(self, consumer: str) -> None:
        """Leave a consumer out of the rest of this plan: send it nothing, and do not wait for it."""
        self._gathering.drop(consumer)
        if self.plan is not None and self.plan.drop(consumer):
            self._serve_all(self.plan)

    def pass_over(self, consumer: str) -> None:
        """Let the others start, and set no limit: nobody knows how long ZooKeeper will refuse what shows its answer."""
        self._late.pop(consumer, None)
        self._scheduler.cancel_wake(("command", consumer))
        if self.plan is not None and self.plan.pass_over(consumer):
            self._serve_all(self.plan)
        may_get_some = self.is_held_back or (self.plan is not None and self.plan.waits_for(consumer))
        if may_get_some and keeps_its_share(self._view, self._view.members[consumer]):
            self._drop(consumer)
            self._report(facts.Changed("member-refused", consumer))  # others get what it cannot be given
        self.go_on()

    def gone(self, consumer: str) -> None:
        """Forget a consumer that is no longer a member."""
        self.outstanding.discard(consumer)
        self._late.pop(consumer, None)
        for name in ("command", "unreadable"):
            self._scheduler.cancel_wake((name, consumer))
        self._drop(consumer)

    def _serve_all(self, plan: Plan) -> None:
        self._candidates.update(dict.fromkeys(sorted(plan.unserved)))

    def serve(self, released: Released) -> None:
        """Make the consumers that wait for released partitions candidates for a start."""
        if self.plan is None:
            return
        for partition in sorted(released.partitions):
            waiting = self.plan.waiting(partition)
            if waiting is not None:
                self._gathering.freed(waiting)
        if released.unblocked:
            self._serve_all(self.plan)

    # Acknowledgements -----------------------------------------------------------------------------------------------

    def owners_read(self, member: Member, before: OwnersRecord | None) -> None:
        """Handle that `owners/C` was read again; only this shows what is acknowledged."""
        acknowledged: list[PendingCommand] = []
        if member.owners is not None:
            for position, pending in enumerate(member.pending):
                if pending.command.command_id == member.owners.command_id:
                    acknowledged = member.pending[: position + 1]
                    member.pending = member.pending[position + 1 :]
                    break
        self.expect_readable(member)
        released = self._view.refresh(member.consumer)
        for pending in acknowledged:
            self._acknowledged(member, pending.command)
        if acknowledged:
            self._answered(member)
        elif before is None or (member.pending and member.consumer not in self._late):
            if not self._scheduler.has_timer(("command", member.consumer)):
                self.limit(member)  # whether it has answered could not be seen
        elif member.owners is not None and (released.partitions or before.partitions != member.owners.partitions):
            self._report(facts.Changed("ownership-changed", member.consumer))  # not by a command of ours that was read
        self._given.look()
        self._report(facts.LetGo(released))
        self.go_on((member.consumer,))

    def _acknowledged(self, member: Member, done: Command) -> None:
        plan = self.plan
        member.failed_tries = 0
        own = {"command_id": done.command_id, "member": member.consumer}
        self._scheduler.emit("command_acked", done.generation, done.cause.id, **own)
        if plan is not None and plan.acknowledged(member.consumer, done, self._scheduler.now.mono_us):
            self._serve_all(plan)
        if isinstance(done, StartFetcher):
            pause_us = self._vacancies.fill(done.partitions, self._scheduler.now.mono_us)
            if plan is not None:
                plan.pause_us_max = max(plan.pause_us_max, pause_us)

    def _answered(self, member: Member) -> None:
        if member.pending:
            self.limit(member)
            return
        self.outstanding.discard(member.consumer)
        self._scheduler.cancel_wake(("command", member.consumer))
        self._gathering.answered(member.consumer)
        if member.is_refused:
            self._left_out.answered(member.consumer)
        if self.plan is not None:
            self.plan.look_at(member, self._view.is_withheld)

    # Consumers that do not answer -----------------------------------------------------------------------------------

    def limit(self, member: Member) -> None:
        """Limit the time for the oldest command that the consumer has to answer, if its answer can be seen."""
        if member.pending and not self._is_record_refused(member):
            oldest = member.pending[0].command
            limited, late_us = self._late.get(member.consumer, ("", 0))
            if limited != oldest.command_id:
                late_us = self._limit_us(member.stop_timeout_ms if isinstance(oldest, StopFetcher) else None)
                self._late[member.consumer] = oldest.command_id, late_us
            self._await_answer(member.consumer, late_us)

    def limit_anew(self, member: Member) -> None:
        """Give the consumer the whole time again."""
        self._late.pop(member.consumer, None)
        self.limit(member)

    def _await_answer(self, consumer: str, late_us: int) -> None:
        """Wait until an answer is late, but check earlier whether the command still exists."""
        at_us = min(late_us, self._limit_us())
        self._scheduler.wake(("command", consumer), at_us, self._look, consumer, late_us)

    def expect_readable(self, member: Member) -> None:
        """Limit the time of a consumer that gets no command, because a node of it cannot be read.

        If ZooKeeper refuses to show a command, the limit is that of its answer, which deletes the command. While
        ZooKeeper refuses to show its record or channel, no answer can be seen, and there is no limit.
        """
        key = ("unreadable", member.consumer)
        if member.is_readable or self._is_record_refused(member):
            self._scheduler.cancel_wake(key)
        elif not self._scheduler.has_timer(key):
            what = "what it holds" if member.owners is None else "its commands"
            unreadable = facts.Unanswered(member.consumer, f"{what} cannot be read")
            stop_timeout_ms = member.stop_timeout_ms if member.refused else None  # one may be a stop
            self._scheduler.wake(key, self._limit_us(stop_timeout_ms), self._report, unreadable)

    def _is_record_refused(self, member: Member) -> bool:
        group, consumer = self._view.group, member.consumer
        return not member.refused.isdisjoint({paths.owners(group, consumer), paths.channel(group, consumer)})

    def _limit_us(self, stop_timeout_ms: int | None = None) -> int:
        limit_ms = stop_limit_ms(stop_timeout_ms, self._view.settings.rebalance_timeout_ms)
        return self._scheduler.now.mono_us + limit_ms * 1_000

    def _look(self, consumer: str, late_us: int) -> None:
        member = self._view.members.get(consumer)
        pending = member.pending[0] if member is not None and member.pending else None
        if pending is None or pending.node is None:
            return
        if self._scheduler.now.mono_us < late_us:
            self._scheduler.ask(Get(pending.node), self._looked, consumer, pending, late_us, expected=ANY)
        else:
            self._answer_is_late(consumer, pending)

    def _looked(self, reply: Reply, consumer: str, pending: PendingCommand, late_us: int) -> None:
        if reply == Refused(Refusal.NO_NODE):
            self._report(facts.OwnersInDoubt(consumer, pending))
        elif (member := self._view.members.get(consumer)) is not None and member.pending[:1] == [pending]:
            self._await_answer(consumer, late_us)

    def _answer_is_late(self, consumer: str, late: PendingCommand) -> None:
        """Evict the consumer if a stop is late; cancel a late start and send it again."""
        if self.plan is not None:
            self.plan.late_members.add(consumer)
        if isinstance(late.command, StopFetcher):
            self._report(facts.Unanswered(consumer, "stop-fetcher was not acknowledged in time", late))
        elif late.node is not None:
            self._scheduler.write([Delete(late.node)], self._cancelled, consumer, late, expected=ANY)

    def _cancelled(self, reply: Reply, consumer: str, late: PendingCommand) -> None:
        if isinstance(reply, Done):
            self.drop_cancelled(consumer, late)
        elif isinstance(reply, Refused) and reply.refusal is Refusal.NO_NODE:
            self._report(facts.OwnersInDoubt(consumer, late))  # acknowledged just now, or deleted by other means
        elif isinstance(reply, Refused) and reply.refusal in RACES:  # a foreign node is below it: no ack will come
            self._report(facts.Unanswered(consumer, f"{late.node} cannot be removed: {reply.refusal.value}", late))
        elif (member := self._view.members.get(consumer)) is not None and late in member.pending:
            self._left_out.close(member)  # a right is missing, which is no reason to evict it
            self._report(facts.OutOfReach(consumer))
            self._await_answer(consumer, self._limit_us())

    def drop_cancelled(self, consumer: str, late: PendingCommand) -> None:
        """Retry a command that is gone and was never applied, unless that was the last try."""
        member = self._view.members.get(consumer)
        if member is None or late not in member.pending:
            return
        member.pending.remove(late)
        member.failed_tries += 1
        if member.failed_tries > self._view.settings.max_rebalance_retries:
            self._report(facts.LetGo(self._view.refresh(consumer)))
            self._answered(member)
            error = ConsumerRebalanceFailedError(self._view.group, (consumer,), member.failed_tries)
            self._scheduler.do(Warn(str(error)))
            self._report(facts.Unanswered(consumer, f"{late.command.option} was not acknowledged in time"))
            self._report(facts.Failed("a consumer did not acknowledge"))
        else:
            self._unsent(member)
            if self.plan is not None:
                self.advance()
            else:
                self._report(facts.Changed("retry"))
        self._report(facts.Advanced())
