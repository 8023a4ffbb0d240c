"""One group: what requests a rebalance, when it is planned and finished; and what follows from each fact.

The code follows a rebalance from top to bottom: request, debounce, queue, plan, carry out (`moving.py`), finish. The
parts of a group do not know one another: they report facts, and `handle` decides what each means for the others.
"""

from __future__ import annotations

from collections.abc import Iterator

from zkrebalancer.assignment.transition import Transition
from zkrebalancer.protocol import paths, settings
from zkrebalancer.protocol.calls import Content, Get, Reply
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.last_change import LastChange
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.rebalance import facts
from zkrebalancer.rebalance.authors import Authors
from zkrebalancer.rebalance.causes import Causes, Request
from zkrebalancer.rebalance.departures import Departures
from zkrebalancer.rebalance.effects import Computed
from zkrebalancer.rebalance.expiry import Expiries
from zkrebalancer.rebalance.history import History
from zkrebalancer.rebalance.leadership import Leadership
from zkrebalancer.rebalance.loading import Loading
from zkrebalancer.rebalance.loads import Loads
from zkrebalancer.rebalance.membership import Membership
from zkrebalancer.rebalance.moving import Moving
from zkrebalancer.rebalance.plan import Plan, Vacancies, make_plan
from zkrebalancer.rebalance.planning import Planning
from zkrebalancer.rebalance.reader import GroupReader
from zkrebalancer.rebalance.reconciling import RECONCILIATION, Reconciling
from zkrebalancer.rebalance.region import Region
from zkrebalancer.rebalance.scheduler import MAX_PAUSE_US, pause_us
from zkrebalancer.rebalance.states import REST, GroupState
from zkrebalancer.rebalance.static_members import StaticMembers
from zkrebalancer.rebalance.story import Story
from zkrebalancer.rebalance.topic_reset import TopicReset
from zkrebalancer.rebalance.view import GroupView, Member, Released

MIN_BACKOFF_US, MAX_BACKOFF_US = 100_000, 10_000_000


