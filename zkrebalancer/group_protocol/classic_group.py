"""One classic group: its cycle of states, what each of them stores, and which requests are answered then."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from zkrebalancer.group_protocol.answers import JoinGroupAnswer, JoinGroupMember, SyncGroupAnswer
from zkrebalancer.group_protocol.classic_roster import ClassicMember, ClassicRoster, from_stored, to_stored
from zkrebalancer.group_protocol.classic_states import TRANSITIONS, ClassicState, InvalidTransitionError
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.placement import bucket_of
from zkrebalancer.group_protocol.requests import UNKNOWN_MEMBER_ID
from zkrebalancer.group_protocol.scheduler import Scheduler
from zkrebalancer.group_protocol.settings import FIRST_LIMIT_MS, LONGEST_LIMIT_MS, GroupProtocolSettings
from zkrebalancer.group_protocol.stored import StoredGroup

JOIN, SYNC, SESSION, RETENTION, LIMIT = "join", "sync", "session", "retention", "limit"
STORY_LENGTH = 20


class ClassicGroup:
    """A group of the classic protocol. `classic_join` and `classic_requests` decide what a request does to it."""

    def __init__(
        self, group_id: str, settings: GroupProtocolSettings, scheduler: Scheduler, when_gone: Callable[[], None]
    ) -> None:
        """Create an empty group; `when_gone` is called once nothing of it has to be kept."""
        self.group_id = group_id
        self.bucket = bucket_of(group_id)
        self.settings = settings
        self.scheduler = scheduler
        self.roster = ClassicRoster()
        self.state = ClassicState.EMPTY
        self.generation_id = 0
        self.former_generations: dict[str, int] = {}  # of members until they join, after a change of protocol
        self.protocol_name: str | None = None
        self.is_generation_stored = False  # completing, and the joins may be answered
        self.max_size = settings.group_max_size
        self._limit_ms = FIRST_LIMIT_MS
        self._when_gone = when_gone
        self._is_first_join = False  # preparing, and empty before: joins extend the wait
        self._is_assigning = False  # completing, and an assignment is being stored
        self._came_since = False  # in the first join: a member arrived after the timer was set
        self._story: deque[str] = deque(maxlen=STORY_LENGTH)

    # ---- state

    def transition_to(self, state: ClassicState) -> None:
        """Change the state.

        Raises:
            InvalidTransitionError: the table does not have this transition.

        """
        self._story.append(f"{self.scheduler.now_ms}: {self.state.value} -> {state.value}, {self.generation_id}")
        if state not in TRANSITIONS[self.state]:
            raise InvalidTransitionError(f"group {self.group_id!r}: " + "; ".join(self._story))
        self.state = state

    def is_forgettable(self) -> bool:
        """Whether nothing of the group is stored and it has no member, joining ones included."""
        return (
            self.state is ClassicState.EMPTY
            and self.generation_id == 0
            and not self.roster.members
            and not self.roster.pending
        )

    def knows(self, member_id: str, generation_id: int) -> bool:
        """Whether this is the generation that the member knows.

        When the last KIP-848 client has left, members of the classic protocol know their former epoch. They are not
        fenced for it: they commit before they join again.
        """
        return generation_id in {self.generation_id, self.former_generations.get(member_id)}

    def restore(self, stored: StoredGroup) -> None:
        """Continue from what another gateway, or a former life of this one, has stored."""
        self.generation_id = stored.generation_id
        self.protocol_name = stored.protocol_name
        self.roster.protocol_type = stored.protocol_type
        for member in stored.members:
            self.roster.add(from_stored(member))
            self.start_session(self.roster.members[member.member_id])
        if stored.leader_id in self.roster.members:
            self.roster.leader_id = stored.leader_id
        if not stored.members:
            self._keep_for_a_while()
        elif stored.is_assigned:
            self.state = ClassicState.STABLE
        else:
            self.state = ClassicState.COMPLETING_REBALANCE
            self.is_generation_stored = True
            self._await_syncs()
        if len(self.roster.members) > self.settings.group_max_size:
            self.prepare_rebalance(f"the limit is now {self.settings.group_max_size} members")

    def continue_from(self, generation_id: int) -> None:
        """Continue an empty group of the other protocol, for as long as an empty one is kept: nobody may join it."""
        self.generation_id = generation_id
        if generation_id:
            self._keep_for_a_while()

    def close(self, error: ErrorCode) -> None:
        """End here, because the group was deleted or is served elsewhere. Waiting requests get the error."""
        for member in self.roster.members.values():
            self.answer_join_error(member, error, member.member_id)
            self.answer_sync(member, error)
            self.cancel_session(member.member_id)
        for member_id in self.roster.pending:
            self.cancel_session(member_id)
        for kind in (JOIN, SYNC, RETENTION, LIMIT):
            self._cancel(kind)
        if self.state is not ClassicState.DEAD:
            self.transition_to(ClassicState.DEAD)

    # ---- the join phase

    def note_newcomer(self) -> None:
        """Extend the first join when a member arrives."""
        self._came_since = self._came_since or self._is_first_join

    def rebalance_or_complete_join(self, reason: str) -> None:
        """Start a rebalance, or complete the join phase if one is being prepared and all have joined."""
        if self.state is ClassicState.PREPARING_REBALANCE:
            self.maybe_complete_join()
        else:
            self.prepare_rebalance(reason)

    def prepare_rebalance(self, reason: str) -> None:
        """Make all members join again, including those that wait for an assignment."""
        if self.state is ClassicState.COMPLETING_REBALANCE:
            self._refuse_syncs(ErrorCode.REBALANCE_IN_PROGRESS)
        self._cancel(SYNC)
        self._cancel(RETENTION)
        self._is_first_join = self.state is ClassicState.EMPTY
        self._is_assigning = False
        self._came_since = False
        self.transition_to(ClassicState.PREPARING_REBALANCE)
        self.scheduler.report(self.group_id, f"rebalance after generation {self.generation_id}: {reason}")
        if self._is_first_join:
            delay_ms = self.settings.group_initial_rebalance_delay_ms
            self._extend_first_join(delay_ms, max(self.roster.rebalance_timeout_ms() - delay_ms, 0))
        elif self.roster.have_all_joined():
            self.complete_join()
        else:
            self._start(JOIN, self.roster.rebalance_timeout_ms(), self.complete_join)

    def _start(self, kind: str, delay_ms: int, wake: Callable[[], None]) -> None:
        self.scheduler.start_timer((self.group_id, kind, ""), delay_ms, wake)

    def _cancel(self, kind: str) -> None:
        self.scheduler.cancel_timer((self.group_id, kind, ""))

    def _extend_first_join(self, delay_ms: int, remaining_ms: int) -> None:
        def delay_is_over() -> None:
            if self._came_since and remaining_ms:
                self._came_since = False
                next_delay_ms = min(self.settings.group_initial_rebalance_delay_ms, remaining_ms)
                self._extend_first_join(next_delay_ms, max(remaining_ms - delay_ms, 0))
            else:
                self.complete_join()

        self._start(JOIN, delay_ms, delay_is_over)

    def maybe_complete_join(self) -> None:
        """Complete the join phase if all have joined; the first join phase always lasts for its full time."""
        if self.state is ClassicState.PREPARING_REBALANCE and not self._is_first_join and self.roster.have_all_joined():
            self.complete_join()

    def complete_join(self) -> None:
        """Remove dynamic members that did not join, store the next generation, then answer the joins."""
        self._cancel(JOIN)
        late = [m for m in self.roster.members.values() if m.join_ticket is None and m.group_instance_id is None]
        for member in late:
            self.remove(member)
        if late:
            self.scheduler.report(self.group_id, f"{len(late)} members did not join in time and were removed")
        if self.roster.members and not self.roster.elect_joined_leader():
            # Only static members are left, and none of them joined: wait until they do, or until their sessions end.
            self._start(JOIN, self.roster.rebalance_timeout_ms(), self.complete_join)
            return
        self.generation_id += 1
        self.former_generations.clear()
        if not self.roster.members:
            self._become_empty()
            return
        self.protocol_name = self.roster.chosen_protocol()
        self.is_generation_stored = False
        self.transition_to(ClassicState.COMPLETING_REBALANCE)
        generation_id = self.generation_id
        content = self.stored_form(None)
        self.scheduler.store(self.group_id, content, lambda error: self._generation_stored(generation_id, error))

    def _become_empty(self) -> None:
        self.protocol_name = None
        self.transition_to(ClassicState.EMPTY)
        self._keep_for_a_while()
        self.scheduler.store(self.group_id, self.stored_form({}), self._emptiness_stored)

    def _emptiness_stored(self, error: ErrorCode) -> None:
        if error:  # harmless: a successor reads the former generation, and the sessions of its members end
            self.scheduler.report(self.group_id, f"the empty group could not be stored: {error.name}")

    def _keep_for_a_while(self) -> None:
        self._start(RETENTION, self.settings.empty_group_retention_ms, lambda: self.delete(lambda _error: None))

    def delete(self, when_deleted: Callable[[ErrorCode], None]) -> None:
        """Delete the group, which has no member."""

        def deleted(error: ErrorCode) -> None:
            self._when_gone()  # even if it failed: the next load of the bucket then finds an empty group
            when_deleted(error)

        self.close(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.scheduler.store(self.group_id, None, deleted)

    def _generation_stored(self, generation_id: int, error: ErrorCode) -> None:
        if self.state is not ClassicState.COMPLETING_REBALANCE or generation_id != self.generation_id:
            return
        newcomers = [member for member in self.roster.members.values() if member.is_new]
        if error is ErrorCode.GROUP_MAX_SIZE_REACHED and newcomers:
            self._refuse_newcomers(newcomers)
            return
        if error:
            for member in self.roster.members.values():
                was_excused = member.is_excused
                self.answer_join_error(member, error, member.member_id)
                if was_excused:  # its session may have ended meanwhile, and a static member would stay for ever
                    self.start_session(member)
            self.prepare_rebalance(f"generation {generation_id} could not be stored: {error.name}")
            return
        self.is_generation_stored = True
        for member in self.roster.members.values():
            self.answer_join(member)
            self.start_session(member)
            member.is_new = False
        self._await_syncs()

    def _refuse_newcomers(self, newcomers: list[ClassicMember]) -> None:
        """Remove the newcomers that made the group too large to be stored, and admit none for a while."""
        count = len(self.roster.members)
        for member in newcomers:
            self.answer_join_error(member, ErrorCode.GROUP_MAX_SIZE_REACHED, member.member_id)
            self.remove(member)
        self.max_size = len(self.roster.members) or max(1, count // 2)
        self._start(LIMIT, self._limit_ms, self._end_limit)
        self._limit_ms = min(2 * self._limit_ms, LONGEST_LIMIT_MS)
        self.prepare_rebalance(f"{count} members are too many to be stored; the limit is now {self.max_size}")

    def _end_limit(self) -> None:
        self.max_size = self.settings.group_max_size

    # ---- the sync phase

    def _await_syncs(self) -> None:
        self.roster.pending_sync = set(self.roster.members)
        self._start(SYNC, self.roster.rebalance_timeout_ms(), self._syncs_are_late)

    def note_sync(self, member_id: str) -> None:
        """Note that a member's SyncGroup arrived."""
        self.roster.pending_sync.discard(member_id)
        if not self.roster.pending_sync:
            self._cancel(SYNC)

    def _syncs_are_late(self) -> None:
        late = list(self.roster.pending_sync)
        for member_id in late:
            self.remove(self.roster.members[member_id])
        self.prepare_rebalance(f"{len(late)} members did not ask for their assignment in time and were removed")

    def assign(self, assignments: dict[str, bytes]) -> None:
        """Store what the leader assigned, then answer all; members that the leader left out get nothing."""
        if self._is_assigning:  # the leader repeated its request; the first assignment applies
            return
        self._is_assigning = True
        generation_id = self.generation_id
        content = self.stored_form(assignments)
        self.scheduler.store(
            self.group_id, content, lambda error: self._assignment_stored(generation_id, assignments, error)
        )

    def _assignment_stored(self, generation_id: int, assignments: dict[str, bytes], error: ErrorCode) -> None:
        if self.state is not ClassicState.COMPLETING_REBALANCE or generation_id != self.generation_id:
            return
        self._is_assigning = False
        if error:
            self._refuse_syncs(error)
            self.prepare_rebalance(f"the assignment of generation {generation_id} could not be stored: {error.name}")
            return
        self.transition_to(ClassicState.STABLE)
        for member in self.roster.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            if member.sync_ticket is not None:
                self.answer_sync(member, ErrorCode.NONE)
                self.start_session(member)

    def _refuse_syncs(self, error: ErrorCode) -> None:
        for member in self.roster.members.values():
            member.assignment = b""
            if member.sync_ticket is not None:
                self.answer_sync(member, error)
                self.start_session(member)

    # ---- sessions and departures

    def start_session(self, member: ClassicMember) -> None:
        """Expect the next heartbeat within the session timeout."""
        self.expect(member.member_id, member.session_timeout_ms)

    def expect(self, member_id: str, within_ms: int) -> None:
        """Expect a heartbeat of a member, or the join of a client that got this id."""
        key = (self.group_id, SESSION, member_id)
        self.scheduler.start_timer(key, within_ms, lambda: self._session_ended(member_id))

    def cancel_session(self, member_id: str) -> None:
        """Stop expecting heartbeats of a member."""
        self.scheduler.cancel_timer((self.group_id, SESSION, member_id))

    def _session_ended(self, member_id: str) -> None:
        """Remove a member that was silent for too long, or an id that no client used to join."""
        if member_id in self.roster.pending:
            self.roster.remove(member_id)
            self.maybe_complete_join()
            if self.is_forgettable():
                self._when_gone()
            return
        member = self.roster.members.get(member_id)
        if member is None or member.is_excused:
            return
        self.remove(member)
        self.rebalance_after_departure(f"the session of {member_id} ended")

    def remove(self, member: ClassicMember) -> None:
        """Remove a member; its waiting join gets an error, so that a client that still lives tries again."""
        self.cancel_session(member.member_id)
        self.answer_join_error(member, ErrorCode.UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID)
        self.answer_sync(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self.roster.remove(member.member_id)

    def rebalance_after_departure(self, reason: str) -> None:
        """Rebalance after members, or ids that were given out, were removed."""
        if self.state is not ClassicState.EMPTY:
            self.rebalance_or_complete_join(reason)

    # ---- answers, and the stored form

    def answer_join(self, member: ClassicMember) -> None:
        """Answer the waiting join with the present generation; the leader's answer lists all members."""
        if member.join_ticket is None:
            return
        is_leader = member.member_id == self.roster.leader_id
        self.scheduler.reply(member.join_ticket, self.join_answer(member, self.shown_members() if is_leader else ()))
        self.roster.set_join_ticket(member, None)

    def join_answer(
        self, member: ClassicMember, members: tuple[JoinGroupMember, ...], *, skip_assignment: bool = False
    ) -> JoinGroupAnswer:
        """Return a member's answer with the present generation."""
        return JoinGroupAnswer(
            ErrorCode.NONE,
            member.member_id,
            self.generation_id,
            self.roster.protocol_type,
            self.protocol_name,
            self.roster.leader_id or "",
            skip_assignment,
            members,
        )

    def shown_members(self) -> tuple[JoinGroupMember, ...]:
        """Return the members as the leader sees them."""
        return tuple(
            JoinGroupMember(member.member_id, member.group_instance_id, member.metadata(self.protocol_name))
            for member in self.roster.members.values()
        )

    def answer_join_error(self, member: ClassicMember, error: ErrorCode, member_id: str) -> None:
        """Answer the waiting join, if any, with an error."""
        if member.join_ticket is not None:
            self.scheduler.reply(member.join_ticket, JoinGroupAnswer(error, member_id))
            self.roster.set_join_ticket(member, None)

    def answer_sync(self, member: ClassicMember, error: ErrorCode) -> None:
        """Answer the waiting sync, if any."""
        if member.sync_ticket is None:
            return
        if error:
            answer = SyncGroupAnswer(error)
        else:
            answer = SyncGroupAnswer(error, self.roster.protocol_type, self.protocol_name, member.assignment)
        self.scheduler.reply(member.sync_ticket, answer)
        member.sync_ticket = None

    def stored_form(self, assignments: Mapping[str, bytes] | None) -> StoredGroup:
        """Return the group as it is stored; `assignments` is None until the leader has assigned."""
        given = assignments or {}
        return StoredGroup(
            self.generation_id,
            self.roster.protocol_type,
            self.protocol_name,
            self.roster.leader_id,
            assignments is not None,
            tuple(to_stored(member, given.get(member.member_id, b"")) for member in self.roster.members.values()),
        )
