"""One KIP-848 group: epochs, the target, each member's steps towards it, and one write for simultaneous changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from zkrebalancer.group_protocol.answers import Answer
from zkrebalancer.group_protocol.assignors import DEFAULT_ASSIGNOR, Assignor, NamedPartition, Subscriber
from zkrebalancer.group_protocol.central import FIRST_TARGET, HASTE, CentralTargets
from zkrebalancer.group_protocol.consumer_roster import ConsumerMember, ConsumerRoster, from_stored, to_stored, with_ids
from zkrebalancer.group_protocol.consumer_states import ConsumerGroupState, ConsumerMemberState
from zkrebalancer.group_protocol.effects import Standing, Targeted
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.intervals import Intervals
from zkrebalancer.group_protocol.placement import bucket_of
from zkrebalancer.group_protocol.reconciliation import NEW, Partitions, Position, next_position
from zkrebalancer.group_protocol.scheduler import Scheduler
from zkrebalancer.group_protocol.settings import GroupProtocolSettings
from zkrebalancer.group_protocol.size_limit import LIMIT, SizeLimit
from zkrebalancer.group_protocol.stored import StoredConsumerGroup, StoredTopic
from zkrebalancer.group_protocol.topics import Topic, Topics, as_stored, names_of
from zkrebalancer.protocol import paths

if TYPE_CHECKING:
    from zkrebalancer.group_protocol.kept import Kept

SESSION, REBALANCE, JOIN, SYNC = "session", "rebalance", "join", "sync"
RETENTION, RETRY, PAUSE = "retention", "retry", "pause"
MEMBER_TIMERS = (SESSION, REBALANCE, JOIN, SYNC, FIRST_TARGET)
STORE_RETRY_MS = 1_000  # after a write that failed
MEMBERS_PER_PAUSE_MS = 10  # a write costs processor time for each member: 1,000 members are stored every 100 ms at most


@dataclass(frozen=True, slots=True)
class Turn:
    """A request that moves its member, if any, one step, and is answered once its changes are stored.

    `answer` gets the member's position before the step; `refuse` turns an error into an answer.
    """

    ticket: int
    member: ConsumerMember | None
    owned: Partitions | None
    answer: Callable[[Position], Answer]
    refuse: Callable[[ErrorCode], Answer]


@dataclass(frozen=True, slots=True)
class World:
    """What all groups of a gateway share."""

    settings: GroupProtocolSettings
    scheduler: Scheduler
    topics: Topics
    assignors: Mapping[str, Assignor]
    intervals: Intervals
    kept: Kept


class ConsumerGroup:
    """A KIP-848 group. `consumer_heartbeat` and `consumer_classic` decide what a request does to it."""

    def __init__(
        self, group_id: str, world: World, when_gone: Callable[[], None], downgrade: Callable[[Turn | None], bool]
    ) -> None:
        """Create an empty group.

        `when_gone` is called once nothing of it has to be kept. `downgrade` is called when only members of the classic
        protocol are left; it returns whether the group continues as a classic one.
        """
        self.group_id = group_id
        self.bucket = bucket_of(group_id)
        self.world = world
        self.scheduler = world.scheduler
        self.roster = ConsumerRoster()
        self.size_limit = SizeLimit(self)
        self.group_epoch = 0
        self.target_epoch = 0
        # A group that was made with other settings may have a name that is no node's.
        is_central = world.settings.assigns_centrally and paths.is_legal_name(group_id)
        self.central = CentralTargets(self) if is_central else None
        self.untold: set[str] = set()  # members that may not know their position, though they know its epoch
        self.is_dead = False
        self._when_gone = when_gone
        self._downgrade = downgrade
        self.seen: dict[str, Topic] = {}  # the topics of the target
        self._outdated: set[str] | None = None  # members whose target may change; None: that of any member
        self._waiting: list[Turn] = []
        self._in_flight: list[tuple[Turn, Answer]] = []
        self._is_writing = False
        self._has_changed = False  # since the last write
        self._being_stored: tuple[Standing, ...] = ()  # the members as in the write in progress

    @property
    def state(self) -> ConsumerGroupState:
        """The group's state, which follows from the members' states."""
        if self.is_dead:
            return ConsumerGroupState.DEAD
        if not self.roster.members:
            return ConsumerGroupState.EMPTY
        is_settled = not self.roster.unsettled and self.group_epoch == self.target_epoch
        return ConsumerGroupState.STABLE if is_settled else ConsumerGroupState.RECONCILING

    def is_forgettable(self) -> bool:
        """Whether nothing of the group is stored and it has no member."""
        return self.group_epoch == 0 and not self.roster.members and not self.is_dead

    # ---- beginning and end

    def restore(self, stored: StoredConsumerGroup) -> None:
        """Continue from what was stored."""
        self.group_epoch, self.target_epoch = stored.group_epoch, stored.target_epoch
        self.seen = as_stored(stored.topics)
        for kept in stored.members:
            member = from_stored(kept)
            self.roster.add(member)
            self._note_progress(member)
            self.start_session(member)
            self._time_revocation(member)
        self.size_limit.note_write(stored)
        self.size_limit.note_stored()
        self.untold = set(self.roster.members)
        self._keep_while_empty()
        self.renew_ids()
        self._report_members(self._standings())
        self.topics_changed()

    def close(self, error: ErrorCode) -> None:
        """End here, because the group was deleted, is served elsewhere, or continues as a classic one.

        Waiting requests get the error.
        """
        for turn in (*self._waiting, *(turn for turn, _answer in self._in_flight)):
            self.scheduler.reply(turn.ticket, turn.refuse(error))
        self._waiting, self._in_flight = [], []
        self.world.intervals.forget(self.group_id)
        if self.central is not None:
            self.central.close(error)
        for member_id in self.roster.members:
            self._cancel_timers(member_id)
        for kind in (RETENTION, RETRY, PAUSE, HASTE, LIMIT):
            self.scheduler.cancel_timer((self.group_id, kind, ""))
        self.is_dead = True

    def delete(self, when_deleted: Callable[[ErrorCode], None]) -> None:
        """Delete the group, which has no member."""

        def deleted(error: ErrorCode) -> None:
            self._when_gone()  # even if it failed: the next load of the bucket then finds an empty group
            when_deleted(error)

        self.close(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.scheduler.store(self.group_id, None, deleted)

    def _keep_while_empty(self) -> None:
        key = (self.group_id, RETENTION, "")
        if self.roster.members:
            self.scheduler.cancel_timer(key)
        elif not self.scheduler.has_timer(key):
            delay_ms = self.world.settings.empty_group_retention_ms
            self.scheduler.start_timer(key, delay_ms, lambda: self.delete(lambda _error: None))

    # ---- what changes the target

    def bump(self, reason: str, only: ConsumerMember | None = None) -> None:
        """Raise the epoch, so that a new target is computed: of one member of a central group, or of all."""
        if only is None:
            self._outdated = None
        elif self._outdated is not None:
            self._outdated.add(only.member_id)
        self.group_epoch += 1
        self._has_changed = True
        if self.central is not None:
            self.central.hurry()
        self._keep_while_empty()
        self.scheduler.report(self.group_id, f"epoch {self.group_epoch}: {reason}")

    def topics_changed(self) -> None:
        """Raise the epoch if topics of this group were created, deleted, or have more partitions now."""
        if not self.world.topics.is_known:
            return
        self.renew_ids()
        if self.roster.members and (wanted := self._wanted()) != self.seen:
            self.world.kept.note_topics(self.seen, wanted)
            self.bump("topics changed")
        if self._has_changed or self.group_epoch > self.target_epoch:
            self.advance()

    def renew_ids(self) -> None:
        """Rename topics whose id was made up, or is now, so that members keep their partitions."""
        present = self.world.topics.renewed_ids(self.seen)
        if not present:
            return
        self.seen = {
            name: replace(topic, topic_id=present.get(topic.topic_id, topic.topic_id))
            for name, topic in self.seen.items()
        }
        self.roster.renew_ids(present)
        self._waiting = [
            turn if turn.owned is None else replace(turn, owned=with_ids(turn.owned, present)) for turn in self._waiting
        ]
        self._has_changed = True

    def subscription(self, member: ConsumerMember) -> frozenset[str]:
        """Return the existing topics that a member wants."""
        return self.world.topics.selected(member.topic_names, member.topic_regex)

    def _wanted(self) -> dict[str, Topic]:
        members = self.roster.members.values()
        return self.world.topics.selected_by_all((member.topic_names, member.topic_regex) for member in members)

    def give(self, targeted: Targeted) -> None:
        """Set the target of a member of a central group."""
        member = self.roster.members.get(targeted.member_id)
        if member is None or self.central is None or self.is_dead:
            return
        if self.central.give(member, targeted):
            self.bump(f"{member.member_id} is given {len(targeted.partitions)} partitions", member)
        self._has_changed = True  # even if nothing is new: the write causes the report
        self.advance()

    def due_epoch(self, member: ConsumerMember, newest: int) -> int:
        """Return the epoch that a member has to reach: its own if the newest epoch does not affect it."""
        return member.position.epoch if self.central is not None and member.has_its_target else newest

    def is_told(self, member: ConsumerMember) -> bool:
        """Whether the client was told to give something up, or to join again."""
        is_called = self.scheduler.has_timer((self.group_id, JOIN, member.member_id))
        return is_called or member.position.state is ConsumerMemberState.UNREVOKED

    def _note_progress(self, member: ConsumerMember) -> None:
        self.roster.note_progress(member, self.due_epoch(member, self.target_epoch))

    def _compute_target(self) -> None:
        """Bring all targets up to date."""
        members = self.roster.members
        affected = [members[one] for one in (members if self._outdated is None else self._outdated) if one in members]
        if self._outdated is None:
            self.seen = self._wanted()
        if self.central is None:
            self._let_assignor_decide()
        else:
            for member in affected:
                member.target = self.central.target_of(member)
        self.target_epoch = self.group_epoch
        self._outdated = set()
        for member in affected:
            self._note_progress(member)

    def _let_assignor_decide(self) -> None:
        """Let the assignor decide, but drop what it may not give: a client would accept it."""
        name = self.roster.chosen_assignor(DEFAULT_ASSIGNOR)
        members = {member.member_id: self._subscriber(member) for member in self.roster.members.values()}
        counts = {topic: seen.partition_count for topic, seen in self.seen.items()}
        given = self.world.assignors[name](members, counts) if members else {}
        taken: set[NamedPartition] = set()
        for member in self.roster.members.values():
            wanted = members[member.member_id].topics
            allowed = {
                (topic, number)
                for topic, number in given.get(member.member_id, ())
                if topic in wanted and 0 <= number < counts[topic] and (topic, number) not in taken
            }
            taken |= allowed
            member.target = frozenset((self.seen[topic].topic_id, number) for topic, number in allowed)
        refused = sum(map(len, given.values())) - len(taken)
        if refused:
            self.scheduler.report(self.group_id, f"assignor {name}: {refused} partitions that it may not give")

    def _subscriber(self, member: ConsumerMember) -> Subscriber:
        names = self.world.topics.name_of
        target = frozenset((names[topic_id], number) for topic_id, number in member.target if topic_id in names)
        return Subscriber(self.subscription(member), target, member.instance_id, member.rack_id)

    # ---- one step for each waiting turn, and one write for all of them

    def take_turn(self, turn: Turn) -> None:
        """Let a request move its member one step."""
        self._waiting.append(turn)
        self.advance()

    def advance(self) -> None:
        """Handle all waiting turns together, unless a write is in progress or has just ended: then later."""
        pause = (self.group_id, PAUSE, "")
        if self._is_writing or self.is_dead or self.scheduler.has_timer(pause):
            return
        if self.group_epoch > self.target_epoch and self.world.topics.is_known:
            self._compute_target()
        turns, self._waiting = self._waiting, []
        if self.central is not None:
            turns += self.central.due_joins()
        answers = [(turn, self._step(turn)) for turn in turns]
        if not self._has_changed:
            self._answer(answers)
            return
        self._has_changed = False
        self._is_writing = True
        self._in_flight = answers
        self._being_stored = self._standings()
        self.scheduler.store(self.group_id, self.size_limit.note_write(self.stored_form()), self._stored)

    def _step(self, turn: Turn) -> Answer:
        member = turn.member
        if member is None:
            return turn.answer(NEW)
        if self.roster.members.get(member.member_id) is not member:
            return turn.refuse(ErrorCode.UNKNOWN_MEMBER_ID)
        before = member.position
        is_free = self.roster.is_free_for(member)
        due_epoch = self.due_epoch(member, self.target_epoch)
        position = next_position(before, due_epoch, member.target, is_free, turn.owned)
        if position != before:
            self.move(member, position)
        return turn.answer(before)

    def move(self, member: ConsumerMember, position: Position) -> None:
        """Change a member's position, which then has to be stored and sent to its client."""
        if self.central is not None and not member.position.held <= position.held:
            self.central.hurry(member.position.held - position.held)
        self.roster.move(member, position)
        self._note_progress(member)
        self._has_changed = True
        self._time_revocation(member)

    def note_change(self) -> None:
        """Note that something has to be stored."""
        self._has_changed = True

    def _stored(self, error: ErrorCode) -> None:
        if self.is_dead:
            return
        answers, self._in_flight = self._in_flight, []
        self._is_writing = False
        if error:
            self._not_stored(error, [turn for turn, _answer in answers])
            return
        self.size_limit.note_stored()
        self._answer(answers)
        self._report_members(self._being_stored)
        if self.central is not None:
            self.central.look_again()
        pause_ms = len(self.roster.members) // MEMBERS_PER_PAUSE_MS
        if pause_ms:
            self.scheduler.start_timer((self.group_id, PAUSE, ""), pause_ms, self.advance)
        elif self._waiting or self._has_changed or self.central is not None:
            self.advance()

    def _not_stored(self, error: ErrorCode, turns: list[Turn]) -> None:
        """Store again, at once if somebody is found who made the group too large: only that client is refused."""
        self._has_changed = True
        self.untold |= {turn.member.member_id for turn in turns if turn.member is not None}
        concerned = self.size_limit.shrink() if error is ErrorCode.GROUP_MAX_SIZE_REACHED else set()
        if not concerned:
            # A client may end on the error of a group that is too large, and none of these made it so.
            told = ErrorCode.COORDINATOR_NOT_AVAILABLE if error is ErrorCode.GROUP_MAX_SIZE_REACHED else error
            for turn in turns:
                self.scheduler.reply(turn.ticket, turn.refuse(told))
            self.scheduler.start_timer((self.group_id, RETRY, ""), STORE_RETRY_MS, self.advance)
            return
        waiting, self._waiting = [*turns, *self._waiting], []  # their clients have heard of no step yet
        for turn in waiting:
            if turn.member is not None and turn.member.member_id in concerned:
                self.scheduler.reply(turn.ticket, turn.refuse(error))
            else:
                self._waiting.append(turn)
        self.go_on_without(f"too large to be stored: {len(concerned)} members, or their changes, were refused", None)

    def _answer(self, answers: Iterable[tuple[Turn, Answer]]) -> None:
        for turn, answer in answers:
            if turn.member is not None:
                self.untold.discard(turn.member.member_id)
            self.scheduler.reply(turn.ticket, answer)

    def _standings(self) -> tuple[Standing, ...]:
        if self.central is None:
            return ()
        topics = self.world.topics
        return self.central.standings(topics.name_of if topics.is_known else names_of(self.seen))

    def _report_members(self, members: tuple[Standing, ...]) -> None:
        if self.central is not None:
            self.scheduler.report_members(self.group_id, members)

    def stored_form(self) -> StoredConsumerGroup:
        """Return the group in its stored form."""
        topics = tuple(
            StoredTopic(name, topic.topic_id.bytes, topic.partition_count) for name, topic in sorted(self.seen.items())
        )
        members = tuple(to_stored(member) for member in self.roster.members.values())
        return StoredConsumerGroup(self.group_epoch, self.target_epoch, topics, members)

    # ---- members come and go

    def start_session(self, member: ConsumerMember) -> None:
        """Expect the next heartbeat within the session timeout."""
        key = (self.group_id, SESSION, member.member_id)
        classic = member.classic
        timeout_ms = self.world.settings.consumer_session_timeout_ms if classic is None else classic.session_timeout_ms
        self.scheduler.start_timer(key, timeout_ms, lambda: self.fence(member, "its session ended"))

    def start_timer(self, kind: str, member: ConsumerMember, reason: str) -> None:
        """Fence a member unless the timer is cancelled within its rebalance timeout. A running timer is unchanged."""
        key = (self.group_id, kind, member.member_id)
        if not self.scheduler.has_timer(key):
            self.scheduler.start_timer(key, member.rebalance_timeout_ms, lambda: self.fence(member, reason))

    def cancel_timer(self, kind: str, member_id: str) -> None:
        """Cancel a member's timer."""
        self.scheduler.cancel_timer((self.group_id, kind, member_id))

    def _time_revocation(self, member: ConsumerMember) -> None:
        if member.classic is not None:
            return
        self.cancel_timer(REBALANCE, member.member_id)
        if member.position.state is ConsumerMemberState.UNREVOKED:
            self.start_timer(REBALANCE, member, "it did not give up its partitions in time")

    def _cancel_timers(self, member_id: str) -> None:
        for kind in MEMBER_TIMERS:
            self.cancel_timer(kind, member_id)

    def remove(self, member: ConsumerMember) -> None:
        """Remove a member."""
        self._cancel_timers(member.member_id)
        self.untold.discard(member.member_id)
        if self.central is not None:
            self.central.forget(member.member_id)
            self.central.hurry(member.position.held)
        self.roster.remove(member)
        if not self.roster.members:
            self.world.intervals.forget(self.group_id)
        self._has_changed = True

    def fence(self, member: ConsumerMember, reason: str, turn: Turn | None = None) -> None:
        """Remove a member, and assign what it had to others; `turn` is the request that caused it, if any."""
        self.remove(member)
        self.go_on_without(f"{member.member_id} was removed: {reason}", turn)

    def go_on_without(self, reason: str, turn: Turn | None) -> None:
        """Assign what removed members had to others; a group with only classic members becomes a classic one."""
        self.bump(reason)
        if 0 < self.roster.classic_count == len(self.roster.members) and self._downgrade(turn):
            return
        self._waiting += [turn] if turn is not None else []
        self.advance()
