"""JoinGroup in a classic group: which clients are admitted, and what a join causes."""

from __future__ import annotations

from dataclasses import replace

from zkrebalancer.group_protocol.answers import JoinGroupAnswer
from zkrebalancer.group_protocol.classic_group import ClassicGroup
from zkrebalancer.group_protocol.classic_roster import ClassicMember
from zkrebalancer.group_protocol.classic_states import ClassicState
from zkrebalancer.group_protocol.effects import Received
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.requests import (
    MEMBER_ID_REQUIRED_FROM,
    NO_TIMEOUT,
    UNKNOWN_MEMBER_ID,
    JoinGroupRequest,
)
from zkrebalancer.group_protocol.settings import MAX_PENDING_MEMBERS

SKIP_ASSIGNMENT_FROM = 9  # versions of JoinGroup


class Join:
    """One JoinGroup request in the group that it is for."""

    def __init__(self, group: ClassicGroup, received: Received, request: JoinGroupRequest) -> None:
        self._group = group
        self._received = received
        self._request = request

    def handle(self) -> None:
        """Answer the request, or let it wait for the others."""
        request = self._request
        roster = self._group.roster
        if self._group.state is ClassicState.DEAD:
            self._refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif not self._has_room():
            member = roster.members.get(request.member_id)
            self._refuse(ErrorCode.GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID)
            if member is not None:
                self._group.remove(member)
                self._group.rebalance_after_departure(f"{member.member_id} exceeds the limit of members")
        elif not self._is_consistent():
            self._refuse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif request.member_id == UNKNOWN_MEMBER_ID:
            self._handle_newcomer()
        elif request.member_id in roster.pending:
            if request.group_instance_id is None:
                self._add(request.member_id)
            else:  # only dynamic members get an id first
                self._refuse(ErrorCode.UNKNOWN_SERVER_ERROR)
        elif error := roster.check(request.member_id, request.group_instance_id):
            self._refuse(error)
        else:
            self._handle_member(roster.members[request.member_id])

    def _has_room(self) -> bool:
        """Whether the group may have this member. While joins wait, the last ones to arrive exceed the limit."""
        group, roster, limit = self._group, self._group.roster, self._group.max_size
        member = roster.members.get(self._request.member_id)
        if group.state is ClassicState.EMPTY:
            return True
        if group.state is ClassicState.PREPARING_REBALANCE:
            return roster.joining_count < limit or (member is not None and member.join_ticket is not None)
        return len(roster.members) < limit or member is not None

    def _is_consistent(self) -> bool:
        names = [protocol.name for protocol in self._request.protocols]
        if not self._group.roster.members:
            return bool(self._request.protocol_type and names)
        return self._group.roster.supports(self._request.protocol_type, names)

    # ---- members without an id

    def _handle_newcomer(self) -> None:
        request, roster = self._request, self._group.roster
        if request.group_instance_id is None:
            member_id = self._received.new_member_id(None)
            if self._received.api_version >= MEMBER_ID_REQUIRED_FROM:
                self._give_out(member_id)
            else:
                self._add(member_id)
            return
        member_id = self._received.new_member_id(request.group_instance_id)
        current_id = roster.static_member_id(request.group_instance_id)
        if current_id is None:
            self._add(member_id)
        else:
            self._replace(roster.members[current_id], member_id)

    def _give_out(self, member_id: str) -> None:
        """Make the client join again with an id, so that a join whose answer is lost leaves no member behind."""
        group = self._group
        if len(group.roster.pending) >= MAX_PENDING_MEMBERS:
            self._refuse(ErrorCode.GROUP_MAX_SIZE_REACHED)
            return
        group.roster.pending.add(member_id)
        group.expect(member_id, self._request.session_timeout_ms)
        self._refuse(ErrorCode.MEMBER_ID_REQUIRED, member_id)

    def _add(self, member_id: str) -> None:
        group, request = self._group, self._request
        if not group.roster.members:
            group.roster.protocol_type = request.protocol_type
        member = ClassicMember(
            member_id,
            request.group_instance_id,
            self._received.client_id,
            self._received.client_host,
            request.session_timeout_ms,
            self._rebalance_timeout_ms(),
            request.protocols,
            join_ticket=self._received.ticket,
            is_new=True,
        )
        group.note_newcomer()
        group.roster.add(member)
        # It has no id for heartbeats yet. The session keeps the group from waiting for ever for a client that is gone.
        group.expect(member_id, group.settings.new_member_join_timeout_ms)
        group.rebalance_or_complete_join(f"{member_id} joined{self._reason()}")

    # ---- a static member that returns

    def _replace(self, member: ClassicMember, member_id: str) -> None:
        """Let a restarted static member replace its former self."""
        group = self._group
        former = replace(member, join_ticket=None, sync_ticket=None)
        group.answer_join_error(member, ErrorCode.FENCED_INSTANCE_ID, former.member_id)
        group.answer_sync(member, ErrorCode.FENCED_INSTANCE_ID)
        group.cancel_session(former.member_id)
        led = group.roster.leader_id or ""
        group.roster.rename(member, member_id)
        member.is_new = False
        self._update(member)
        group.start_session(member)
        if group.state is ClassicState.PREPARING_REBALANCE:
            group.maybe_complete_join()
        elif group.state is ClassicState.COMPLETING_REBALANCE:
            # The leader may be assigning to the former id.
            group.prepare_rebalance(f"static member {member_id} returned while partitions were assigned")
        elif group.roster.chosen_protocol() != group.protocol_name:
            group.prepare_rebalance(f"static member {member_id} returned with other protocols")
        else:
            self._store_replacement(member, former, led)

    def _store_replacement(self, member: ClassicMember, former: ClassicMember, led: str) -> None:
        """Store the new id, then answer; no other member is affected. If it cannot be stored, the former id stays.

        `led`: the id of the leader before.
        """
        group, ticket = self._group, self._received.ticket

        def stored(error: ErrorCode) -> None:
            if group.state is not ClassicState.STABLE or member.join_ticket != ticket:
                return  # a rebalance, or a later self, answers
            if error:
                self._take_back(member, former, error)
            else:
                group.scheduler.reply(ticket, self._replaced(member, led))
                group.roster.set_join_ticket(member, None)
                group.start_session(member)

        assignments = {other.member_id: other.assignment for other in group.roster.members.values()}
        group.scheduler.store(group.group_id, group.stored_form(assignments), stored)

    def _take_back(self, member: ClassicMember, former: ClassicMember, error: ErrorCode) -> None:
        group = self._group
        group.answer_join_error(member, error, UNKNOWN_MEMBER_ID)
        group.cancel_session(member.member_id)
        group.roster.rename(member, former.member_id)
        group.roster.set_protocols(member, former.protocols)
        member.session_timeout_ms = former.session_timeout_ms
        member.rebalance_timeout_ms = former.rebalance_timeout_ms
        group.start_session(member)

    def _replaced(self, member: ClassicMember, led: str) -> JoinGroupAnswer:
        group = self._group
        if self._received.api_version >= SKIP_ASSIGNMENT_FROM:
            is_leader = group.roster.leader_id == member.member_id
            return group.join_answer(member, group.shown_members() if is_leader else (), skip_assignment=is_leader)
        # A client of these versions would assign if it saw itself lead, so it sees its former id lead.
        return replace(group.join_answer(member, ()), leader=led)

    # ---- members that join again

    def _handle_member(self, member: ClassicMember) -> None:
        group = self._group
        is_same = member.protocols == self._request.protocols
        is_leader = member.member_id == group.roster.leader_id
        if group.state is ClassicState.COMPLETING_REBALANCE and is_same:
            # Its answer was lost, or is still to come: the generation does not change.
            self._update(member)
            if group.is_generation_stored:
                group.answer_join(member)
        elif group.state is ClassicState.STABLE and is_same and not is_leader:
            group.scheduler.reply(self._received.ticket, group.join_answer(member, ()))
        else:
            self._update(member)
            what = "joined again" if is_same else "joined with other protocols"
            group.rebalance_or_complete_join(f"{member.member_id} {what}{self._reason()}")

    def _update(self, member: ClassicMember) -> None:
        """Apply the request to the member, and let it wait; an older waiting join of the member ends."""
        group, request = self._group, self._request
        group.answer_join_error(member, ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
        group.roster.set_protocols(member, request.protocols)
        group.roster.set_join_ticket(member, self._received.ticket)
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = self._rebalance_timeout_ms()

    # ---- small things

    def _rebalance_timeout_ms(self) -> int:
        timeout_ms = self._request.rebalance_timeout_ms
        return self._request.session_timeout_ms if timeout_ms == NO_TIMEOUT else timeout_ms

    def _reason(self) -> str:
        return f" ({self._request.reason!r:.100})" if self._request.reason else ""

    def _refuse(self, error: ErrorCode, member_id: str | None = None) -> None:
        shown = self._request.member_id if member_id is None else member_id
        self._group.scheduler.reply(self._received.ticket, JoinGroupAnswer(error, shown))
