"""From a group's view to the strategy's problem, and from its answer to a plan that may be carried out.

The problem is kept between rebalances: only consumers that have changed are looked at again, and the strategy gets the
columns of the time before with the names of those that are different now. What grows with the group is computed away
from the coordinator's loop (`place`); the loop pays for what changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING

from zkrebalancer.assignment.columns import Columns, Strategy
from zkrebalancer.assignment.model import Member as ProblemMember
from zkrebalancer.assignment.model import Problem, Racks
from zkrebalancer.assignment.transition import Transition, place
from zkrebalancer.protocol.errors import PatternError, UnknownStrategyError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.settings import EAGER, INCREMENTAL
from zkrebalancer.rebalance.effects import Compute
from zkrebalancer.rebalance.plan import Deviations, Share
from zkrebalancer.rebalance.view import Member

if TYPE_CHECKING:
    from zkrebalancer.rebalance.group import Group

MAX_LOOKS_PER_STEP = 500  # partitions looked at in one go, then other groups have their turn
LOOKS_PER_MEMBER = 10  # a member costs as much as so many partitions


class Planning:
    """The problem of one group, kept up to date."""

    def __init__(self, group: Group) -> None:
        """Know nobody; the first planning looks at everybody."""
        self._group = group
        self._members: dict[str, ProblemMember] = {}  # those that take part
        self._outside: set[str] = set()  # registered, but given nothing
        self._stale_holders: set[str] = set()  # hold what does not exist
        self._topics: Counter[str] = Counter()  # topic -> members that read it or hold some of it
        self._resetting: set[str] = set()
        self._instance_of: dict[str, str] = {}
        self._consumers_of: dict[str, set[str]] = {}  # the same by instance id
        self.fenced: dict[str, str] = {}  # consumer -> instance id that a younger consumer has
        self.former_names: dict[str, str] = {}  # of static members that have come back -> their consumers now
        self._absent: dict[str, ProblemMember] = {}
        self._columns: Columns | None = None  # of the last answer
        self._is_all_touched = False
        self._changed: set[str] = set()  # consumers that are different since `_columns`
        self.counts: Mapping[str, int] = {}  # topic of the last problem -> number of partitions
        self._has_gaps = False
        self._ticket = 0  # the computation whose answer counts

    def touch_all(self) -> None:
        """Look at everybody again: the group was read anew, or its topics have changed."""
        self._is_all_touched = True

    def begin(self) -> None:
        """Bring the problem up to date, then hand it to the strategy."""
        group = self._group
        self._ticket = group.desk.new_ticket()
        resetting = group.topic_reset.stale_topics()
        if resetting != self._resetting:
            self._resetting = resetting
            self.touch_all()
        if self._is_all_touched and len(group.view.members) * LOOKS_PER_MEMBER > MAX_LOOKS_PER_STEP:
            self._go_on_later()  # what has touched so many has taken its time
        else:
            self._go_on()

    def _go_on_later(self) -> None:
        desk = self._group.desk
        desk.wake(self._group.name, "planning", desk.now.mono_us + 1, self._go_on)  # in a step of its own

    def _go_on(self) -> None:
        view = self._group.view
        looks = 0
        if self._is_all_touched:
            view.touched.update(dict.fromkeys(chain(self._members, self._outside, self._instance_of, view.members)))
            self._is_all_touched = False
            looks = len(view.touched)
        while view.touched and looks < MAX_LOOKS_PER_STEP:
            consumer, _ = view.touched.popitem(last=False)
            looks += LOOKS_PER_MEMBER + len(view.held_by(consumer))
            self._look_at(consumer)
        if not view.touched:
            self._look_at_static_members()
            self._hand_out()
        else:
            self._go_on_later()

    def _look_at_static_members(self) -> None:
        """What one that has come back may claim depends on what others hold, so it is looked at every time."""
        static_members = self._group.static_members
        before = {*self.fenced, *self.former_names.values()}
        self.fenced = static_members.fenced(self._consumers_of)
        self.former_names = static_members.former_names(self._consumers_of, self.fenced)
        for consumer in sorted(before.union(self.fenced, self.former_names.values())):
            self._look_at(consumer)

    def _hand_out(self) -> None:
        group = self._group
        absent, self._absent = self._absent, group.static_members.absent()
        for consumer in absent.keys() | self._absent.keys():
            if absent.get(consumer) != self._absent.get(consumer):
                self._changed.add(consumer)
        names = self._topics.keys() | {topic for member in self._absent.values() for topic in member.threads}
        topics = {name: group.topics[name] for name in sorted(names) if name in group.topics}
        self.counts = {name: topic.count for name, topic in topics.items()}
        self._has_gaps = any(topic.count != len(topic.partitions) for topic in topics.values())
        settings, loads = group.view.settings, group.loads
        loads.want()
        options = dict(settings.options)
        if loads.are_wanted and not loads.are_known:
            options["max_moves_per_rebalance"] = 0
        task = Compute(
            group=group.name,
            ticket=self._ticket,
            strategy=settings.strategy,
            problem=Problem(
                self.counts,
                {**self._members, **self._absent},
                lag=loads.lag if loads.are_wanted else {},
                rate=loads.rate if loads.are_wanted else {},
                racks=loads.racks if loads.are_wanted else Racks(),
                options=options,
            ),
            before=self._columns,
            changed=frozenset(self._changed),
            everything=settings.mode == EAGER and not settings.frozen,
        )
        group.desk.effects.append(task)

    def takes(self, ticket: int) -> bool:
        """Whether this is the answer that is waited for."""
        return ticket == self._ticket

    def keep(self, columns: Columns) -> None:
        """The strategy has answered: the next problem is told as the difference to this one."""
        self._columns = columns
        self._changed.clear()

    # One consumer -------------------------------------------------------------------------------------------------

    def _look_at(self, consumer: str) -> None:
        group = self._group
        member = group.view.members.get(consumer)
        before, after = self._members.get(consumer), None
        self._outside.discard(consumer)
        self._stale_holders.discard(consumer)
        self._note_instance(consumer, None)
        if member is not None:
            if member.registration is None or member.evicting or not member.registered:
                self._outside.add(consumer)
            else:
                self._note_instance(consumer, member.registration.instance_id)
                after = self._describe(member)
            if any(not exists(group, partition) for partition in group.view.held_by(consumer)):
                self._stale_holders.add(consumer)
        if after == before:
            return
        self._changed.add(consumer)
        self._members.pop(consumer, None)
        if after is not None:
            self._members[consumer] = after
        self._count_topics(_topics_of(before), _topics_of(after))

    def _count_topics(self, before: set[str], after: set[str]) -> None:
        self._topics.update(after - before)
        for topic in before - after:
            self._topics[topic] -= 1
            if not self._topics[topic]:
                del self._topics[topic]

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
        group, registration = self._group, member.registration
        if registration is None or member.consumer in self.fenced:
            return None
        threads = resolve(group, member)
        if not self._resetting.isdisjoint(threads):
            threads = {topic: count for topic, count in threads.items() if topic not in self._resetting}
        claims, held = group.static_members.claims_of(member, self.fenced), group.view.held_by(member.consumer)
        return ProblemMember(
            threads=threads,
            owned={**claims, **held} if claims else held,
            generation=member.owners.generation if member.owners else 0,
            instance_id=registration.instance_id,
            rack=registration.rack,
            capacity=registration.capacity,
        )

    # The answer ---------------------------------------------------------------------------------------------------

    def deviations(self, transition: Transition) -> Deviations:
        """Return where the difference to the problem is not the difference to what is held, and what follows."""
        shares = self._shares(transition)
        mode = EAGER if transition.everything and not self._is_gentle(shares) else INCREMENTAL
        return Deviations(mode, shares, frozenset(self.fenced), self.former_names)

    def _shares(self, transition: Transition) -> dict[str, Share]:
        """Return what those shall have for whom the transition does not tell.

        They have changed since the problem was made, have commands to answer, are static members that return, or take
        no part. In a frozen group, which keeps every held partition where it is, and for a plan that starts everything
        anew, all that would change are exceptions.
        """
        view = self._group.view
        if self._is_all_touched or transition.columns.is_contradicted or self._has_gaps:
            names = set(view.members)
        else:
            names = view.touched.keys() | self._group.moving.outstanding | self._outside | self._stale_holders
            names = names.union(self.fenced, self.former_names.values())
            if view.settings.frozen or transition.everything:
                names |= transition.changing
        return {name: self._admissible(name, transition) for name in sorted(names & view.members.keys())}

    def _is_gentle(self, shares: Mapping[str, Share]) -> bool:
        """Whether not everybody need stop: the group is frozen, or static members only get back what they had."""
        view = self._group.view
        if view.settings.frozen:
            return True
        for consumer, wanted in shares.items():
            member = view.members[consumer]
            expected = member.expected()
            if consumer in self.fenced or expected == wanted:
                continue
            if expected or not wanted.keys() <= self._group.static_members.claims_of(member, self.fenced).keys():
                return False
        return True

    def _admissible(self, consumer: str, transition: Transition) -> Share:
        """Leave out what cannot be: partitions that do not exist, and in a frozen group whatever somebody holds."""
        group, view = self._group, self._group.view
        wanted = {tp: thread for tp, thread in transition.share(consumer).items() if exists(group, tp)}
        if not view.settings.frozen:
            return wanted
        result = {tp: thread for tp, thread in wanted.items() if not view.holders(tp)}
        is_stale, held = group.topic_reset.is_stale, view.held_by(consumer)
        result.update({tp: thread for tp, thread in held.items() if exists(group, tp) and not is_stale(tp[0])})
        return result


def answer(task: Compute, strategies: Mapping[str, Strategy]) -> Transition:
    """Run the strategy; takes its time.

    Raises:
        RebalancerError: there is no such strategy, or it refuses its options.

    """
    if task.strategy not in strategies:
        raise UnknownStrategyError(f"strategy {task.strategy!r:.80} is unknown; known are {', '.join(strategies)}")
    return place(strategies[task.strategy], task.problem, task.before, task.changed, task.everything)


def _topics_of(member: ProblemMember | None) -> set[str]:
    """Return the topics that a member reads, or holds some of."""
    return set() if member is None else member.threads.keys() | {topic for topic, _partition in member.owned}


def resolve(group: Group, member: Member) -> Mapping[str, int]:
    """Return the topics that a consumer wants, with its number of threads for each."""
    if member.registration is None:
        return {}
    try:
        return group.leadership.subscriptions.resolve(member.registration)
    except PatternError as error:
        if not member.pattern_refused:
            group.desk.warn(f"group {group.name}: consumer {member.consumer} gets nothing: {error}")
        member.pattern_refused = True
        return {}


def exists(group: Group, partition: TopicPartition) -> bool:
    """Whether the cluster has the partition now."""
    topic = group.topics.get(partition[0])
    return topic is not None and partition[1] in topic.partitions
