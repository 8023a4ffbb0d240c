"""Answers requests about groups: the machine decides, and offsets are sent on to the brokers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import gevent
from gevent.event import AsyncResult

from zkrebalancer.gateway import authorization, translation
from zkrebalancer.gateway.groups import HOLD_S, Groups
from zkrebalancer.gateway.lanes import OffsetStore, Outcome
from zkrebalancer.gateway.links import KEYS
from zkrebalancer.gateway.metrics import Metrics
from zkrebalancer.gateway.offset_answers import BATCHED_FETCH_FROM, refused_topics, topics_without_offsets
from zkrebalancer.gateway.offsets import ANSWER_TIMEOUT_S, HIGHEST, PATIENCE_S
from zkrebalancer.gateway.rights import Client
from zkrebalancer.gateway.room import Arrived, Room
from zkrebalancer.gateway.turns import in_turns, let_others_run, note_name
from zkrebalancer.group_protocol import requests
from zkrebalancer.group_protocol.answers import Answer, DeleteGroupsAnswer, OffsetCheckAnswer, OffsetDeleteAnswer
from zkrebalancer.group_protocol.classic_states import ClassicState
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.kafka_protocol import codec
from zkrebalancer.kafka_protocol.codec import Fields, Header
from zkrebalancer.kafka_protocol.schema import Versions, apis, message
from zkrebalancer.protocol.complaints import Complaints
from zkrebalancer.protocol.errors import ZooKeeperUnavailableError
from zkrebalancer.runtime import clock

# How long a request about offsets may hold up its connection, and the member's heartbeats with it; at a broker, 5 s.
LONGEST_HOLD_S = PATIENCE_S + ANSWER_TIMEOUT_S
EMPTY, CLASSIC = ClassicState.EMPTY.value, "classic"
OFFSETS_SLICE = 100  # groups without members whose offsets are looked for, or deleted, at once
COMMITS: dict[str, type[requests.OffsetCommitRequest | requests.TxnOffsetCommitRequest]] = {
    "OffsetCommit": requests.OffsetCommitRequest,
    "TxnOffsetCommit": requests.TxnOffsetCommitRequest,
}
_log = logging.getLogger(__name__)
BY_MACHINE: dict[str, type[requests.Request]] = {  # requests whose answer is that of the machine, field by field
    "JoinGroup": requests.JoinGroupRequest,
    "SyncGroup": requests.SyncGroupRequest,
    "Heartbeat": requests.HeartbeatRequest,
    "LeaveGroup": requests.LeaveGroupRequest,
    "DescribeGroups": requests.DescribeGroupsRequest,
    "ListGroups": requests.ListGroupsRequest,
    "ConsumerGroupHeartbeat": requests.ConsumerGroupHeartbeatRequest,
    "ConsumerGroupDescribe": requests.ConsumerGroupDescribeRequest,
}
# Requests that may wait for other members without a limit; the group counts the memory that they need meanwhile.
WAIT_FOR_OTHERS = frozenset({"JoinGroup", "SyncGroup"})
# Requests whose answer the machine gives in one step, however many they name: where they are named, and in the answer,
# and how many at once. A group may have a thousand members.
SLICES = {
    "DescribeGroups": ("groups", "groups", 10),
    "ConsumerGroupDescribe": ("group_ids", "groups", 10),
    "LeaveGroup": ("members", "members", 1_000),
}


class GroupRequests:
    """Answers the requests of connections about groups."""

    def __init__(self, groups: Groups, offsets: OffsetStore, metrics: Metrics, room: Room) -> None:
        """Ask `groups`, and send offsets to `offsets`; `room`: the memory for requests."""
        self._groups = groups
        self._offsets = offsets
        self._metrics = metrics
        self._room = room
        self._complaints = Complaints()
        self._others: dict[str, Callable[[Header, Fields, str], Fields]] = {
            **dict.fromkeys(COMMITS, self._commit),
            "OffsetFetch": self._fetch,
            "OffsetDelete": self._delete_offsets,
            "DeleteGroups": self._delete_groups,
        }
        self.served: Mapping[int, Versions] = {
            KEYS[name]: _versions(name) for name in (*BY_MACHINE, *self._others)
        }  # the requests that are answered here

    def answer(self, arrived: Arrived, client: Client) -> bytes:
        """Return the answer without its header; may wait. Raises FrameError, and what the client's rights raise."""
        name, version = apis()[arrived.header.api_key], arrived.header.version
        with arrived.held:
            fields = arrived.decode(self._room, name, let_others_run)

            def go_on(some: Fields) -> Fields:
                return self._answered(name, arrived, some, client)

            rights = client.rights
            answer = go_on(fields) if rights is None else authorization.answer(name, version, fields, rights, go_on)
            return codec.encode(f"{name}Response", version, answer, pause=let_others_run)

    def _answered(self, name: str, arrived: Arrived, fields: Fields, client: Client) -> Fields:
        """Return the answer to what the client may ask for.

        A commit that may have waited while another gateway served its group is refused: that gateway may have stored a
        later one.
        """
        self._metrics.requests[name] += 1
        if name in COMMITS and self._groups.has_taken_over_since(client.since_us, fields["group_id"]):
            return {"topics": refused_topics(fields["topics"], ErrorCode.NOT_COORDINATOR)}
        if name == "ListGroups" and not self._groups.is_settled:
            # An empty list would look as if there were no groups.
            return {"error_code": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "groups": []}
        if name == "ListGroups" and not client.is_at_gateway:
            return {"groups": []}  # clients ask every node; only the gateways' own ports answer
        if name in BY_MACHINE:
            return self._by_machine(name, arrived, fields, client.host)
        return self._others[name](arrived.header, fields, client.host)

    def _by_machine(self, name: str, arrived: Arrived, fields: Fields, client_host: str) -> Fields:
        ask = self._ask_in_slices if name in SLICES else self._ask_machine
        answer = ask(name, arrived, fields, client_host)
        if name == "DescribeGroups":
            dead = (one for one in answer["groups"] if one["group_state"] == ClassicState.DEAD.value)
            self._look_for_offsets([one for one in dead if not one["is_used"]])
        elif name == "ListGroups" and not answer["error_code"]:
            answer = self._with_groups_that_have_offsets(fields, answer)
        return answer

    def _ask_in_slices(self, name: str, arrived: Arrived, fields: Fields, client_host: str) -> Fields:
        """Ask the machine for some of many groups or members at a time; others have their turn in between."""
        asked, answered, at_once = SLICES[name]
        named = fields[asked] if name == "LeaveGroup" else list(dict.fromkeys(fields[asked]))
        found: list[Fields] = []
        for at in range(0, max(1, len(named)), at_once):
            if at:
                let_others_run()
            answer = self._ask_machine(name, arrived, {**fields, asked: named[at : at + at_once]}, client_host)
            if answer.get("error_code"):
                return answer
            found += answer[answered]
        return {**answer, answered: found}

    def _ask_machine(self, name: str, arrived: Arrived, fields: Fields, client_host: str) -> Fields:
        header = arrived.header
        if name == "LeaveGroup":
            request: requests.Request = translation.leave_group(header.version, fields)
        else:
            request = translation.build(BY_MACHINE[name], fields)
        if not self._is_matched(request):
            return {"error_code": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}  # clients repeat it
        if error := self._error_elsewhere(request):
            return {"error_code": error}
        beats_for = request.group_id if isinstance(request, requests.HeartbeatRequest) else None
        answered: AsyncResult[Answer] = AsyncResult()
        self._receive(request, header, client_host, answered.set)
        if name in WAIT_FOR_OTHERS:
            if self._groups.holds(fields["group_id"]):
                answered.wait(HOLD_S)
            del request
            fields.clear()
            arrived.held.close()
        # As with a broker, nothing is read from the client meanwhile, so the connection of a client that is gone lasts
        # until the answer. The machine's timers limit that: a join waits at most for the group's rebalance timeout, a
        # new member's for `new_member_join_timeout_ms`.
        answer: Fields = translation.understood(name, translation.fields_of(answered.get()))
        if beats_for is not None and not answer["error_code"]:
            answer["error_code"] = self._error_of_heartbeat(beats_for)
        if name == "ConsumerGroupHeartbeat" and answer["error_code"] == ErrorCode.UNSUPPORTED_VERSION:
            self._complain(fields["group_id"], answer["error_message"])
        return translation.join_group_answer(header.version, answer) if name == "JoinGroup" else answer

    def _is_matched(self, request: requests.Request) -> bool:
        """Whether it is known which topics a request selects."""
        expression = (
            request.subscribed_topic_regex if isinstance(request, requests.ConsumerGroupHeartbeatRequest) else ""
        )
        return not expression or self._groups.match(expression)

    def _complain(self, group_id: str, reason: str) -> None:
        text = self._complaints.text(group_id, reason, clock.steady_us() / 1e6)
        if text is not None:
            _log.warning("group %s: a client of the KIP-848 protocol is refused: %s", group_id, text)

    def _error_elsewhere(self, request: requests.Request) -> ErrorCode:
        """Refuse clients of a group that has members at the brokers: newcomers retry, members give up all partitions.

        Newcomers also retry while the brokers do not answer whether the group has members there. Members get the error
        with a heartbeat, but a classic member that has to join again joins first. If it got the error before, with a
        heartbeat or a commit, its client would drop its member id and join as a newcomer, which is refused for ever.
        Meanwhile it would keep its partitions; a cooperative client would even go on reading them.
        """
        match request:
            case (
                requests.ConsumerGroupHeartbeatRequest(member_epoch=requests.JOIN_EPOCH)
                | requests.JoinGroupRequest(member_id=requests.UNKNOWN_MEMBER_ID)
            ):
                may_be_elsewhere = self._offsets.may_be_elsewhere(request.group_id)
                return ErrorCode.COORDINATOR_NOT_AVAILABLE if may_be_elsewhere else ErrorCode.NONE
            case requests.ConsumerGroupHeartbeatRequest(member_epoch=epoch) if epoch < requests.JOIN_EPOCH:
                return ErrorCode.NONE  # it leaves
            case requests.ConsumerGroupHeartbeatRequest():
                return self._error_of_heartbeat(request.group_id)
            case _:
                return ErrorCode.NONE

    def _error_of_heartbeat(self, group_id: str) -> ErrorCode:
        """Return the error for a member to which the machine has nothing else to say."""
        is_elsewhere = self._offsets.was_elsewhere(group_id)
        return ErrorCode.UNKNOWN_MEMBER_ID if is_elsewhere else ErrorCode.NONE

    def _receive(
        self, request: requests.Request, header: Header, client_host: str, when_answered: Callable[[Answer], None]
    ) -> None:
        client = (header.client_id or "", client_host)
        self._groups.receive(request, header.version, client, when_answered)

    # ---- offsets

    def _with_groups_that_have_offsets(self, fields: Fields, answer: Fields) -> Fields:
        """Add groups that nobody has joined here, but that have offsets: at a broker they are empty classic groups."""
        if not translation.build(requests.ListGroupsRequest, fields).selects(EMPTY, CLASSIC):
            return answer
        names = set(self._groups.names)
        try:
            more = self._offsets.without_members(
                lambda group: group not in names and self._groups.fence(group) is not None
            )
        except (ZooKeeperUnavailableError, OSError) as error:
            _log.warning("groups cannot be listed: %s", error)
            return {"error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE, "groups": []}
        empty = [
            {"group_id": group, "protocol_type": "", "group_state": EMPTY, "group_type": CLASSIC}
            for group in sorted(more)
        ]
        return {**answer, "groups": [*answer["groups"], *empty]}

    def _look_for_offsets(self, groups: list[Fields]) -> None:
        """Describe groups without members that have stored offsets as Kafka does: they are empty, not dead.

        Once the time is over, nothing more is asked: the store has to answer others, too.
        """
        until_us = _time_limit_us()
        for at in range(0, len(groups), OFFSETS_SLICE):
            asked: list[tuple[Fields, AsyncResult[Outcome]]] = []
            if clock.steady_us() >= until_us:
                for group in groups[at:]:
                    group.update(_with_offsets(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
                return
            for group in groups[at : at + OFFSETS_SLICE]:
                note_name(group["group_id"])
                outcome: AsyncResult[Outcome] = AsyncResult()
                all_of_it = {"group_id": group["group_id"], "topics": None}
                request = {**all_of_it, "groups": [all_of_it], "require_stable": False}
                self._offsets.send(group["group_id"], "OffsetFetch", request, outcome.set)
                asked.append((group, outcome))
            for group, outcome in asked:
                group.update(_with_offsets(_within(until_us, outcome)))

    def _begin(self, check: requests.OneGroup, header: Header, fields: Fields, host: str) -> AsyncResult[Outcome]:
        """Send a request to the brokers if the machine allows it; requests keep the order of the decisions."""
        outcome: AsyncResult[Outcome] = AsyncResult()

        def decided(answer: Answer) -> None:
            if not isinstance(answer, OffsetCheckAnswer):
                outcome.set(ErrorCode.UNKNOWN_SERVER_ERROR)
            elif answer.error_code:
                outcome.set(answer.error_code)
            else:
                joins = answer.is_classic_member
                when_answered = (lambda found: outcome.set(_asked_to_join(found))) if joins else outcome.set
                self._offsets.send(check.group_id, apis()[header.api_key], fields, when_answered)

        self._receive(check, header, host, decided)
        return outcome

    def _commit(self, header: Header, fields: Fields, client_host: str) -> Fields:
        check = translation.build(COMMITS[apis()[header.api_key]], fields)
        found = _within(_time_limit_us(), self._begin(check, header, fields, client_host))
        return {"topics": refused_topics(fields["topics"], found)} if isinstance(found, ErrorCode) else found

    def _fetch(self, header: Header, fields: Fields, client_host: str) -> Fields:
        """Fetch the offsets of many groups at once: in turn, those of thousands would take minutes if brokers are away.

        Once the time is over, nothing more is asked; clients repeat that.
        """
        if header.version >= BATCHED_FETCH_FROM:
            asked = fields["groups"]
        else:
            asked = [{"group_id": fields["group_id"], "topics": fields["topics"]}]
        groups: list[Fields] = []
        until_us = _time_limit_us()
        for at in range(0, len(asked), OFFSETS_SLICE):
            some = asked[at : at + OFFSETS_SLICE]
            if at:
                let_others_run()  # a group of another gateway is refused at once
            if clock.steady_us() >= until_us:
                groups += [_fetched(one, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) for one in in_turns(asked[at:])]
                break
            begun = [self._begin_fetch(header, one, client_host, is_stable=fields["require_stable"]) for one in some]
            groups += [_fetched(one, _within(until_us, outcome)) for one, outcome in zip(some, begun, strict=True)]
        return {**groups[0], "groups": groups} if groups else {"groups": []}

    def _begin_fetch(self, header: Header, asked: Fields, host: str, *, is_stable: bool) -> AsyncResult[Outcome]:
        note_name(asked["group_id"])
        group = {"group_id": asked["group_id"], "topics": asked["topics"]}
        check = translation.build(requests.OffsetFetchRequest, asked)
        # Both forms of the request: the link writes the one of its version.
        return self._begin(check, header, {**group, "groups": [group], "require_stable": is_stable}, host)

    def _delete_offsets(self, header: Header, fields: Fields, client_host: str) -> Fields:
        group_id = fields["group_id"]
        check = requests.OffsetDeleteRequest(group_id, tuple(topic["name"] for topic in fields["topics"]))
        outcome: AsyncResult[Outcome] = AsyncResult()
        kept: list[Fields] = []
        done: Fields = {}  # the answer if the store does not know the group, which exists

        def decided(answer: Answer) -> None:
            if not isinstance(answer, OffsetDeleteAnswer):
                outcome.set(ErrorCode.UNKNOWN_SERVER_ERROR)
            elif answer.error_code not in {ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND}:
                outcome.set(answer.error_code)
            else:
                stay = [topic for topic in fields["topics"] if topic["name"] in answer.subscribed_topics]
                kept.extend(refused_topics(stay, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC))
                go = [topic for topic in fields["topics"] if topic["name"] not in answer.subscribed_topics]
                self._offsets.send(group_id, "OffsetDelete", {"group_id": group_id, "topics": go}, outcome.set)
                if not answer.error_code:
                    done.update(error_code=ErrorCode.NONE, topics=refused_topics(go, ErrorCode.NONE))

        self._receive(check, header, client_host, decided)
        found = outcome.get() or ErrorCode.UNKNOWN_SERVER_ERROR
        code = found if isinstance(found, ErrorCode) else found["error_code"]
        if done and code == ErrorCode.GROUP_ID_NOT_FOUND:
            found = done
        if isinstance(found, ErrorCode):
            return {"error_code": found, "topics": []}
        return {"error_code": found["error_code"], "topics": [*found["topics"], *kept]}

    def _delete_groups(self, header: Header, fields: Fields, client_host: str) -> Fields:
        results: list[Fields] = []
        names = list(dict.fromkeys(fields["groups_names"]))
        for at in range(0, len(names), OFFSETS_SLICE):
            some = [(name, self._begin_deletion(name, header, client_host)) for name in names[at : at + OFFSETS_SLICE]]
            results.extend({"group_id": name, "error_code": deleted.get()} for name, deleted in some)
            let_others_run()  # as above
        return {"results": results}

    def _begin_deletion(self, group_id: str, header: Header, client_host: str) -> AsyncResult[int]:
        """Delete a group, and its offsets in the same step: the requests of its next members come after that."""
        note_name(group_id)
        deleted: AsyncResult[int] = AsyncResult()

        def decided(answer: Answer) -> None:
            error = ErrorCode.UNKNOWN_SERVER_ERROR
            if isinstance(answer, DeleteGroupsAnswer):
                error = answer.results[0].error_code
            if error in {ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND}:
                fields = {"groups_names": [group_id]}
                self._offsets.send(
                    group_id, "DeleteGroups", fields, lambda found: deleted.set(_error_of_deletion(found, error))
                )
            else:
                deleted.set(error)

        self._receive(requests.DeleteGroupsRequest((group_id,)), header, client_host, decided)
        return deleted


def _time_limit_us() -> int:
    return clock.steady_us() + int(LONGEST_HOLD_S * 1e6)


def _within(until_us: int, outcome: AsyncResult[Outcome]) -> Outcome:
    """Wait for an outcome.

    If it comes too late, the client gets an error. As with a broker, a commit may be stored nevertheless, but before
    all later ones of its group.
    """
    try:
        found = outcome.get(timeout=max(0, until_us - clock.steady_us()) / 1e6)
    except gevent.Timeout:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return ErrorCode.UNKNOWN_SERVER_ERROR if found is None else found


def _fetched(asked: Fields, found: Outcome) -> Fields:
    """Return a group's part of the answer to an OffsetFetch."""
    if isinstance(found, ErrorCode):
        code = translation.understood_code("OffsetFetch", found)
        topics = topics_without_offsets(asked["topics"] or (), code)
        return {"group_id": asked["group_id"], "topics": topics, "error_code": code}
    one: Fields = found["groups"][0] if found["groups"] else found
    return {"group_id": asked["group_id"], "topics": one["topics"], "error_code": one["error_code"]}


def _error_of_deletion(found: Outcome, error: ErrorCode) -> int:
    """Return the error of a group's deletion, given what became of its offsets; `error`: of the group itself."""
    if isinstance(found, ErrorCode):
        return found
    code: int = found["results"][0]["error_code"] if found["results"] else error
    return error if code == ErrorCode.GROUP_ID_NOT_FOUND else code


def _with_offsets(found: Outcome) -> Fields:
    """Return what the answer about all offsets of a group changes in its description."""
    if isinstance(found, ErrorCode):
        return {"error_code": found, "group_state": "", "error_message": None}
    one: Fields = found["groups"][0] if found["groups"] else found
    error = one["error_code"]
    if error == ErrorCode.GROUP_ID_NOT_FOUND or not (error or one["topics"]):
        return {}
    state = "" if error else ClassicState.EMPTY.value
    return {"error_code": error, "group_state": state, "error_message": None}


def _versions(name: str) -> Versions:
    known = message(f"{name}Request").versions
    return Versions(known.first, min(known.last, HIGHEST.get(name, known.last)))


def _asked_to_join(found: Outcome) -> Outcome:
    """Return REBALANCE_IN_PROGRESS if the brokers refused a commit because the group has members there."""
    is_elsewhere = isinstance(found, dict) and any(
        one["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID for topic in found["topics"] for one in topic["partitions"]
    )
    return ErrorCode.REBALANCE_IN_PROGRESS if is_elsewhere else found
