"""The group coordinator of a gateway, as one function: `step(event, now_ms) -> effects`."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from zkrebalancer.group_protocol import central, classic_requests, consumer_requests, migration
from zkrebalancer.group_protocol.answers import (
    ConsumerGroupDescribeAnswer,
    DeletedGroup,
    DeleteGroupsAnswer,
    DescribedConsumerGroup,
    DescribedGroup,
    DescribeGroupsAnswer,
    ListGroupsAnswer,
)
from zkrebalancer.group_protocol.assignors import ASSIGNORS, Assignor
from zkrebalancer.group_protocol.classic_group import ClassicGroup
from zkrebalancer.group_protocol.classic_states import ClassicState
from zkrebalancer.group_protocol.consumer_group import ConsumerGroup, Turn, World
from zkrebalancer.group_protocol.consumer_heartbeat import check_ids, fence_member, validate
from zkrebalancer.group_protocol.consumer_protocol import MAX_METADATA_BYTES
from zkrebalancer.group_protocol.effects import (
    BucketLoaded,
    BucketLoading,
    BucketLost,
    BucketRefused,
    Effect,
    Event,
    Fenced,
    GroupLoaded,
    Received,
    Stored,
    Targeted,
    TopicsRead,
)
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.figures import GroupFigures, listed, reads
from zkrebalancer.group_protocol.intervals import Intervals
from zkrebalancer.group_protocol.kept import Kept
from zkrebalancer.group_protocol.placement import bucket_of
from zkrebalancer.group_protocol.reconciliation import NEW
from zkrebalancer.group_protocol.refusals import RefusedError, for_unknown_group, refused
from zkrebalancer.group_protocol.requests import (
    JOIN_EPOCH,
    UNKNOWN_MEMBER_ID,
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    JoinGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OneGroup,
)
from zkrebalancer.group_protocol.scheduler import Scheduler
from zkrebalancer.group_protocol.settings import GroupProtocolSettings
from zkrebalancer.group_protocol.stored import StoredContent, StoredGroup
from zkrebalancer.group_protocol.topic_news import TopicNews
from zkrebalancer.group_protocol.topics import Topics, of_groups

DESCRIBE_NOT_FOUND_FROM = 6  # versions of DescribeGroups
MAY_BE_UNNAMED = (OffsetCommitRequest, OffsetFetchRequest)  # in these, Kafka allows an empty group name
MAX_SHOWN = 8_000  # characters of an event, and of a group, that are logged when the group fails
AnyGroup = ClassicGroup | ConsumerGroup
T = TypeVar("T")


class Machine:
    """All groups that one gateway serves."""

    def __init__(self, settings: GroupProtocolSettings, assignors: Mapping[str, Assignor] = ASSIGNORS) -> None:
        self._settings = settings
        self._scheduler = Scheduler(self._contain)
        self._topics = Topics()
        self._groups: dict[str, AnyGroup] = {}
        self._kept = Kept(self._groups.values, self._topics, assigns_centrally=settings.assigns_centrally)
        self._world = World(settings, self._scheduler, self._topics, assignors, Intervals(settings), self._kept)
        self._news = TopicNews(self._scheduler, self._topics, self._groups, self._contain)
        self._loaded: dict[int, bool] = {}  # the buckets served here; False: being loaded
        self._refused: set[int] = set()  # of these: those that cannot be loaded for now
        self._failed: set[str] = set()  # groups that are not served until they are read again
        self._deletions: dict[tuple[str, int], Callable[[ErrorCode], None]] = {}  # group, ticket -> callback
        self._event: Event | None = None  # the event being handled

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Handle one event. `now_ms`: of a clock that never jumps. Due timers fire first."""
        self._scheduler.now_ms = now_ms
        self._event = event
        self._scheduler.wake_due()
        match event:
            case Received():
                self._receive(event)
            case Stored():
                self._scheduler.stored(event.write_id, event.error_code)
            case BucketLoading():
                self._loaded[event.bucket] = False
                self._refused.discard(event.bucket)
            case BucketRefused():
                self._refused.add(event.bucket)
            case BucketLoaded():
                self._load(event)
            case GroupLoaded():
                self._load_again(event)
            case BucketLost():
                self._lose(event.bucket)
            case TopicsRead():
                self._news.read(event.topics)
            case Targeted() | Fenced():
                self._give(event)
        return self._scheduler.take_effects()

    def next_deadline_ms(self) -> int | None:
        """Return when a `Tick` is due; None: not before the next event."""
        return self._scheduler.next_deadline_ms()

    def group_names(self) -> frozenset[str]:
        """Return the groups that are known here; what Kafka's group coordinator knows of them does not matter."""
        return frozenset(self._groups)

    def is_read(self, group_id: str, topic: str, number: int) -> bool:
        """Whether members that are served here read a partition of a group, as far as that is known."""
        group = self._groups.get(group_id)
        return group is not None and reads(group, topic, number)

    def needs_match(self, expression: str) -> bool:
        """Whether the next step that needs it would find out what an expression matches."""
        return self._topics.is_known and not self._topics.has_matched(expression)

    def match_in_turns(self, expression: str) -> Iterator[None]:
        """Find out what an expression matches, with pauses, before that step; raises PatternError."""
        return self._topics.match_in_turns(expression)

    def _give(self, event: Targeted | Fenced) -> None:
        group = self._groups.get(event.group_id)
        if isinstance(group, ConsumerGroup) and isinstance(event, Fenced):
            self._contain(event.group_id, functools.partial(fence_member, group, event))
        elif isinstance(group, ConsumerGroup) and isinstance(event, Targeted):
            self._contain(event.group_id, functools.partial(group.give, event))

    # ---- failures

    def _contain(self, group_id: str, action: Callable[[], None], *, is_stored: bool = False) -> None:
        """Run an action on one group. An exception ends only this group, until it is read again."""
        try:
            action()
        except MemoryError:
            raise  # it affects the whole process
        except Exception as error:  # noqa: BLE001  # any bug: the other groups go on
            group = self._groups.pop(group_id, None)
            self._failed.add(group_id)
            self._world.intervals.forget(group_id)
            text = self._reproduction(error, group)
            self._scheduler.fail(group_id, f"{error!r:.200}", text, is_stored=is_stored)
            for key in [key for key in self._deletions if key[0] == group_id]:
                self._deletions.pop(key)(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _reproduction(self, error: Exception, group: AnyGroup | None) -> str:
        """Return what is needed to reproduce the error."""
        try:
            if isinstance(group, ClassicGroup):
                state = f"{group.state.value} {group.stored_form(None)!r}"
            else:
                state = "none" if group is None else f"{group.state.value} {group.stored_form()!r}"
        except Exception as unreadable:  # noqa: BLE001  # as above; the first error is the one to report
            state = f"cannot be shown: {unreadable!r}"
        where = "".join(traceback.format_exception(error))
        now_ms = self._scheduler.now_ms
        return f"{where}event at {now_ms} ms: {self._event!r:.{MAX_SHOWN}}\ngroup afterwards: {state:.{MAX_SHOWN}}"

    def _load_again(self, event: GroupLoaded) -> None:
        if event.group_id not in self._failed:
            return
        self._failed.discard(event.group_id)
        content = event.content
        if content is not None:
            self._topics.remember(of_groups([content]))
            self._contain(event.group_id, lambda: self._restore(event.group_id, content), is_stored=True)

    # ---- buckets

    def _load(self, event: BucketLoaded) -> None:
        self._loaded[event.bucket] = True
        self._topics.remember(of_groups(event.groups.values()))
        for group_id, stored in event.groups.items():
            self._contain(group_id, functools.partial(self._restore, group_id, stored), is_stored=True)

    def _restore(self, group_id: str, stored: StoredContent) -> None:
        if isinstance(stored, StoredGroup):
            self._create_classic(group_id).restore(stored)
        else:
            self._create_consumer(group_id).restore(stored)
        self._kept.add(self._groups[group_id])

    def _lose(self, bucket: int) -> None:
        self._loaded.pop(bucket, None)
        self._refused.discard(bucket)
        for group_id in [name for name, group in self._groups.items() if group.bucket == bucket]:
            group = self._groups.pop(group_id)
            self._contain(group_id, functools.partial(group.close, ErrorCode.NOT_COORDINATOR))
        self._failed = {name for name in self._failed if bucket_of(name) != bucket}

    def _forget(self, group: AnyGroup) -> None:
        if self._groups.get(group.group_id) is group:
            del self._groups[group.group_id]

    def _create_classic(self, group_id: str, generation_id: int = 0) -> ClassicGroup:
        group = ClassicGroup(group_id, self._settings, self._scheduler, lambda: self._forget(group))
        group.continue_from(generation_id)
        self._groups[group_id] = group
        return group

    def _create_consumer(self, group_id: str, epoch: int = 0) -> ConsumerGroup:
        group = ConsumerGroup(
            group_id, self._world, lambda: self._forget(group), lambda turn: self._downgrade(group, turn)
        )
        group.group_epoch = group.target_epoch = epoch
        self._groups[group_id] = group
        return group

    def _upgrade(self, classic: ClassicGroup) -> ConsumerGroup:
        """Turn a classic consumer group into a KIP-848 group, because its first KIP-848 client joins.

        Raises:
            RefusedError: it cannot become one.

        """
        stored = migration.upgraded(classic, self._topics, self._settings.consumer_group_max_size)
        self._kept.check_upgrade(classic, stored, self._scheduler.now_ms)
        classic.close(ErrorCode.REBALANCE_IN_PROGRESS)
        group = self._create_consumer(classic.group_id)
        group.restore(stored)
        return group

    def _downgrade(self, group: ConsumerGroup, turn: Turn | None) -> bool:
        """Turn a group that lost its last KIP-848 client into a classic one, with a rebalance; never a central group.

        Return whether it did.
        """
        stored = None if self._settings.assigns_centrally else migration.downgraded(group)
        if stored is None:
            return False

        def when_stored(error: ErrorCode) -> None:
            if turn is not None:
                self._scheduler.reply(turn.ticket, turn.refuse(error) if error else turn.answer(NEW))

        group.close(ErrorCode.REBALANCE_IN_PROGRESS)
        classic = self._create_classic(group.group_id)
        self._scheduler.store(group.group_id, stored, when_stored)
        migration.go_on_as_classic(classic, stored, group)
        self._kept.add(classic)
        return True

    def _serving_error(self, group_id: str) -> ErrorCode:
        is_loaded = self._loaded.get(bucket_of(group_id))
        if is_loaded is None:
            return ErrorCode.NOT_COORDINATOR
        if group_id in self._failed:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE if is_loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    # ---- requests

    def _receive(self, received: Received) -> None:
        request = received.request
        ticket = received.ticket
        match request:
            case DescribeGroupsRequest():
                groups = tuple(self._describe(name, received.api_version) for name in dict.fromkeys(request.groups))
                self._scheduler.reply(ticket, DescribeGroupsAnswer(groups))
            case ConsumerGroupDescribeRequest():
                described = tuple(self._describe_consumer(name) for name in dict.fromkeys(request.group_ids))
                self._scheduler.reply(ticket, ConsumerGroupDescribeAnswer(described))
            case ListGroupsRequest():
                self._scheduler.reply(ticket, self._list(request))
            case DeleteGroupsRequest():
                self._delete(ticket, request.groups_names)
            case _:
                self._scheduler.note_request(ticket, request)
                self._contain(request.group_id, lambda: self._receive_for_one(received, request))

    def _receive_for_one(self, received: Received, request: OneGroup) -> None:
        try:
            self._check(received, request)
            if isinstance(request, ConsumerGroupHeartbeatRequest):
                found = self._groups.get(request.group_id)
                joined = found if isinstance(found, ConsumerGroup) else None
                check_ids(request, joined, self._topics)
                if self._settings.assigns_centrally:
                    central.check_heartbeat(request, joined)
            group = self._group_for(request)
            if group is None:
                self._scheduler.reply(received.ticket, for_unknown_group(request, received.api_version))
            elif isinstance(group, ClassicGroup):
                classic_requests.handle(group, received, request)
            else:
                consumer_requests.handle(group, received, request)
        except RefusedError as refusal:
            if refusal.report is not None:
                self._scheduler.report(request.group_id, refusal.report, received.client_host)
            self._scheduler.reply(received.ticket, refused(request, refusal.code, refusal.text))
        present = self._groups.get(request.group_id)
        if present is not None and present.is_forgettable():
            self._forget(present)

    def _check(self, received: Received, request: OneGroup) -> None:
        """Check everything that does not depend on the group.

        Raises:
            RefusedError: the request is invalid, or cannot be answered here or now.

        """
        settings, is_known = self._settings, self._topics.is_known
        if isinstance(request, ConsumerGroupHeartbeatRequest):
            validate(request, received.api_version, self._world.assignors)
        elif not request.group_id and not isinstance(request, MAY_BE_UNNAMED):
            raise RefusedError(ErrorCode.INVALID_GROUP_ID)
        if error := self._serving_error(request.group_id):
            raise RefusedError(error)
        if isinstance(request, ConsumerGroupHeartbeatRequest) and not is_known:
            raise RefusedError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        if isinstance(request, JoinGroupRequest):
            shortest, longest = settings.group_min_session_timeout_ms, settings.group_max_session_timeout_ms
            if not shortest <= request.session_timeout_ms <= longest:
                raise RefusedError(ErrorCode.INVALID_SESSION_TIMEOUT)
            self._check_metadata(request)
        if settings.assigns_centrally and (error := central.join_error(request, is_ready=is_known)):
            raise RefusedError(error)
        self._kept.check(request, received.client_id, self._groups.get(request.group_id), self._scheduler.now_ms)

    def _check_metadata(self, request: JoinGroupRequest) -> None:
        size = sum(len(protocol.metadata) for protocol in request.protocols)
        if size > MAX_METADATA_BYTES:
            text = f"a join is refused: its metadata have {size} bytes, more than {MAX_METADATA_BYTES}"
            raise RefusedError(ErrorCode.GROUP_MAX_SIZE_REACHED, report=text)

    def _group_for(self, request: OneGroup) -> AnyGroup | None:
        """Return the group of a request; a group without members adopts the protocol of the first client to join."""
        is_central = self._settings.assigns_centrally and central.is_consumers_join(request)
        if is_central or (isinstance(request, ConsumerGroupHeartbeatRequest) and request.member_epoch == JOIN_EPOCH):
            return self._consumer_group_for(request.group_id)
        if isinstance(request, JoinGroupRequest) and request.member_id == UNKNOWN_MEMBER_ID:
            return self._classic_group_for(request.group_id)
        return self._groups.get(request.group_id)

    def _consumer_group_for(self, group_id: str) -> AnyGroup:
        """Return the group that a KIP-848 client, or a client of a central group, joins."""
        group = self._groups.get(group_id)
        if group is None:
            return self._create_consumer(group_id)
        if isinstance(group, ConsumerGroup) or group.state is ClassicState.DEAD:
            return group
        if group.state is ClassicState.EMPTY:
            group.close(ErrorCode.REBALANCE_IN_PROGRESS)
            return self._create_consumer(group_id, group.generation_id)
        return self._upgrade(group)

    def _classic_group_for(self, group_id: str) -> AnyGroup:
        """Return the group that a new classic client joins."""
        group = self._groups.get(group_id)
        if group is None:
            return self._create_classic(group_id)
        if isinstance(group, ConsumerGroup) and not group.roster.members and not group.is_dead:
            group.close(ErrorCode.REBALANCE_IN_PROGRESS)
            return self._create_classic(group_id, group.group_epoch)
        return group

    # ---- requests for several groups

    def _shown(self, group_id: str, show: Callable[[], T], otherwise: T) -> T:
        """Return what `show` returns, or `otherwise` if it fails."""
        shown: list[T] = []
        self._contain(group_id, lambda: shown.append(show()))
        return shown[0] if shown else otherwise

    def _describe(self, group_id: str, api_version: int) -> DescribedGroup:
        if error := self._serving_error(group_id):
            return DescribedGroup(error, group_id)
        group = self._groups.get(group_id)
        if isinstance(group, ClassicGroup):
            found = DescribedGroup(ErrorCode.COORDINATOR_NOT_AVAILABLE, group_id)
            return self._shown(group_id, lambda: classic_requests.describe(group), found)
        is_told, is_used = api_version >= DESCRIBE_NOT_FOUND_FROM, bool(group and group.roster.members)
        error = ErrorCode.GROUP_ID_NOT_FOUND if is_told else ErrorCode.NONE
        text = f"Group {group_id} not found." if is_told else None
        return DescribedGroup(error, group_id, ClassicState.DEAD.value, error_message=text, is_used=is_used)

    def _describe_consumer(self, group_id: str) -> DescribedConsumerGroup:
        if error := self._serving_error(group_id) if group_id else ErrorCode.INVALID_GROUP_ID:
            return DescribedConsumerGroup(error, group_id, error.name)
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            found = DescribedConsumerGroup(ErrorCode.COORDINATOR_NOT_AVAILABLE, group_id)
            return self._shown(group_id, lambda: consumer_requests.describe(group), found)
        return DescribedConsumerGroup(ErrorCode.GROUP_ID_NOT_FOUND, group_id, f"Group {group_id} not found.")

    def _list(self, request: ListGroupsRequest) -> ListGroupsAnswer:
        if any(not is_loaded and bucket not in self._refused for bucket, is_loaded in self._loaded.items()):
            return ListGroupsAnswer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        groups = (one for one in self._of_each(listed) if request.selects(one.group_state, one.group_type))
        return ListGroupsAnswer(ErrorCode.NONE, tuple(groups))

    def figures(self) -> list[GroupFigures]:
        """Return what metrics show of every group."""
        return self._of_each(GroupFigures.of)

    def _of_each(self, show: Callable[[AnyGroup], T]) -> list[T]:
        """Return what every group shows, without groups that fail at it."""
        shown = [self._shown(name, functools.partial(show, one), None) for name, one in list(self._groups.items())]
        return [one for one in shown if one is not None]

    def _delete(self, ticket: int, names: tuple[str, ...]) -> None:
        """Delete the groups that can be deleted, and answer when all deletions have ended."""
        results = {name: self._delete_error(name) for name in names}
        going = [name for name, error in results.items() if not error]
        waiting = set(going)

        def answer_if_done() -> None:
            if not waiting:
                deleted = tuple(DeletedGroup(name, results[name]) for name in names)
                self._scheduler.reply(ticket, DeleteGroupsAnswer(deleted))

        def deleted(name: str, error: ErrorCode) -> None:
            self._deletions.pop((name, ticket), None)
            results[name] = error
            waiting.discard(name)
            answer_if_done()

        for name in going:
            when_deleted = self._deletions[name, ticket] = functools.partial(deleted, name)
            self._contain(name, functools.partial(self._groups[name].delete, when_deleted))
        if not going:
            answer_if_done()

    def _delete_error(self, name: str) -> ErrorCode:
        if error := self._serving_error(name):
            return error
        if isinstance(group := self._groups.get(name), ClassicGroup):
            return classic_requests.delete_error(group)
        return ErrorCode.GROUP_ID_NOT_FOUND if group is None else consumer_requests.delete_error(group)