class Group:
    """A group under one leadership."""

    def __init__(self, name: str, leadership: Leadership) -> None:
        """Start empty; `load` reads the group."""
        scheduler, subscriptions = leadership.scheduler.part(name, group=name), leadership.subscriptions
        view = GroupView(name, subscriptions.topics)
        self.name, self.view, self._leadership, self._scheduler = name, view, leadership, scheduler
        self._adopting: Iterator[int] = iter(())  # what is left to do with the group as it was read
        self.story = Story(name)
        self._causes = Causes(scheduler, view)
        self._being_planned: Request | None = None
        self._carried_out: Request | None = None  # the request of the last plan
        self._load_trigger, self._ticket = "", 0  # of the computation whose answer is expected
        self._missed: set[tuple[str, ...]] = set()  # watches that fired while the group was being loaded
        self._last_generation = self._failures = 0
        self._outdated = self._outdated_us = 0  # readings in a row that ZooKeeper contradicted afterwards
        self._vacancies = Vacancies()
        self._loading = Loading(scheduler, view, leadership, self._loaded)
        self._membership = Membership(scheduler, view, subscriptions, self.handle)
        self._departures = Departures(scheduler, view, self.handle)
        self._static_members = StaticMembers(scheduler, view, self.handle)
        self._topic_reset = TopicReset(scheduler, view, self.handle)
        self._expiries = Expiries(scheduler, view)
        self._authors = Authors(scheduler, view, leadership.deletions)
        self._history = History(scheduler, view, leadership.epoch)
        self.region = Region(scheduler, view, self._is_at_rest)
        self._reconciling = Reconciling(name, scheduler, leadership, self._is_in_use, self._membership.list_ids)
        self.planning = Planning(view, subscriptions, scheduler.warn)
        self.loads = Loads(scheduler, view, leadership.weighing, self.handle)
        self._moving = Moving(scheduler, view, self._vacancies, leadership.epoch, self.handle)

    @property
    def state(self) -> GroupState:
        """The group's state."""
        return self.story.state

    def _is_at_rest(self) -> bool:
        return self.state in REST and self._causes.pending is None

    def _is_in_use(self) -> bool:
        return bool(self.view.members or self.view.evicted)  # a region has a timer of its own

    def _go(self, state: GroupState, reason: str) -> None:
        self.story.go(state, self._scheduler.now.mono_us, reason)
        self._moving.is_held_back = state in {GroupState.LOADING, GroupState.PLANNING}
        if state is not GroupState.LOADING:
            self._reconciling.expect()

    # Facts ------------------------------------------------------------------------------------------------------

    def handle(self, fact: facts.Fact) -> None:  # noqa: C901, PLR0912, PLR0915  # a table
        """Do what follows from a fact that one part has reported."""
        match fact:
            case facts.Changed(kind, subject):
                self.request(kind, subject)
            case facts.Joined(member) | facts.CommandsRead(member):
                self._moving.adopt_member(member)
                self.request("member-joined" if isinstance(fact, facts.Joined) else "retry", member.consumer)
            case facts.OwnersRead(member, before):
                self._note_turnover(member, before, member.owners or before)
                self._moving.owners_read(member, before)
            case facts.Broken(member):
                self._departures.evict_broken(member)
            case facts.CommandGone(consumer, missing):
                self._moving.drop_cancelled(consumer, missing)
            case facts.OwnersInDoubt(consumer, missing):
                self._membership.read_owners(consumer, missing)
            case facts.SessionOver(consumer):
                self._departures.end(consumer)
            case facts.CameAndWent(consumer):
                self._departures.sweep(consumer)
            case facts.Unanswered(consumer, reason, late):
                self._departures.evict(consumer, reason, late)
            case facts.OutOfReach(consumer):
                self._moving.pass_over(consumer)
            case facts.EvictionCalledOff(member):
                self._moving.limit_anew(member)
                self.request("retry")  # plans made in the meantime have left it out
            case facts.Left(member, released, kind):
                self._note_turnover(member, member.owners, None)
                self._leadership.subscriptions.replace(self.name, member.registration, None)
                self._moving.gone(member.consumer)
                if kind == "member-left":
                    self._static_members.left(member)
                else:
                    self._static_members.evicted(member)
                self._plan_without(released, kind, member.consumer)
            case facts.LeaseOver(released):
                self._plan_without(released, "lease-over", released.consumer)
            case facts.LetGo(released):
                self._note_released(released)
                if released.partitions and self.planning.leaves_all(released.consumer):
                    self.request("retry", released.consumer)  # so far, nobody else was to get them
            case facts.Advanced():
                self.maybe_finish()
            case facts.Failed(reason):
                self._fail(reason)
            case facts.SettingsInDoubt():
                self.read_settings()
            case facts.Outdated():
                self._load_anew()
            case facts.Readable():  # in its turn: a right is often given for all groups
                self._leadership.groups_to_load.add(self.name, "outdated", instead_of=RECONCILIATION)
            case _:
                raise TypeError(f"not a fact: {fact!r}")

    def _note_released(self, released: Released) -> None:
        """Note who released the partitions, and make the consumers that wait for them candidates for a command."""
        self._vacancies.note(released.consumer, released.partitions, self._scheduler.now.mono_us)
        self._moving.serve(released)
        if stale := [*filter(self.view.is_stale, {topic for topic, _number in released.partitions})]:
            self._topic_reset.begin_free(stale)  # others when the group is settled: checking all topics takes long

    def _note_turnover(self, member: Member, before: OwnersRecord | None, after: OwnersRecord | None) -> None:
        self._leadership.turnover.note(self.name, self._scheduler.now.epoch_ms, member.consumer, before, after)

    def _plan_without(self, released: Released, kind: str, consumer: str) -> None:
        """Request a plan without a consumer that is gone; until then, the present plan continues."""
        self._note_released(released)
        self.request(kind, consumer)
        self._moving.go_on()

    def _maybe_reset_topics(self) -> None:
        view, waits = self.view, self._topic_reset.absent_since_us
        if view.stale_topics() or view.renamed_topics(1) or view.absent_topics() or waits:
            self._topic_reset.maybe_begin()

    # Loading ----------------------------------------------------------------------------------------------------

    def load(self, trigger: str) -> None:
        """Read the group anew, because of `trigger`, and forget every reply that is still awaited.

        To reconcile a group that may never come to rest does not end its plan, which may be approved, or its limits.
        """
        if trigger == RECONCILIATION and self.state not in REST:
            if self.state is not GroupState.LOADING:
                self._reconciling.read_watched(self.view, self._settings_read, self._membership.read_again)
            return
        self._scheduler.forget()
        self._leadership.rebalance_request_queue.remove(self.name)
        self._leadership.subscriptions.forget_group(self.name)
        self._leadership.gone.discard(self.name)
        self._go(GroupState.LOADING, trigger)
        self._load_trigger = trigger
        self._moving.reset(is_after_break=trigger != "outdated")
        self._topic_reset.reset()
        self._membership.reset()
        self._history.reset(is_new_group=trigger == "group-created")
        self._loading.begin()

    def _load_anew(self, outcome: str = "failed") -> None:
        """Read the group again, because ZooKeeper contradicts the view: at once, then at growing intervals."""
        now_us = self._scheduler.now.mono_us
        tries = self._outdated if now_us < self._outdated_us + 2 * MAX_PAUSE_US else 0
        self._outdated, self._outdated_us = tries + 1, now_us
        if tries == 0:
            self.load("outdated")
            return
        self._end_plan(outcome)
        if self.state is GroupState.MOVING:
            self._go(GroupState.BACKING_OFF, "outdated again")
        if not self._scheduler.has_timer("outdated"):  # no request cancels it: the view is wrong
            self._scheduler.wake("outdated", now_us + pause_us(tries - 1), self.load, "outdated")

    def _loaded(self, reader: GroupReader) -> None:
        """Keep what was read, and begin to adopt it."""
        for problem in reader.problems.logged():  # every few minutes, for as long as nobody mends it
            self._scheduler.complain(f"{paths.group(self.name)}: {problem}", problem)
        view, new = self.view, reader.view
        gone = [member for name, member in sorted(view.members.items()) if name not in new.members]
        self._vacancies.follow(view, new, gone, self._scheduler.now.mono_us)
        self._departures.note_missing(new, reader.dead_channels(), is_mixed=() in self._missed)
        view.become(new)
        self._static_members.note_gone(gone)
        if self._load_trigger != RECONCILIATION:
            self._leadership.turnover.begin(self.name, self._scheduler.now.epoch_ms)
        self._adopting = self._adopt(reader)
        self._go_on_adopting()

    def _go_on_adopting(self) -> None:
        """Do as much as one step allows; until all is done, the group counts as being loaded."""
        for work in self._adopting:
            self._scheduler.spend(work)
            if not self._scheduler.has_time:
                self._scheduler.wake_soon("adopt", self._go_on_adopting)
                return
        self._adopting = iter(())  # a group at rest can be copied, as tests do, but no generator can

    def _adopt(self, reader: GroupReader) -> Iterator[int]:
        """Adopt what was read, in pieces, then request a rebalance; yield the work of each piece."""
        for member in self.view.members.values():
            if member.registration is not None:
                yield from self._leadership.subscriptions.add_in_parts(self.name, member.registration)
        yield from self._static_members.adopt()
        self.planning.touch_all()
        self._last_generation = max(self._last_generation, self.view.generation)
        self._end_plan("superseded")
        self._moving.adopt()
        yield from self._departures.adopt(reader.dead_channels())
        self._expiries.look()
        self._authors.adopt(is_new_group=self._load_trigger == "group-created")
        self._history.look()
        self.region.begin(self._loading.children)
        self.request(self._load_trigger)
        self._queue()
        missed, self._missed = self._missed, set()
        for path in sorted(missed):
            self.watched(path)
        self._membership.ask_again()

    def watched(self, path: tuple[str, ...]) -> None:
        """Read what changed below the group's node; if the group is being loaded, do so afterwards."""
        if self.state is GroupState.LOADING:
            self._missed.add(path)
        elif not path:
            self.read_settings()
        elif path[0] in {"", "region"}:
            self.region.watched(path)
        elif path == ("ids",):
            self._membership.list_ids()
        elif path[0] == "ids":
            self._membership.read_registration(path[1])
        elif path[0] == "owners":
            self._membership.read_owners(path[1])

    # Requests ---------------------------------------------------------------------------------------------------

    def request(self, kind: str, subject: str | None = None, author: LastChange | None = None) -> None:
        """Request a rebalance; one during a plan causes another plan. `subject`: see `Reason`."""
        self._causes.add(kind, subject, author)
        if self.state not in {GroupState.LOADING, GroupState.QUEUED, GroupState.PLANNING}:
            self._queue_debounced()

    def topics_changed(self, kind: str, topic: str) -> None:
        """Handle that a topic of the group was created, deleted or changed."""
        self.planning.touch_all()
        self.request(kind, topic)

    def _queue_debounced(self) -> None:
        """Queue at once after a quiet time, otherwise after the debounce time without a change, or at its cap."""
        if self._causes.queue_at_us <= self._scheduler.now.mono_us:
            self._queue()
        else:
            self._scheduler.wake("debounce", self._causes.queue_at_us, self._queue)

    def _queue(self) -> None:
        self._scheduler.cancel_wake("debounce")
        self._scheduler.cancel_wake("back-off")
        if (pending := self._causes.pending) is not None:
            self._go(GroupState.QUEUED, pending.cause.kind)
            self._leadership.rebalance_request_queue.add(self.name, pending.cause.kind)

    # Planning ---------------------------------------------------------------------------------------------------

    def begin_planning(self) -> None:
        """Bring the problem up to date, then pass it to the strategy; called when the group's turn comes."""
        self._being_planned = self._causes.take()
        self._go(GroupState.PLANNING, self._being_planned.cause.kind)
        self._ticket = self._scheduler.new_ticket()
        self.planning.begin()
        if self.planning.is_much_to_look_at:
            self._scheduler.wake_soon("planning", self._look)  # this step has been long enough
        else:
            self._look()

    def _look(self) -> None:
        if not (is_kept := self.planning.is_kept_as_read()) and not self.planning.look():
            self._scheduler.wake_soon("planning", self._look)
        elif is_kept or self.planning.is_kept(problem := self.planning.problem(), self._moving.outstanding):
            self.planning.keep(None)
            self._end_plan("superseded")
            self._send("nothing to send")
        else:
            if self.view.settings.strategy in self._leadership.weighing:
                problem = self.loads.weigh(problem)
            self._scheduler.do(self.planning.task(self._ticket, problem))

    def computed(self, event: Computed) -> None:
        """Handle the strategy's answer; the answer to an earlier computation is dropped."""
        request = self._being_planned
        if event.ticket != self._ticket or self.state is not GroupState.PLANNING or request is None:
            return
        if event.transition is None:
            if self.planning.note_refused(event.error):
                self._scheduler.warn(f"{event.error}; the partitions stay where they are")
            self._back_off(event.error or "no assignment")
            self._moving.go_on()  # the former plan still applies
        elif self.planning.is_outdated:
            self._causes.put_back(request)
            self._end_plan("superseded")
            self._send("decided under former settings")
        else:
            self.planning.keep(event.transition.columns)
            self._carry_out(event.transition, request, event.elapsed_us)

    def _carry_out(self, transition: Transition, request: Request, plan_us: int) -> None:
        """Make a plan from the strategy's decision and send its commands, unless every consumer has its share."""
        self._end_plan("superseded")
        generation = self._last_generation + 1
        deviations = self.planning.deviations(transition, self._moving.outstanding)
        self._scheduler.note_unapproved(self.planning.waiting, self.view.settings.approve_moves_above)
        wanted = request.cause, request.requested_us, generation
        plan = make_plan(self.view, self._vacancies, transition, deviations, *wanted)
        if plan is None:
            self._send("nothing to send")
            return
        self._last_generation = generation
        counts = {"member_count": len(self.view.members), "partition_count": transition.assigned_count}
        counts |= {"moved_count": plan.moved_count, "plan_us": plan_us}
        ways = {"mode": plan.mode, "strategy": self.view.settings.strategy}
        self._scheduler.emit("rebalance_planned", generation, request.cause.id, **ways, **counts)
        plan.made_us, self._carried_out = self._scheduler.now.mono_us, request
        self._send(f"generation {generation}", plan)

    def _send(self, reason: str, plan: Plan | None = None) -> None:
        """Carry out a plan, None if there is nothing to do; later requests are planned next."""
        self._go(GroupState.MOVING, reason)
        if plan is not None:
            self._moving.begin(plan)
        self.maybe_finish()
        if self._causes.pending is not None and self.state is GroupState.MOVING:
            self._queue_debounced()

    # Finishing --------------------------------------------------------------------------------------------------

    def maybe_finish(self) -> None:
        """End the plan once every command is sent and acknowledged."""
        if not self._moving.is_complete:
            return
        if (plan := self._moving.plan) is not None:
            self._end_plan("finished")
            self._failures = self._outdated = 0
            if plan.transition.withholds or self.planning.gives_back:
                self.request("released")  # the next plan assigns what this one only revoked, or only gave back
        if self.state is GroupState.MOVING:
            self._scheduler.note_unapproved(self.planning.waiting, self.view.settings.approve_moves_above)
            self._rest("all commands acknowledged")

    def _fail(self, reason: str) -> None:
        """Report that the rebalance did not succeed, and retry later; a group is never given up."""
        self._end_plan("failed")
        if self.state is GroupState.MOVING:
            self._back_off(reason)

    def _end_plan(self, outcome: str) -> None:
        plan, self._moving.plan = self._moving.plan, None
        if plan is None:
            return
        summary = plan.summary(self._scheduler.now.mono_us)
        self._scheduler.emit("rebalance_finished", plan.generation, plan.cause.id, outcome=outcome, **summary)
        if self._carried_out is not None:
            self._history.ended(plan, self._carried_out, outcome)

    def _rest(self, reason: str) -> None:
        """Be settled; a group that was found empty is read again when it has members."""
        self._go(self.planning.state_at_rest, reason)
        self._failures = 0
        self._scheduler.note_backing_off(None)
        self._maybe_reset_topics()
        self._reconciling.rest(is_found_empty=self._load_trigger == RECONCILIATION)
        if self._causes.pending is not None:
            self._queue_debounced()
        self.region.look()

    def _back_off(self, reason: str) -> None:
        self._failures += 1
        self._go(GroupState.BACKING_OFF, reason)
        self._scheduler.note_backing_off(reason)
        delay_us = min(MAX_BACKOFF_US, MIN_BACKOFF_US * 2 ** min(self._failures - 1, 10))
        if self._causes.pending is None:
            self._causes.begin("retry")
        self._scheduler.wake("back-off", self._scheduler.now.mono_us + delay_us, self._queue)

    # Settings ---------------------------------------------------------------------------------------------------

    def read_settings(self) -> None:
        """Read the settings node. An operator requests a rebalance by writing it unchanged."""
        self._scheduler.ask(Get(paths.group(self.name), watch=True), self._settings_read)

    def _settings_read(self, reply: Reply) -> None:
        if isinstance(reply, Content):
            if reply.stat.created_zxid != self.view.created_zxid:
                self.load("group-created")  # deleted and created again: nothing that was known is valid
                return
            known, self.view.settings_version = self.view.settings_version, reply.stat.version
            try:
                new = settings.decode(reply.content)
            except NodeContentError as error:
                self._scheduler.complain(paths.group(self.name), f"{error}; the former settings stay in force")
                return
            before, self.view.settings = self.view.settings, new
            self._expiries.look()
            author = self._authors.note(reply)
            if (changed := new != before) and new.renews_pause_of(before):
                return
            plan = self._moving.plan if changed else None
            if plan is not None and (self._moving.is_sending or not plan.is_all_sent(self.view.members)):
                self._end_plan("superseded")  # commands in flight or unsent were decided under other settings
            subject = ", ".join(settings.differing(before, new)) if changed else None
            self.request("settings-changed" if changed else "operator-request", subject, author)
            if before.paused_by and not new.starts_paused:
                self.load("outdated")  # the operation may have deleted what is known, such as marks
            elif reply.stat.version > known + 1 and not new.starts_paused:
                self._load_anew("superseded")  # as may one that was not seen; at once, writes would prevent every plan
        else:
            self._leadership.gone.add(self.name)
