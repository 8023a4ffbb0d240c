"""From a group's view to the strategy's problem, and from its answer to a plan that may be carried out.

The problem is kept between rebalances: only consumers that have changed are examined again, and the strategy gets the
previous columns with the names of the consumers that differ now. Work that grows with the group is done in a thread
(`place`); the coordinator's loop pays for what changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from itertools import chain

from zkrebalancer.assignment.columns import Columns, Strategy
from zkrebalancer.assignment.kept import STICKY, keeps_all
from zkrebalancer.assignment.model import Member as ProblemMember
from zkrebalancer.assignment.model import Problem
from zkrebalancer.assignment.transition import Transition, place
from zkrebalancer.protocol.cluster_nodes import UNREAD
from zkrebalancer.protocol.errors import PatternError, UnknownStrategyError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.registration import Registration
from zkrebalancer.protocol.settings import EAGER, INCREMENTAL
from zkrebalancer.rebalance import static_members
from zkrebalancer.rebalance.as_read import topics_of_kept_group
from zkrebalancer.rebalance.drain import NOTHING, Drain
from zkrebalancer.rebalance.effects import Compute
from zkrebalancer.rebalance.full import fitting
from zkrebalancer.rebalance.interests import Interests
from zkrebalancer.rebalance.plan import Deviations, Share, keeps_its_share
from zkrebalancer.rebalance.scheduler import Waiting
from zkrebalancer.rebalance.states import GroupState
from zkrebalancer.rebalance.subscriptions import Subscriptions
from zkrebalancer.rebalance.view import GroupView, Member

MAX_LOOKS_PER_STEP = 500  # partitions examined in one step, so that other groups have their turn
LOOKS_PER_MEMBER = 10  # a member costs as much as this many partitions
MIN_KEPT_ROWS = 100  # columns of fewer partitions are as quickly made anew as updated, and would take memory meanwhile


class Planning:
    """The problem of one group, kept up to date. Of the view, it changes only `touched`, `full` and `is_unbarred`."""

    def __init__(self, view: GroupView, subscriptions: Subscriptions, warn: Callable[[str], None]) -> None:
        """Start without members; the first look examines all of them. `warn(text)` writes a log line."""
        self._view = view
        self._subscriptions = subscriptions
        self._warn = warn
        self._members: dict[str, ProblemMember] = {}  # members that take part
        self._outside: set[str] = set()  # registered members that are given nothing
        self._odd_holders: set[str] = set()  # members that hold unknown topics, or ones that they do not read (now)
        self.keeping: set[str] = set()  # members that keep what they hold, and get nothing more, as of the last look
        self._interests = Interests()
        self._drain = Drain()
        self._resetting: set[str] = set()  # topics that wait for a reset of their offsets, or whose marks are hidden
        self._hidden: dict[str, bool] = {}  # topic that a member reads -> the latter, if marks may not be listed
        self._instance_of: dict[str, str] = {}
        self._consumers_of: dict[str, set[str]] = {}  # the same by instance id
        self._alike: set[str] = set()  # consumers that share an instance id
        self._fenced: dict[str, str] = {}  # consumer -> instance id that a younger consumer has
        self._former_names: dict[str, str] = {}  # former consumers of static members that returned -> present ones
        self._absent: dict[str, ProblemMember] = {}
        self._wanted: dict[str, tuple[Member, Mapping[str, int]]] = {}  # instance -> who is away, topic -> threads
        self._reserved: dict[str, dict[TopicPartition, int]] = {}  # consumer -> what no other one may have
        self._reserved_for: dict[TopicPartition, str] = {}
        self._columns: Columns | None = None  # of the last answer
        self._is_all_touched = True
        self._is_described = False  # whether the members were ever described
        self._kept_topics: Mapping[str, int] | None = None  # what they read, if they need no description
        self._changed: set[str] = set()  # consumers that are different since `_columns`
        self._has_gaps = False
        self._error: str | None = None  # why the last try produced no assignment
        self.unapproved_moves: int | None = None  # that the last plan would make, if an operator has to approve them

    @property
    def is_much_to_look_at(self) -> bool:
        """Whether so many members have to be examined that this should be a separate step."""
        return self._is_all_touched and len(self._view.members) * LOOKS_PER_MEMBER > MAX_LOOKS_PER_STEP

    @property
    def topics(self) -> Collection[str]:
        """The topics that members read, or of which they hold something, as of the last look."""
        return self._interests.topics if self._kept_topics is None else self._kept_topics.keys()

    @property
    def drained(self) -> Collection[str]:
        """The drained members, as of the last look."""
        return self._drain.names

    @property
    def state_at_rest(self) -> GroupState:
        """The state of the group once its last plan is carried out."""
        if self._view.settings.frozen:
            return GroupState.FROZEN
        return GroupState.IDLE if self.unapproved_moves is None else GroupState.UNAPPROVED

    @property
    def is_outdated(self) -> bool:
        """Whether settings that decide the strategy's answer have changed since the plan began."""
        return not self._view.settings.decides_as(self._drain.settings)

    def touch_all(self) -> None:
        """Examine every member again, because the group was read anew or its topics have changed."""
        self._is_all_touched = True

    # The problem --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a plan; examine all members again if topics have changed or wait for a reset of their offsets."""
        self.unapproved_moves = None
        self._wanted, self._hidden = {}, {}
        resetting = self._view.stale_topics() | self._view.hidden_topics
        is_drained_anew = self._drain.begin(self._view.settings)
        if is_drained_anew or resetting != self._resetting or not self._subscriptions.are_changes_reported:
            self._resetting = resetting
            self.touch_all()

    def is_kept_as_read(self) -> bool:
        """Whether the group, whose members were never described, surely needs no plan."""
        if self._is_described or self._resetting or self._view.are_marks_hidden:
            return False
        self._kept_topics = topics_of_kept_group(self._view, self._subscriptions, MAX_LOOKS_PER_STEP)
        if self._kept_topics is not None:
            self._view.touched.clear()  # all are described once something has changed
        return self._kept_topics is not None

    def look(self) -> bool:
        """Bring the problem up to date, as far as one step allows; return whether it is complete."""
        view, looks = self._view, 0
        self._is_described, self._kept_topics = True, None
        if self._is_all_touched:
            view.touched.update(dict.fromkeys(chain(self._members, self._outside, self._instance_of, view.members)))
            self._is_all_touched, self._wanted, self._hidden = False, {}, {}
            looks = len(view.touched)
        while view.touched and looks < MAX_LOOKS_PER_STEP:
            consumer = next(iter(view.touched))
            looks += self._resolve_some(view.members.get(consumer), MAX_LOOKS_PER_STEP - looks)
            if looks < MAX_LOOKS_PER_STEP:
                del view.touched[consumer]
                looks += LOOKS_PER_MEMBER + len(view.held_by(consumer))
                self._look_at(consumer)
        looks = self._look_at_away(looks)
        if view.touched or looks >= MAX_LOOKS_PER_STEP:
            return False
        self._subscriptions.forget_progress(view.group)
        if self._consumers_of or self._fenced or view.statics or self._absent or self._reserved:
            self._look_at_static_members()
        for consumer, described in self._drain.settled():
            self._replace(consumer, described)
        return True

    def _resolve_some(self, member: Member | None, limit: int) -> int:
        """Resolve a member's subscription in part; return how many topics were examined."""
        if member is None or member.registration is None:
            return 0
        with suppress(PatternError):  # logged when its topics are needed
            return self._subscriptions.resolve_some(member.registration, limit, self._view.group)
        return 0

    def _look_at_away(self, looks: int) -> int:
        """Note what members that are away want, each once for a plan: the cache of subscriptions may be too small."""
        for instance, member in self._view.away.items():
            if looks < MAX_LOOKS_PER_STEP and self._wanted.get(instance, (None,))[0] is not member:
                looks += 1 + self._resolve_some(member, MAX_LOOKS_PER_STEP - looks)
                if looks < MAX_LOOKS_PER_STEP:
                    known = member.registration
                    self._wanted[instance] = member, {} if known is None else self._threads(member, known)
        return looks

    def _look_at_static_members(self) -> None:
        """Examine static members at every plan, because what a returning one may claim depends on others."""
        before = {*self._alike, *self._former_names.values()}
        self._alike = static_members.alike(self._consumers_of)
        self._fenced = static_members.fenced(self._view, self._consumers_of)
        self._former_names = static_members.former_names(self._view, self._consumers_of, self._fenced)
        for consumer in sorted(before.union(self._alike, self._former_names.values())):
            self._look_at(consumer)
        self._reserved = static_members.reserved(self._view, self._consumers_of)
        self._reserved_for = {tp: consumer for consumer, reserved in self._reserved.items() for tp in reserved}
        wanted = {instance: topics for instance, (_member, topics) in self._wanted.items()}
        absent, self._absent = self._absent, static_members.absent(self._view, wanted, self._drain.settings)
        for consumer in absent.keys() | self._absent.keys():
            if absent.get(consumer) != self._absent.get(consumer):
                self._changed.add(consumer)

    def problem(self) -> Problem:
        """Return the problem as it was at the last look, without lag, rates and racks."""
        names = self._interests.topics | {topic for member in self._absent.values() for topic in member.threads}
        topics = {name: self._view.topics[name] for name in sorted(names) if name in self._view.topics}
        self._has_gaps = any(topic.count != len(topic.partitions) for topic in topics.values())
        counts = {name: topic.count for name, topic in topics.items()}
        return Problem(counts, {**self._members, **self._absent}, options=self._view.settings.options)

    def task(self, ticket: int, problem: Problem) -> Compute:
        """Return the computation for the strategy: the problem, and how it differs from the previous one."""
        return Compute(
            group=self._view.group,
            ticket=ticket,
            strategy=self._view.settings.strategy,
            problem=problem,
            before=self._columns,
            changed=frozenset(self._changed),
            everything=self._is_eager,
            keeping=frozenset(self.keeping),
        )

    def is_kept(self, problem: Problem, outstanding: AbstractSet[str]) -> bool:
        """Whether the strategy would surely change nothing, and no member needs a command for another reason.

        Then the strategy need not run. `outstanding`: consumers that have commands to answer.
        """
        if outstanding or self._outside or self._odd_holders or self._fenced or self._former_names or self._reserved:
            return False
        return self._view.settings.strategy in STICKY and not self._has_gaps and keeps_all(problem)

    def keep(self, columns: Columns | None) -> None:
        """Keep the columns of the strategy's answer: the next problem is described as the difference to them.

        None: the strategy was not needed, and the next problem is described whole.
        """
        self._columns = columns if columns is not None and len(columns.topic) >= MIN_KEPT_ROWS else None
        self._changed.clear()
        self._error = None
        self._view.is_unbarred &= columns is not None  # otherwise there is nothing to start

    def note_refused(self, error: str | None) -> bool:
        """Note why there is no assignment; return whether that is new, because planning is retried."""
        before, self._error = self._error, error
        return error != before

    @property
    def gives_back(self) -> bool:
        """Whether a returned member gets back what it had, regardless of the strategy."""
        return not self._reserved.keys().isdisjoint(self._view.members)

    # One consumer -------------------------------------------------------------------------------------------------

    def _look_at(self, consumer: str) -> None:
        member, held = self._view.members.get(consumer), self._view.held_by(consumer)
        after = None
        self._outside.discard(consumer)
        self._odd_holders.discard(consumer)
        self.keeping.discard(consumer)
        self._note_instance(consumer, None)
        if member is not None:
            if member.takes_part:
                # Who is the older one of two is unknown without a registration.
                self._note_instance(consumer, None if member.registration is None else member.instance)
                after = self._describe(member)
                if keeps_its_share(self._view, member):
                    self.keeping.add(consumer)
            else:
                self._outside.add(consumer)
            # The group is not notified of changes of a topic that is only held, so it always counts as unknown.
            reads = NOTHING if after is None or member.registration is None else after.threads
            if not (reads.keys() >= {topic for topic, _number in held} and all(map(self._view.is_known, held))):
                self._odd_holders.add(consumer)
        known = None if member is None or consumer in self.keeping else member.registration
        if not self._drain.note(consumer, known, after):
            self._replace(consumer, after)

    def _replace(self, consumer: str, after: ProblemMember | None) -> None:
        """Replace a member of the problem, None if it takes no part."""
        before = self._members.get(consumer)
        if after == before:
            return
        self._changed.add(consumer)
        self._members.pop(consumer, None)
        if after is not None:
            self._members[consumer] = after
        self._interests.replace(before, after)

    def _note_instance(self, consumer: str, instance: str | None) -> None:
        before = self._instance_of.pop(consumer, None)
        if before is not None:
            self._consumers_of[before].discard(consumer)
            if not self._consumers_of[before]:
                del self._consumers_of[before]
        if instance is not None:
            self._instance_of[consumer] = instance
            self._consumers_of.setdefault(instance, set()).add(consumer)

    def _describe(self, member: Member) -> ProblemMember | None:
        registration = member.registration
        if member.consumer in self._fenced:
            return None
        if registration is None:  # until the registration may be read, the member wants what it has
            held = self._view.held_by(member.consumer)
            return ProblemMember({topic: 1 for topic, _number in held}, held)
        threads = self._startable(self._threads(member, registration))
        claims, held = self._claims_of(member), self._view.held_by(member.consumer)
        return ProblemMember(
            threads=threads,
            owned={**claims, **held} if claims else held,
            generation=member.owners.generation if member.owners else 0,
            instance_id=registration.instance_id,
            rack=registration.rack,
            capacity=registration.capacity,
        )

    def _startable(self, threads: Mapping[str, int]) -> Mapping[str, int]:
        """Return only topics that wait for no reset, and whose marks may be read: the others stand still."""
        hidden = self._hidden
        if self._view.are_marks_hidden:
            hidden.update({topic: self._view.is_hidden_topic(topic) for topic in threads.keys() - hidden.keys()})
        elif threads.keys().isdisjoint(self._resetting):  # looks at the fewer ones
            return threads
        still = {topic for topic in threads if topic in self._resetting or hidden.get(topic)}
        return {topic: count for topic, count in threads.items() if topic not in still} if still else threads

    def _claims_of(self, member: Member) -> Mapping[TopicPartition, int]:
        if member.instance is None or keeps_its_share(self._view, member):
            return {}
        return static_members.claims_of(self._view, member, self._consumers_of, self._fenced)

    def _threads(self, member: Member, registration: Registration) -> Mapping[str, int]:
        """Return the topics that a consumer wants, with its number of threads for each."""
        try:
            return self._subscriptions.resolve(registration)
        except PatternError as error:
            if not member.pattern_refused:
                self._warn(f"consumer {member.consumer} gets nothing: {error}")
            member.pattern_refused = True
            return {}

    @property
    def waiting(self) -> Waiting | None:
        """The plan that waits for an operator's approval, if there is one."""
        moves = self.unapproved_moves
        return None if moves is None else Waiting(moves, self._view.generation)

    # The answer ---------------------------------------------------------------------------------------------------

    def deviations(self, transition: Transition, outstanding: AbstractSet[str]) -> Deviations:
        """Return the shares to which the transition's difference does not apply, and what follows from them.

        `outstanding`: consumers that have commands to answer.
        """
        known = self._view.settings
        is_allowed = known.frozen or known.allows(transition.displaced_count, self._view.generation)
        self.unapproved_moves = None if is_allowed else transition.displaced_count
        shares = self._shares(transition, outstanding)
        mode = EAGER if self._is_eager and not self._is_gentle(shares) else INCREMENTAL
        self._view.is_unbarred = False  # this plan starts them
        return Deviations(mode, shares, frozenset(self._fenced), self._former_names, keeps_held=self._keeps_held)

    def _shares(self, transition: Transition, outstanding: AbstractSet[str]) -> dict[str, Share]:
        """Return the whole share of each consumer to which the transition's difference does not apply.

        A transition is the difference to the problem. It differs from the difference to what a consumer holds if the
        consumer has changed since the problem was made, has pending commands, is a returning static member, or takes no
        part. If held partitions stay, some are withheld, or all start anew, it applies to no consumer that changes.
        """
        view = self._view
        is_other_mode = transition.everything is not self._is_eager  # the settings have changed since
        if self._is_all_touched or transition.columns.is_contradicted or self._has_gaps or is_other_mode:
            names = set(view.members)
        else:
            names = view.touched.keys() | outstanding | self._outside | self._odd_holders
            names = names.union(self._fenced, self._former_names.values())
            if self._keeps_held or transition.everything or self._reserved or view.barred or view.awaited is not None:
                names |= transition.changing | self._reserved.keys()
        names |= view.full.keys()
        here = sorted(names & view.members.keys())  # of these, leaving ones get the command as soon as possible
        present = [name for name in here if name in self._fenced or not keeps_its_share(view, view.members[name])]
        return {name: fitting(view, name, self.admissible(name, transition)) for name in present}

    def _standing(self, held: Share) -> Share:
        """Return a consumer's partitions of topics that could never be read, or that stand still: it keeps them."""
        view = self._view
        names = {topic for topic, _number in held if view.topics.get(topic) is UNREAD or view.stands_still(topic)}
        return {tp: thread for tp, thread in held.items() if tp[0] in names and view.exists(tp)}

    def leaves_all(self, consumer: str) -> bool:
        """Whether the last plan left a member all that it held, so that nobody waits for what it lets go."""
        return consumer in self.keeping and consumer not in self._fenced

    @property
    def _is_eager(self) -> bool:
        """Whether all stop before anything starts; not if held partitions stay, or some could not be started again."""
        view = self._view
        is_any_held_up = view.has_hidden_topics or view.barred or view.is_unbarred
        return view.settings.mode == EAGER and not (self._keeps_held or is_any_held_up)

    @property
    def _keeps_held(self) -> bool:
        """Whether no held partition moves: the group is frozen, or its plan waits for an operator."""
        return self._view.settings.frozen or self.unapproved_moves is not None

    def _is_gentle(self, shares: Mapping[str, Share]) -> bool:
        """Whether an eager group need not stop everything, because static members only get back what they had.

        While stops of an earlier eager plan are not acknowledged, static members also wait for them.
        """
        for consumer, wanted in shares.items():
            member = self._view.members[consumer]
            if member.stops_everything:
                return False
            expected = member.expected()
            if consumer in self._fenced or expected == wanted:
                continue
            if expected or not wanted.keys() <= self._claims_of(member).keys():
                return False
        return True

    def admissible(self, consumer: str, transition: Transition) -> Share:
        """Return a consumer's share, without partitions that it cannot get.

        These are partitions that do not exist, and if held partitions stay, what others hold. The strategy knows
        nothing of a topic that stands still (`_standing`), so the consumer keeps what it holds of it.
        """
        view, held, share = self._view, self._view.held_by(consumer), transition.share(consumer)
        wanted = {tp: share[tp] for tp in share if view.exists(tp) and (tp in held or not view.is_withheld(tp))}
        if (view.barred or consumer in self._odd_holders) and consumer not in self._fenced:
            wanted.update(self._standing(held))
        if self._reserved:
            wanted = {tp: thread for tp, thread in wanted.items() if self._reserved_for.get(tp, consumer) == consumer}
            mine = self._reserved.get(consumer, {})
            wanted |= {tp: 0 for tp in mine if view.exists(tp) and not (view.is_stale(tp[0]) or view.is_withheld(tp))}
        if not self._keeps_held or (self.unapproved_moves is not None and consumer in self._fenced):
            return wanted
        freed = () if view.settings.frozen else self._fenced.keys()  # these stop everything: others may have it
        result = {tp: thread for tp, thread in wanted.items() if all(one in freed for one in view.holders(tp))}
        result.update({tp: thread for tp, thread in held.items() if view.exists(tp) and not view.is_stale(tp[0])})
        return result


def answer(task: Compute, strategies: Mapping[str, Strategy]) -> Transition:
    """Run the strategy, which may take long.

    Raises:
        RebalancerError: there is no such strategy, or it refuses its options.

    """
    if task.strategy not in strategies:
        raise UnknownStrategyError(f"strategy {task.strategy!r:.80} is unknown; known are {', '.join(strategies)}")
    return place(strategies[task.strategy], task.problem, task.before, task.changed, task.everything, task.keeping)
