"""The exception that refuses a request, and the answers that carry errors, also for unknown groups."""

from __future__ import annotations

from collections.abc import Callable

from zkrebalancer.group_protocol.answers import (
    Answer,
    ConsumerGroupHeartbeatAnswer,
    HeartbeatAnswer,
    JoinGroupAnswer,
    LeaveGroupAnswer,
    LeaveGroupMember,
    OffsetCheckAnswer,
    OffsetDeleteAnswer,
    SyncGroupAnswer,
)
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.requests import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OneGroup,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)

ONE_MEMBER_UNTIL = 2  # versions of LeaveGroup
COMMIT_NOT_FOUND_FROM = 9  # versions of OffsetCommit


class RefusedError(Exception):
    """The request is refused with this code, and with this text if its answer has a field for it.

    `report`: a line for the log, as far as its client has not caused too many.
    """

    def __init__(self, code: ErrorCode, text: str | None = None, report: str | None = None) -> None:
        super().__init__(text or code.name)
        self.code = code
        self.text = text
        self.report = report


_FORMS: dict[type[object], Callable[[ErrorCode], Answer]] = {
    SyncGroupRequest: SyncGroupAnswer,
    LeaveGroupRequest: LeaveGroupAnswer,
    OffsetDeleteRequest: OffsetDeleteAnswer,
    HeartbeatRequest: lambda error: HeartbeatAnswer(_unless_loading(error)),
}


def _unless_loading(error: ErrorCode) -> ErrorCode:
    """Accept a heartbeat while its group is being read: it cannot be checked yet."""
    return ErrorCode.NONE if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else error


def refused(request: OneGroup, error: ErrorCode, text: str | None = None) -> Answer:
    """Return an answer with this error, and with `text` if the answer has a field for it."""
    if isinstance(request, JoinGroupRequest):  # whose group cannot become a central one; as Kafka says it
        is_other = error is ErrorCode.GROUP_ID_NOT_FOUND
        return JoinGroupAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL if is_other else error, request.member_id)
    if isinstance(request, ConsumerGroupHeartbeatRequest):
        return ConsumerGroupHeartbeatAnswer(error, text or error.name)
    return _FORMS.get(type(request), OffsetCheckAnswer)(error)


def for_unknown_group(request: OneGroup, api_version: int) -> Answer:
    """Return the answer to a member of an unknown group."""
    error = ErrorCode.UNKNOWN_MEMBER_ID
    match request:
        case LeaveGroupRequest():
            return nobody_left(request, api_version)
        case OffsetFetchRequest():
            error = ErrorCode.NONE
        case OffsetDeleteRequest():
            error = ErrorCode.GROUP_ID_NOT_FOUND
        case OffsetCommitRequest() if request.generation_id_or_member_epoch < 0:
            error = ErrorCode.NONE
        case OffsetCommitRequest() if api_version >= COMMIT_NOT_FOUND_FROM:
            error = ErrorCode.GROUP_ID_NOT_FOUND
        case TxnOffsetCommitRequest() if request.generation_id < 0:
            error = ErrorCode.NONE
        case OffsetCommitRequest() | TxnOffsetCommitRequest():
            error = ErrorCode.ILLEGAL_GENERATION
    return refused(request, error)


def nobody_left(request: LeaveGroupRequest, api_version: int) -> LeaveGroupAnswer:
    """Return an answer that no member is known."""
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    members = tuple(LeaveGroupMember(member.member_id, member.group_instance_id, unknown) for member in request.members)
    return LeaveGroupAnswer(unknown if api_version <= ONE_MEMBER_UNTIL else ErrorCode.NONE, members)
