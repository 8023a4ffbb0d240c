"""One group's state machine: what asks for a rebalance, when it is planned, and when it is finished.

Reads top to bottom as a rebalance goes: request, (debounce), queue, plan, move (`moving.py`), finish.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from zkrebalancer.assignment.transition import Transition
from zkrebalancer.protocol import paths, settings
from zkrebalancer.protocol.calls import Content, Get, Refusal, Refused, Reply
from zkrebalancer.protocol.cluster_nodes import Topic
from zkrebalancer.protocol.command import Cause
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.registration import Registration
from zkrebalancer.rebalance.departures import Departures
from zkrebalancer.rebalance.effects import Computed
from zkrebalancer.rebalance.leadership import RECONCILE_INTERVAL_US, Leadership
from zkrebalancer.rebalance.loading import Loading
from zkrebalancer.rebalance.loads import Loads
from zkrebalancer.rebalance.membership import Membership
from zkrebalancer.rebalance.moving import Moving
from zkrebalancer.rebalance.plan import Plan, make_plan
from zkrebalancer.rebalance.planning import Planning, exists
from zkrebalancer.rebalance.states import GroupState, Story
from zkrebalancer.rebalance.static_members import StaticMembers
from zkrebalancer.rebalance.topic_reset import TopicReset
from zkrebalancer.rebalance.view import GroupView, Vacancy

MIN_BACKOFF_US = 100_000
MAX_BACKOFF_US = 10_000_000
MAX_VACANT = 10_000  # of more, pauses and moves are not counted
REST = frozenset({GroupState.IDLE, GroupState.FROZEN})


class Group:
    """A group under one leadership. Its parts share the view, the plan and the way to ask for a rebalance."""

    def __init__(self, name: str, leadership: Leadership) -> None:
        """Know nothing yet; `load` reads the group."""
        self.name = name
        self.leadership = leadership
        self.desk = leadership.desk
        self.story = Story(name)
        self.view = GroupView()
        self.plan: Plan | None = None
        self.vacant: dict[TopicPartition, Vacancy] = {}  # what nobody holds, at most MAX_VACANT
        self.cause: Cause | None = None  # set: the group is dirty, something changed since the last plan
        self.requested_us = 0
        self._planning_cause: tuple[Cause, int] | None = None
        self._planning_error: str | None = None  # why the last try gave no assignment
        self.is_gone = False  # its node was not there when it was read; it may come back before the groups are listed
        self._load_trigger = ""
        self._missed: set[tuple[str, ...]] = set()  # watches that fired while the group was being loaded
        self._last_generation = 0
        self._last_change_us = -(10**12)
        self._answer_at_us = 0
        self._failures = 0
        self.loading = Loading(self)
        self.planning = Planning(self)
        self.loads = Loads(self)
        self.membership = Membership(self)
        self.moving = Moving(self)
        self.departures = Departures(self)
        self.static_members = StaticMembers(self)
        self.topic_reset = TopicReset(self)

    @property
    def state(self) -> GroupState:
        """What the group is doing."""
        return self.story.state

    def go(self, state: GroupState, reason: str) -> None:
        """Change the state."""
        self.story.go(state, self.desk.now.mono_us, reason)

    # Loading ---------------------------------------------------------------------------------------------------

    def load(self, trigger: str) -> None:
        """Read the group anew, because of `trigger`, and forget every answer that is still awaited.

        A leader loads by this path at any time.
        """
        self.desk.forget(self.name)
        self.leadership.rebalance_request_queue.discard(self.name)
        self._drop_interest()
        self.is_gone = False
        self.go(GroupState.LOADING, trigger)
        self._load_trigger = trigger
        self.loading.begin()

    def loaded(self, view: GroupView) -> None:
        """Take over what was read, adopt the commands that are pending, and look whether a rebalance is needed."""
        known, self.view = self.view, view
        for consumer, member in view.members.items():
            if consumer in known.members:
                member.failed_tries = known.members[consumer].failed_tries
            if member.registration is not None:
                self.leadership.subscriptions.add(self.name, member.registration)
        self.vacant = {tp: vacancy for tp, vacancy in self.vacant.items() if not view.holders(tp)}
        for consumer in sorted(known.members.keys() - view.members.keys()):
            self.note_vacant(consumer, (tp for tp in known.held_by(consumer) if not view.holders(tp)))
        self.planning.touch_all()
        self._last_generation = max(self._last_generation, view.generation)
        self._end_plan("superseded")
        self.moving.adopt()
        self.departures.adopt()
        self.static_members.adopt()
        self.request(self._load_trigger)
        self._queue()
        missed, self._missed = sorted(self._missed), set()
        for path in missed:
            self.watched(path)

    def watched(self, path: tuple[str, ...]) -> None:
        """Something below the group's node changed; while the group is being loaded, look at it afterwards."""
        if self.state is GroupState.LOADING:
            self._missed.add(path)
        elif not path:
            self.read_settings()
        elif path == ("ids",):
            self.membership.list_ids()
        elif path[0] == "ids":
            self.membership.read_registration(path[1])
        elif path[0] == "owners":
            self.membership.read_owners(path[1])

    # Requests ---------------------------------------------------------------------------------------------------

    def request(self, kind: str) -> None:
        """Ask for a rebalance. Asked twice it runs once; asked while one runs, the group is dirty and runs again."""
        now = self.desk.now.mono_us
        debounce_us = self.view.settings.rebalance_debounce_ms * 1_000
        was_quiet = now >= self._last_change_us + debounce_us
        self._last_change_us = now
        if self.cause is None:
            self.cause = Cause(self.desk.new_id(), kind)
            self.requested_us = now
            self._answer_at_us = now if was_quiet else now + debounce_us
            self.desk.emit("rebalance_requested", self.name, self.view.generation, self.cause.id, trigger=kind)
        else:
            cap_us = self.view.settings.rebalance_debounce_cap_ms * 1_000
            self._answer_at_us = max(self._answer_at_us, min(now + debounce_us, self.requested_us + cap_us))
        if self.state not in {GroupState.LOADING, GroupState.QUEUED, GroupState.PLANNING}:
            self._wake_debounced()

    def _wake_debounced(self) -> None:
        """Answer the first change at once; gather those that follow soon, but not for ever."""
        if self._answer_at_us <= self.desk.now.mono_us:
            self._queue()
        else:
            self.desk.wake(self.name, "debounce", self._answer_at_us, self._queue)

    def _queue(self) -> None:
        self.desk.cancel_wake(self.name, "debounce")
        self.desk.cancel_wake(self.name, "back-off")
        if self.cause is not None:
            self.go(GroupState.QUEUED, self.cause.kind)
            self.leadership.rebalance_request_queue.put(self.name)

    # Planning ---------------------------------------------------------------------------------------------------

    def begin_planning(self) -> None:
        """Its turn has come: hand the problem to the strategy."""
        cause = self.cause
        if cause is None:
            raise AssertionError(f"group {self.name} was queued without a cause")
        self.go(GroupState.PLANNING, cause.kind)
        self._planning_cause, self.cause = (cause, self.requested_us), None
        self.planning.begin()

    def computed(self, event: Computed) -> None:
        """Take the strategy's answer; one to an older question is dropped."""
        if not self.planning.takes(event.ticket) or self.state is not GroupState.PLANNING:
            return
        if self._planning_cause is None:
            raise AssertionError(f"group {self.name} planned without a cause")
        cause, requested_us = self._planning_cause
        if event.transition is None:
            if event.error != self._planning_error:  # it is tried again and again, but said once
                self.desk.warn(f"group {self.name}: {event.error}; the partitions stay where they are")
            self._planning_error = event.error
            self._back_off(event.error or "no assignment")
            return
        self._planning_error = None
        self.planning.keep(event.transition.columns)
        self._carry_out(event.transition, cause, requested_us, event.elapsed_us)

    def _carry_out(self, transition: Transition, cause: Cause, requested_us: int, plan_us: int) -> None:
        """Send what is needed to reach what the strategy decided, if anything is."""
        self._end_plan("superseded")
        generation = self._last_generation + 1
        deviations = self.planning.deviations(transition)
        self.plan = make_plan(self.view, self.vacant, transition, deviations, cause, requested_us, generation)
        if self.plan is None:
            self.go(GroupState.MOVING, "nothing to send")
            self.maybe_finish()
            return
        self._last_generation = generation
        self.desk.emit(
            "rebalance_planned",
            self.name,
            self.plan.generation,
            cause.id,
            mode=self.plan.mode,
            member_count=len(self.view.members),
            partition_count=transition.assigned_count,
            moved_count=self.plan.moved_count,
            plan_us=plan_us,
        )
        self.go(GroupState.MOVING, f"generation {self.plan.generation}")
        self.moving.begin(sorted(self.plan.stops.keys() | self.plan.starts.keys()))
        self.maybe_finish()
        if self.cause is not None and self.state is GroupState.MOVING:
            self._wake_debounced()

    @property
    def topics(self) -> dict[str, Topic]:
        """The topics of the cluster."""
        return self.leadership.subscriptions.topics

    def may_start(self, consumer: str, partition: TopicPartition) -> bool:
        """Whether a start-fetcher for the partition may be sent to the consumer now."""
        if self.view.settings.starts_paused or self.topic_reset.is_stale(partition[0]):
            return False
        if not exists(self, partition):
            return False  # deleted since the plan was made; the next plan leaves it out
        return self.view.is_free_for(consumer, partition)

    # Finishing --------------------------------------------------------------------------------------------------

    def maybe_finish(self) -> None:
        """End the plan once every command is sent and acknowledged."""
        if self.moving.outstanding or self.moving.sending or not (self.plan is None or self.plan.everything_sent):
            return
        if self.plan is not None:
            withholds = self.plan.transition.withholds
            self._end_plan("finished")
            self._failures = 0
            if withholds:
                self.request("released")  # what was taken from its holders can be given now
        if self.state is GroupState.MOVING:
            self._rest("all commands acknowledged")

    def fail(self, reason: str) -> None:
        """The rebalance did not succeed: report it, and try again later; a group is never given up."""
        self._end_plan("failed")
        if self.state is GroupState.MOVING:
            self._back_off(reason)

    def _end_plan(self, outcome: str) -> None:
        plan, self.plan = self.plan, None
        if plan is None:
            return
        self.desk.emit(
            "rebalance_finished",
            self.name,
            plan.generation,
            plan.cause.id,
            outcome=outcome,
            moved_count=plan.moved_count,
            late_members=sorted(plan.late_members),
            settled_us=self.desk.now.mono_us - plan.requested_us,
            pause_us_max=plan.pause_us_max,
        )

    def _rest(self, reason: str) -> None:
        self.go(GroupState.FROZEN if self.view.settings.frozen else GroupState.IDLE, reason)
        self.topic_reset.maybe_begin()
        self.desk.wake(self.name, "reconcile", self.desk.now.mono_us + RECONCILE_INTERVAL_US, self._reconcile)
        if self.cause is not None:
            self._wake_debounced()

    def _reconcile(self) -> None:
        if self.state in REST:
            self.load("reconciliation")

    def _back_off(self, reason: str) -> None:
        self._failures += 1
        self.go(GroupState.BACKING_OFF, reason)
        delay_us = min(MAX_BACKOFF_US, MIN_BACKOFF_US * 2 ** min(self._failures - 1, 10))
        if self.cause is None:
            self.cause = Cause(self.desk.new_id(), "retry")
            self.requested_us = self.desk.now.mono_us
            self.desk.emit("rebalance_requested", self.name, self.view.generation, self.cause.id, trigger="retry")
        self.desk.wake(self.name, "back-off", self.desk.now.mono_us + delay_us, self._queue)

    # Settings, topics ---------------------------------------------------------------------------------------------

    def read_settings(self) -> None:
        """The settings node changed, or was written without a change: an operator's way to ask for a rebalance."""
        self.desk.ask(self.name, Get(paths.group(self.name), watch=True), self._settings_read)

    def _settings_read(self, reply: Reply) -> None:
        if isinstance(reply, Content):
            if reply.stat.created_zxid != self.view.created_zxid:
                self.load("group-created")  # deleted and created again: nothing that was known is true
                return
            self.view.settings_version = reply.stat.version
            try:
                new = settings.decode(reply.content)
            except NodeContentError as error:
                self.desk.warn(f"group {self.name}: {error}; the settings before stay in force")
                return
            changed, self.view.settings = new != self.view.settings, new
            if changed and self.plan is not None and not self.plan.everything_sent:
                self._end_plan("superseded")  # what it would still send was decided under other settings
            self.request("settings-changed" if changed else "operator-request")
        elif reply == Refused(Refusal.NO_NODE):
            self.is_gone = True
        elif isinstance(reply, Refused) and not reply.outcome_unknown:
            self.desk.warn(f"group {self.name}: settings could not be read: {reply.refusal.value}")

    def note_vacant(self, consumer: str, partitions: Iterable[TopicPartition]) -> None:
        """Nobody holds these partitions any more that the consumer had."""
        room = max(0, MAX_VACANT - len(self.vacant))
        vacancy = Vacancy(consumer, self.desk.now.mono_us)
        self.vacant.update(dict.fromkeys(islice(partitions, room), vacancy))

    def registrations(self) -> list[Registration]:
        """Return the readable registrations."""
        return [m.registration for m in self.view.members.values() if m.registration is not None]

    def forget(self) -> None:
        """The group was deleted."""
        self.desk.forget(self.name)
        self._drop_interest()

    def _drop_interest(self) -> None:
        """No topic concerns the group any more; while it is being loaded none does."""
        if self.state is not GroupState.LOADING:
            for registration in self.registrations():
                self.leadership.subscriptions.remove(self.name, registration)
