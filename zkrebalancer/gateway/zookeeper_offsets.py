"""Offsets of groups in ZooKeeper, in the nodes that agents with `offsets_storage=zookeeper` use.

The machine has already checked the member. Each transaction also checks the epoch of the group's bucket, so that a
gateway that no longer serves the group writes nothing.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TypeVar

from gevent.lock import Semaphore

from consumer_agent.membership.offset_books import MAX_OPERATIONS, OffsetBook
from zkrebalancer.gateway.group_requests import LONGEST_HOLD_S
from zkrebalancer.gateway.lanes import LONGEST_WAIT_S, Lanes, Outcome, WhenAnswered
from zkrebalancer.gateway.metrics import Metrics
from zkrebalancer.gateway.offset_answers import answered_topics, fetched_topics
from zkrebalancer.gateway.offset_nodes import OffsetNodes
from zkrebalancer.gateway.registered import MemberRegisteredError, Registered, read_registered
from zkrebalancer.gateway.session import Session
from zkrebalancer.gateway.turns import Places, in_turns, let_others_run
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.refusals import RefusedError
from zkrebalancer.kafka_protocol.codec import Fields
from zkrebalancer.protocol import cluster_nodes, paths
from zkrebalancer.protocol.calls import (
    CHANGED,
    Check,
    Children,
    Content,
    Create,
    Delete,
    Get,
    ListChildren,
    Multi,
    Operation,
    ReadEach,
    Refusal,
    Refused,
    Reply,
)
from zkrebalancer.protocol.complaints import Complaints
from zkrebalancer.protocol.errors import InvalidNameError, NodeContentError, ZooKeeperUnavailableError
from zkrebalancer.protocol.fields import MAX_PARTITION, TopicPartition
from zkrebalancer.protocol.numbers import decimal
from zkrebalancer.runtime import clock

MAX_TRIES = 20  # each failed try means that somebody created or deleted a node in between
# For all groups together: renewals of the lease and writes wait behind them.
READ_AT_ONCE = 200  # nodes; of one request to the gateway, by one to ZooKeeper
ASK_AT_ONCE = 100  # single nodes that requests look at
_CROWDED = "very many are asked for at once"
_Key = TypeVar("_Key")
_log = logging.getLogger(__name__)


class CrowdedError(ZooKeeperUnavailableError):
    """So many offsets are asked for that an answer would come too late: who asked for it would have asked again."""


class ZooKeeperOffsets:
    """Commits, fetches and deletes offsets; requests of one group are handled one after the other."""

    def __init__(
        self,
        session: Session,
        metrics: Metrics,
        fence: Callable[[str], Check | None],
        partition_counts: Callable[[Iterable[str]], Mapping[str, int | None]],
    ) -> None:
        """Use this session.

        `fence(group)` fails in a transaction once another gateway serves the group; None: it is not served here.
        `partition_counts(topics)` asks the brokers for the numbers of partitions of the topics that exist; None: they
        do not say. Raises LinkError, an OSError.
        """
        self._session = session
        self._metrics = metrics
        self._fence = fence
        self._partition_counts = partition_counts
        self._complaints = Complaints()
        self._nodes = OffsetNodes()
        self._lanes = Lanes()
        self._places = Places(READ_AT_ONCE)
        self._asking = Semaphore(ASK_AT_ONCE)
        self._allowed: dict[str, Check | None] = {}  # group -> its fence when the present request was allowed
        self._registered: dict[str, Registered] = {}  # group -> its consumers, if the present request counts on them
        self._handlers: Mapping[str, Callable[[str, Fields], Outcome]] = {
            "OffsetCommit": self._commit,
            "OffsetFetch": self._fetch,
            "OffsetDelete": self._delete,
            "DeleteGroups": self._delete_group,
            "TxnOffsetCommit": _no_transactions,
        }

    def send(self, group: str, name: str, fields: Fields, when_answered: WhenAnswered) -> None:
        """Handle a request; see `OffsetStore`."""
        self._lanes.send(group, partial(self._handle, group, name, fields, self._fence(group)), when_answered)

    def coordinator_error(self, group: str) -> ErrorCode:
        """Refuse groups whose name cannot be the name of a node."""
        try:
            paths.validate_name("group", group)
        except InvalidNameError:
            return ErrorCode.INVALID_GROUP_ID
        return ErrorCode.NONE

    def may_be_elsewhere(self, _group: str) -> bool:
        """Say no: a group at the brokers has other offsets, so it is another group."""
        return False

    def was_elsewhere(self, _group: str) -> bool:
        """Say no, as above."""
        return False

    def without_members(self, is_served: Callable[[str], bool]) -> list[str]:
        """See `OffsetStore`. Agents' groups count, too: their offsets are in the same nodes."""
        groups = [group for group in in_turns(self._children(paths.GROUPS)) if is_served(group)]
        found: list[str] = []
        for group, reply in self._read_each(groups, paths.offsets, ListChildren):
            if isinstance(reply, Children) and reply.names:
                found.append(group)
        return found

    def watch(self) -> None:
        """Do nothing: there is nothing to keep up to date."""

    def _handle(self, group: str, name: str, fields: Fields, allowed: Check | None) -> Outcome:
        if illegal := self.coordinator_error(group):
            return illegal
        self._allowed[group] = allowed
        try:
            return self._look_and_write(group, self._handlers[name], fields)
        except RefusedError as refused:
            return refused.code
        except (ZooKeeperUnavailableError, OSError) as error:
            self._metrics.errors["zookeeper" if isinstance(error, ZooKeeperUnavailableError) else "upstream"] += 1
            self._complain(group, str(error))
            is_crowded = isinstance(error, CrowdedError)
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_crowded else ErrorCode.COORDINATOR_NOT_AVAILABLE
        finally:
            del self._allowed[group]
            self._registered.pop(group, None)
            self._nodes.keep_within_limits(group)

    def _look_and_write(self, group: str, handler: Callable[[str, Fields], Outcome], fields: Fields) -> Outcome:
        """Begin again if a consumer registers in between: what was looked up may not hold any more."""
        for _ in range(MAX_TRIES):
            try:
                return handler(group, fields)
            except MemberRegisteredError:
                self._nodes.forget(group)  # the agent may have created and deleted some
        raise ZooKeeperUnavailableError(f"consumers of group {group} registered at each try")

    def _complain(self, group: str, reason: str) -> None:
        text = self._complaints.text(group, reason, clock.steady_us() / 1e6)  # clients ask again and again
        if text is not None:
            _log.warning("group %s: offsets are not available: %s", group, text)

    # ---- writes

    def _beside(self, group: str) -> list[Operation]:
        """Return what `_perform` adds to a transaction."""
        fence, registered = self._allowed[group], self._registered.get(group)
        return [*([] if fence is None else [fence]), *(registered.guard() if registered else [])]

    def _perform(self, group: str, operations: list[Operation]) -> Refused | None:
        """Perform a transaction while the group is served here; return the first operation's refusal, if any.

        Raises MemberRegisteredError if the request counts on the consumers that it has read, and another one registers.
        """
        fence, registered = self._allowed[group], self._registered.get(group)
        if fence is None or self._fence(group) != fence:
            raise RefusedError(ErrorCode.NOT_COORDINATOR)
        guard = registered.guard() if registered else []
        reply = self._session.perform(Multi((fence, *operations, *guard)))
        if not isinstance(reply, Refused):
            if registered:
                registered.note_written()
            return None
        if reply.outcome_unknown:
            raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if reply.index == 0:
            raise RefusedError(ErrorCode.NOT_COORDINATOR)
        if reply.index is None:
            raise ZooKeeperUnavailableError(f"ZooKeeper refuses to write: {reply.refusal.value}")
        if reply.index > len(operations):
            if reply.refusal in CHANGED:
                raise MemberRegisteredError
            raise ZooKeeperUnavailableError(f"ZooKeeper refuses {paths.channel(group)}: {reply.refusal.value}")
        return Refused(reply.refusal, reply.index - 1)

    def _commit(self, group: str, fields: Fields) -> Outcome:
        """Store offsets; those of no member only if no agent is registered: its next commit would replace them."""
        if fields["generation_id_or_member_epoch"] < 0 and self._look_who_is_registered(group).consumers:
            return ErrorCode.UNKNOWN_MEMBER_ID
        wanted: dict[TopicPartition, int] = {
            (topic["name"], one["partition_index"]): one["committed_offset"]
            for topic in in_turns(fields["topics"])
            for one in in_turns(topic["partitions"])
        }
        errors: dict[TopicPartition, ErrorCode] = {}
        for partition, offset in in_turns(wanted.items()):
            if not paths.is_legal_topic(partition[0]):
                errors[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif not 0 <= offset <= cluster_nodes.MAX_COUNTER:
                errors[partition] = ErrorCode.INVALID_REQUEST
        book = self._nodes.of(group)
        self._look_for_nodes(group, book, [one for one in wanted if one not in errors and one not in book.nodes])
        new = [one for one in wanted if one not in errors and one not in book.nodes]
        errors |= self._unknown(group, new)
        self._look_for_topics(group, book, {one[0] for one in new if one not in errors})
        left = deque(sorted(partition for partition in wanted if partition not in errors))
        while left:
            some = {partition: wanted[partition] for partition in islice(left, MAX_OPERATIONS)}
            beside = [*self._beside(group), *(Create(path) for path in _nodes_above(group))]
            chunk = book.first_chunk(some, self._session.request_limit, beside)
            self._write(group, book, chunk)
            for _written in chunk:
                left.popleft()
        return {"topics": _answered(fields, errors)}

    def _unknown(self, group: str, new: list[TopicPartition]) -> dict[TopicPartition, ErrorCode]:
        """Return the errors of those partitions that the brokers do not know."""
        counts = self._partition_counts({topic for topic, _number in new}) if new else {}
        hidden = {topic for topic, count in counts.items() if count is None}
        if hidden:  # clients try again
            self._complain(group, f"brokers do not describe {min(hidden)}: the right to DESCRIBE it may be missing")
        errors = {one: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS for one in new if one[0] in hidden}
        beyond = (one for one in new if one not in errors and not 0 <= one[1] < (counts.get(one[0]) or 0))
        return errors | dict.fromkeys(beyond, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _look_for_nodes(self, group: str, book: OffsetBook, partitions: list[TopicPartition]) -> None:
        """Find out which of these have a node, so that the first transaction can succeed."""
        for partition, reply in self._get_offsets(group, partitions):
            if isinstance(reply, Content):
                book.nodes.add(partition)

    def _look_for_topics(self, group: str, book: OffsetBook, topics: Iterable[str]) -> None:
        """Find out which of these have no node; the brokers know them all, so that made-up ones are not remembered."""
        for topic, reply in self._read_each(sorted(topics), partial(paths.offsets, group)):
            if isinstance(reply, Refused):
                book.missing_topics.add(topic)  # if it exists, the first transaction finds out

    def _write(self, group: str, book: OffsetBook, chunk: Mapping[TopicPartition, int]) -> None:
        topics = {paths.offsets(group, topic) for topic, _number in chunk}
        above: list[Operation] = []
        for _ in range(MAX_TRIES + len(chunk)):
            operations = above + book.operations(chunk)
            refused = self._perform(group, operations)
            if refused is None:
                book.note_nodes(chunk)
                return
            operation = operations[refused.index or 0]
            if operation in above or (operation.path in topics and refused.refusal is Refusal.NO_NODE):
                above = self._missing_nodes(group)
            elif not book.learn(operation, refused.refusal):
                raise ZooKeeperUnavailableError(f"ZooKeeper refuses {operation.path}: {refused.refusal.value}")
        raise ZooKeeperUnavailableError(f"nodes of group {group} were changed by others at each try")

    def _missing_nodes(self, group: str) -> list[Operation]:
        """Return operations that create the group, as a registering consumer does."""
        beside = self._beside(group)
        wanted = [path for path in _nodes_above(group) if Create(path) not in beside]
        replies = self._session.perform_all([Get(path) for path in wanted])
        return [Create(path) for path, reply in zip(wanted, replies, strict=True) if _is_missing(reply)]

    # ---- reads

    def _read_each(
        self, keys: Sequence[_Key], path_of: Callable[[_Key], str], kind: type[Get | ListChildren] = Get
    ) -> Iterator[tuple[_Key, Reply]]:
        """Read a node below GROUPS for each of these keys, however many; other groups have their turns in between.

        Raises:
            CrowdedError: there were no places for LONGEST_WAIT_S.

        """
        for at in range(0, len(keys), READ_AT_ONCE):
            some = keys[at : at + READ_AT_ONCE]
            names = [path_of(key).removeprefix(f"{paths.GROUPS}/") for key in some]
            since_us = clock.steady_us()
            with self._places.take(len(names)):
                if clock.steady_us() - since_us > LONGEST_WAIT_S * 1e6:
                    raise CrowdedError(_CROWDED)
                replies = self._session.read_each(ReadEach(kind, paths.GROUPS, names))
            let_others_run()  # a place goes to the next one that waits only when this greenlet pauses
            yield from zip(some, replies, strict=True)

    def _get_offsets(self, group: str, partitions: Sequence[TopicPartition]) -> Iterator[tuple[TopicPartition, Reply]]:
        return self._read_each(partitions, lambda partition: paths.offsets(group, *partition))

    def _ask(self, call: Get | ListChildren) -> Reply:
        """Read one node, which may be missing, however many groups do so now."""
        with self._asking:
            reply = self._session.require(call, Refusal.NO_NODE)
        let_others_run()  # as above
        return reply

    def _children(self, path: str) -> tuple[str, ...]:
        reply = self._ask(ListChildren(path))
        return reply.names if isinstance(reply, Children) else ()

    def _look_who_is_registered(self, group: str) -> Registered:
        """Read the group's consumers, which the request counts on from now on: see `_perform`."""
        found = self._registered[group] = read_registered(group, self._ask, self._session.request_limit)
        return found

    def _read_existing(
        self,
        keys: Sequence[_Key],
        path_of: Callable[[_Key], str],
        kind: type[Get | ListChildren] = Get,
        until_us: int | None = None,
    ) -> Iterator[tuple[_Key, Reply]]:
        """Read nodes as `_read_each` does; leave out those that do not exist.

        Raises:
            CrowdedError: also if it takes until `until_us`: who asked has given up.
            ZooKeeperUnavailableError: also if ZooKeeper refuses to show one.

        """
        for key, reply in self._read_each(keys, path_of, kind):
            if until_us is not None and clock.steady_us() > until_us:
                raise CrowdedError(_CROWDED)
            if not isinstance(reply, Refused):
                yield key, reply
            elif not _is_missing(reply):
                raise ZooKeeperUnavailableError(f"ZooKeeper does not show a node: {reply.refusal.value}")

    def _all_partitions(self, group: str, until_us: int | None = None) -> list[TopicPartition]:
        """Return the partitions that have a node; see `_read_existing`."""
        found: list[TopicPartition] = []
        topics = sorted(self._children(paths.offsets(group)))
        for topic, reply in self._read_existing(topics, partial(paths.offsets, group), ListChildren, until_us):
            names = reply.names if isinstance(reply, Children) else ()
            numbers = ((name, decimal(name, MAX_PARTITION)) for name in in_turns(names))
            found += [(topic, number) for name, number in numbers if number is not None and str(number) == name]
        return found

    def _read(
        self, group: str, partitions: list[TopicPartition], until_us: int
    ) -> dict[TopicPartition, int | ErrorCode]:
        """Return partition -> its offset, or why it cannot be read; without those that have none. See above."""
        found: dict[TopicPartition, int | ErrorCode] = {}
        book = self._nodes.of(group)
        legal = [one for one in in_turns(partitions) if paths.is_legal_topic(one[0]) and one[1] >= 0]
        for partition, reply in self._read_existing(legal, lambda one: paths.offsets(group, *one), Get, until_us):
            if isinstance(reply, Content):
                book.nodes.add(partition)
                try:
                    found[partition] = cluster_nodes.decode_counter("offset", reply.content)
                except NodeContentError as error:  # not "none": the client would begin anew
                    _log.error("%s: %s", paths.offsets(group, *partition), error)
                    found[partition] = ErrorCode.UNKNOWN_SERVER_ERROR
        return found

    def _fetch(self, group: str, fields: Fields) -> Outcome:
        until_us = clock.steady_us() + int(LONGEST_HOLD_S * 1e6)
        if fields["topics"] is None:  # all topics
            partitions = self._all_partitions(group, until_us)
            found = self._read(group, partitions, until_us)
            partitions = [one for one in partitions if one in found]
        else:
            asked = ((topic["name"], number) for topic in fields["topics"] for number in topic["partition_indexes"])
            partitions = list(dict.fromkeys(in_turns(asked)))
            found = self._read(group, partitions, until_us)
        answer = {"topics": fetched_topics(in_turns(partitions), found), "error_code": ErrorCode.NONE}
        return {**answer, "groups": [{"group_id": group, **answer}]}

    # ---- deletions

    def _delete(self, group: str, fields: Fields) -> Outcome:
        """Delete offsets of topics to which no registered consumer of the group is subscribed."""
        if isinstance(self._ask(Get(paths.group(group))), Refused):
            return ErrorCode.GROUP_ID_NOT_FOUND
        registered = self._look_who_is_registered(group)
        subscribed = registered.topics(self._read_existing(registered.consumers, partial(paths.ids, group)))
        errors: dict[TopicPartition, ErrorCode] = {}
        going: list[TopicPartition] = []
        for topic in in_turns(fields["topics"]):
            for one in in_turns(topic["partitions"]):
                partition = topic["name"], one["partition_index"]
                if subscribed is None or topic["name"] in subscribed:
                    errors[partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                elif paths.is_legal_topic(topic["name"]) and one["partition_index"] >= 0:
                    going.append(partition)
        self._remove(group, self._existing(group, going))
        self._nodes.of(group).nodes.difference_update(going)
        return {"error_code": ErrorCode.NONE, "topics": _answered(fields, errors)}

    def _existing(self, group: str, partitions: Iterable[TopicPartition]) -> list[str]:
        """Return the nodes of those partitions that have one: each other one would fail a transaction."""
        replies = self._get_offsets(group, list(dict.fromkeys(partitions)))
        return [paths.offsets(group, *one) for one, reply in replies if not _is_missing(reply)]

    def _delete_group(self, group: str, _fields: Fields) -> Outcome:
        """Delete all offsets of a group without consumers; its settings stay."""
        error = ErrorCode.NONE
        if self._look_who_is_registered(group).consumers:
            error = ErrorCode.NON_EMPTY_GROUP
        else:
            partitions = self._all_partitions(group)
            topics = dict.fromkeys(topic for topic, _number in partitions)
            self._remove(group, [paths.offsets(group, *one) for one in partitions])
            del self._registered[group]  # a topic without an offset can go, whoever has registered
            self._remove(group, [paths.offsets(group, topic) for topic in topics])
            self._nodes.forget(group)
            if not partitions:
                error = ErrorCode.GROUP_ID_NOT_FOUND
        return {"results": [{"group_id": group, "error_code": error}]}

    def _remove(self, group: str, nodes: list[str]) -> None:
        """Delete nodes, except those that are gone or no longer empty."""
        while nodes:
            deletions = [Delete(path) for path in nodes[:MAX_OPERATIONS]]
            some = nodes[: self._session.request_limit.fitting(deletions, self._beside(group))]
            refused = self._perform(group, list(deletions[: len(some)]))
            if refused is None:
                nodes = nodes[len(some) :]
            elif refused.refusal in {Refusal.NO_NODE, Refusal.NOT_EMPTY}:
                nodes = [path for path in nodes if path != some[refused.index or 0]]
            else:
                raise ZooKeeperUnavailableError(f"ZooKeeper refuses to delete: {refused.refusal.value}")


def _is_missing(reply: Reply) -> bool:
    return isinstance(reply, Refused) and reply.refusal is Refusal.NO_NODE


def _nodes_above(group: str) -> list[str]:
    children = [f"{paths.group(group)}/{name}" for name in paths.GROUP_CHILDREN]
    return [paths.CONSUMERS, paths.GROUPS, paths.group(group), *children]


def _no_transactions(_group: str, _fields: Fields) -> Outcome:
    """Refuse what only Kafka's own store can do: make offsets valid together with records.

    With this error, producers end the transaction and name the reason instead of retrying.
    """
    return ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


def _answered(fields: Fields, errors: Mapping[TopicPartition, ErrorCode]) -> list[Fields]:
    return answered_topics(fields["topics"], lambda *partition: errors.get(partition, ErrorCode.NONE))
