"""Offsets of groups in Kafka's own store: requests about them go to Kafka's coordinator of the group.

The gateway has already checked the member, so they name no member. The requests of one group are sent one after the
other, each after the answer to the one before, and are thus handled in the order in which they were allowed. Groups
that Kafka stores in different partitions have different connections: a commit that waits for replicas delays none of
another one.
"""

from __future__ import annotations

import logging
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

import gevent
from gevent.event import AsyncResult
from gevent.pool import Group, Pool

from zkrebalancer.gateway.dialing import Address, LinkError
from zkrebalancer.gateway.lanes import Lanes, Outcome, WhenAnswered
from zkrebalancer.gateway.links import Links
from zkrebalancer.gateway.metrics import Metrics
from zkrebalancer.gateway.turns import in_turns
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.figures import GroupFigures
from zkrebalancer.group_protocol.placement import bucket_of
from zkrebalancer.kafka_protocol.codec import Fields
from zkrebalancer.kafka_protocol.errors import FrameError
from zkrebalancer.protocol.calls import Check
from zkrebalancer.protocol.complaints import Complaints, LineRate
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime import clock

MAX_KNOWN_COORDINATORS = 100_000
MAX_KNOWN_NAMES = 16 << 20  # characters of the groups that have these
MAX_LINE = 1_000  # characters of a line of the log, and of what is remembered of it
MOVING = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
)
PATIENCE_S = 3.0  # less than the shortest session, because a client may send no heartbeat before its answer
ANSWER_TIMEOUT_S = 5.0  # little more than that, because a broker may collect garbage for some seconds
PAUSE_S = 0.1
NO_GROUPS: frozenset[str] = frozenset()
WATCH_S = 3.0  # if members join at the brokers while a group has members here, both may read for this long
FRESH_US = 1_000_000  # how long a join relies on the group's coordinator, and on its list of groups with members
SHOWN_EVERY_US = 60_000_000  # per group
WITH_MEMBERS = ["PreparingRebalance", "CompletingRebalance", "Stable", "Assigning", "Reconciling"]
EMPTY = ["Empty"]
OF_CONSUMERS = ["classic", "consumer"]  # types of groups; the empty ones of others are nobody's here
MAX_ASKED = 20  # brokers, at a time, when groups are listed
REWRITE_S = 3_600.0  # how often offsets are written again: Kafka deletes what was not written for days
FIRST_REWRITE_S = 600.0  # after the start, and if brokers do not answer
MAX_FAILED = 3  # groups in a row without an answer: then the others wait for a while
MAX_REWRITTEN = 500  # partitions at once; the group's other requests wait meanwhile
KNOWN_ERRORS = frozenset(error.value for error in ErrorCode)
GROUP = 0
NO_MEMBER = {"generation_id": -1, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
COMMITS = frozenset({"OffsetCommit", "TxnOffsetCommit"})
# Later versions name topics by id, or belong to a transaction version that producers behind the gateway do not use.
HIGHEST = {"OffsetCommit": 9, "OffsetFetch": 9, "TxnOffsetCommit": 4}
_log = logging.getLogger(__name__)
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class _Listed:
    """A broker's groups that have members; it may have more, unless the list `is_complete`."""

    asked_us: int
    groups: frozenset[str]
    is_complete: bool


class UpstreamOffsets:
    """Sends requests about offsets to the brokers."""

    def __init__(
        self,
        links: Links,
        metrics: Metrics,
        fence: Callable[[str], Check | None],
        figures: Callable[[], Iterable[GroupFigures]] = lambda: (),
        is_read: Callable[[str, str, int], bool] = lambda _group, _topic, _number: True,
    ) -> None:
        """Use these links; see `Groups.fence`, `figures` and `is_read`."""
        self._links = links
        self._fence = fence
        self._figures = figures
        self._is_read = is_read
        self._metrics = metrics
        self._coordinators: dict[str, Address] = {}
        self._known_names = 0  # characters of these groups' names, at most
        self._has_coordinators = False
        self._looked_up_us: dict[str, int] = {}  # group -> when its coordinator was asked for
        self._looking_up: dict[str, AsyncResult[ErrorCode]] = {}
        self._with_members: dict[Address, _Listed] = {}  # what each broker has said last
        self._listing: dict[Address, AsyncResult[_Listed]] = {}
        self._shown_us: dict[str, int] = {}  # line of the log -> when it was written
        self._lines = LineRate()  # a client may join any number of groups while brokers do not answer
        self._complaints = Complaints()
        self._lanes = Lanes()

    def send(self, group: str, name: str, fields: Fields, when_answered: WhenAnswered) -> None:
        """Send a request for a group; `when_answered` gets the answer's fields, or the error for the client."""
        give_up_us = clock.steady_us() + int(PATIENCE_S * 1e6)
        sent = fields | NO_MEMBER if name in COMMITS else fields
        ask = partial(self._ask_patiently, group, name, sent, self._fence(group), give_up_us)
        self._lanes.send(group, ask, when_answered)

    def coordinator_error(self, group: str) -> ErrorCode:
        """Return NONE once the brokers have coordinators: in a fresh cluster, they first create the offsets topic.

        From then on it is NONE even while brokers are away, because members have to find the gateway for heartbeats.
        """
        if self._has_coordinators:
            return ErrorCode.NONE
        try:
            return self._find(group)
        except LinkError as error:
            self._failed(group, error)
            return ErrorCode.COORDINATOR_NOT_AVAILABLE

    def may_be_elsewhere(self, group: str) -> bool:
        """Whether the group has members at the brokers, or they do not say that it has none.

        If it had some here as well, both would read all partitions. The group's coordinator may have moved, so brokers
        are asked for it, but at most once a second for each group.
        """
        try:
            listed = None if self._find(group, FRESH_US) else self._listed(self._coordinators.get(group))
        except LinkError as error:
            _log.debug("group %s: %s", group, error)
            listed = None
        if self.was_elsewhere(group):
            self._show(f"group {group} has members at the brokers: no client can join it here until they have left")
            return True
        if listed is None or not listed.is_complete:
            self._metrics.errors["upstream"] += 1
            self._show(f"group {group} may have members at the brokers: no client can join it here until they answer")
            return True
        return False

    def was_elsewhere(self, group: str) -> bool:
        """Whether the group had members at a broker when it was last asked; asks nobody."""
        return any(group in listed.groups for listed in self._with_members.values())

    def without_members(self, is_served: Callable[[str], bool]) -> set[str]:
        """See `OffsetStore`. A broker that does not answer is left out, unless all are; its groups move to others."""
        brokers = list(set(self._links.brokers.values()))
        answers = Pool(MAX_ASKED).map(self._ask_for_empty, brokers) if brokers else []
        known = [groups for groups in answers if groups is not None]
        if brokers and not known:
            raise LinkError("no broker says which groups have offsets")
        return {group for groups in known for group in in_turns(groups) if is_served(group)}

    def _ask_for_empty(self, broker: Address) -> frozenset[str] | None:
        try:
            groups, is_complete = self._ask_for_states(broker, EMPTY, OF_CONSUMERS)
        except (LinkError, FrameError) as error:
            self._show(f"groups that have only offsets are not listed: {error}")
            return None
        return groups if is_complete else None

    def _ask_for_states(
        self, broker: Address, states: list[str], types: Iterable[str] = ()
    ) -> tuple[frozenset[str], bool]:
        """Return a broker's groups in these states, and whether that is all; raises LinkError, FrameError.

        `types`: only groups of these, if the broker tells them apart; by default, of all.

        A coordinator that loads its groups knows only some.
        """
        wanted = {"states_filter": states, "types_filter": [*types]}
        answer = self._links.to(broker).ask("ListGroups", wanted, None, ANSWER_TIMEOUT_S).fields()
        return frozenset(one["group_id"] for one in answer["groups"]), not answer["error_code"]

    def watch(self) -> None:
        """Ask all brokers again and again which groups have members there, for ever; a greenlet of its own.

        No broker waits for another one, which may hang. Another greenlet keeps the offsets.
        """
        asking = Group()
        asking.spawn(self._keep_offsets)
        try:
            while True:
                brokers = set(self._links.brokers.values())
                for gone in self._with_members.keys() - brokers:
                    del self._with_members[gone]
                for broker in brokers - self._listing.keys():
                    asking.spawn(self._list_groups, broker)
                gevent.sleep(WATCH_S)
        finally:
            asking.kill()

    # ---- offsets stay

    def _keep_offsets(self) -> None:
        """Write the offsets of partitions that members read again and again, for ever.

        At the brokers a group has no members, so Kafka deletes an offset that was not written for
        `offsets.retention.minutes`. Some clients commit only what is new: of a quiet partition, nothing.
        """
        last, pause_s = "", FIRST_REWRITE_S
        while True:
            gevent.sleep(pause_s)
            groups = sorted(one.group for one in self._figures() if one.members)
            begin, failed = bisect(groups, last), 0
            for last in (*groups[begin:], *groups[:begin]):  # a group that fails each time keeps no other one waiting
                failed = 0 if self._keep_offsets_of(last) else failed + 1
                if failed == MAX_FAILED:
                    break
            pause_s = FIRST_REWRITE_S if failed == MAX_FAILED else REWRITE_S

    def _keep_offsets_of(self, group: str) -> bool:
        """Return whether the brokers have answered. A bug is logged, and keeps no other group waiting either."""
        try:
            return self.rewrite(group) is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        except Exception:  # noqa: BLE001  # as it says
            self._metrics.errors["group"] += 1
            _log.exception("offsets of group %.300s are not written again", group)
            return True

    def rewrite(self, group: str) -> Outcome | None:
        """Write a group's offsets again, as they are, and return the last answer; may wait. What fails is for later."""
        asked = {"group_id": group, "topics": None}
        found: AsyncResult[Outcome] = AsyncResult()
        self.send(group, "OffsetFetch", {**asked, "groups": [asked], "require_stable": False}, found.set)
        outcome = found.get()
        partitions = [(topic, one["partition_index"]) for topic, one in self._read_here(group, outcome)]
        for at in range(0, len(partitions), MAX_REWRITTEN):
            some = partitions[at : at + MAX_REWRITTEN]
            written: AsyncResult[Outcome] = AsyncResult()
            self._lanes.send(group, partial(self._rewrite_some, group, some, self._fence(group)), written.set)
            outcome = written.get()
        return outcome

    def _read_here(self, group: str, found: Outcome | None) -> Iterator[tuple[str, Fields]]:
        """Yield topic and partition of an OffsetFetch's answer, of those that have an offset and are read here."""
        if isinstance(found, dict):
            for topic in (found["groups"][0] if found["groups"] else found)["topics"]:
                name = topic["name"]
                for one in in_turns(topic["partitions"]):
                    has_offset = not one["error_code"] and one["committed_offset"] >= 0
                    if has_offset and self._is_read(group, name, one["partition_index"]):
                        yield name, one

    def _rewrite_some(self, group: str, partitions: Iterable[TopicPartition], allowed: Check | None) -> Outcome:
        """Read offsets, and write them as they are: both before the group's next request, and with one try.

        Without those that a transaction has written, but not committed: its commit would count as older than this one.
        And without those of partitions that others read, such as agents in the same group: these commit elsewhere.
        """
        numbers: dict[str, list[int]] = {}
        for topic, number in partitions:
            numbers.setdefault(topic, []).append(number)
        topics = [{"name": topic, "partition_indexes": some} for topic, some in numbers.items()]
        asked = {"group_id": group, "topics": topics}
        read = {**asked, "groups": [asked], "require_stable": True}
        found = self._ask_patiently(group, "OffsetFetch", read, allowed, give_up_us=0)
        kept: dict[str, list[Fields]] = {}
        for topic, one in self._read_here(group, found):
            kept.setdefault(topic, []).append({**one, "committed_metadata": one["metadata"]})
        if not kept:
            return found

        def are_read() -> bool:
            """Ask again: while a link was opened, a heartbeat may have given up what an agent has got then."""
            return all(
                self._is_read(group, name, one["partition_index"]) for name, some in kept.items() for one in some
            )

        written = {"group_id": group, "topics": [{"name": name, "partitions": some} for name, some in kept.items()]}
        return self._ask_patiently(group, "OffsetCommit", written | NO_MEMBER, allowed, give_up_us=0, may_send=are_read)

    def _listed(self, broker: Address | None) -> _Listed | None:
        """Return the groups of a broker that have members, as of a second ago at most."""
        if broker is None:
            return None
        known = self._with_members.get(broker)
        if known is not None and clock.steady_us() - known.asked_us < FRESH_US:
            return known
        return self._list_groups(broker)

    def _list_groups(self, broker: Address) -> _Listed:
        try:
            return _once(self._listing, broker, partial(self._ask_for_groups, broker))
        except LinkError:  # another greenlet asked, and was killed
            return _Listed(clock.steady_us(), NO_GROUPS, is_complete=False)

    def _ask_for_groups(self, broker: Address) -> _Listed:
        asked_us, groups, is_complete = clock.steady_us(), NO_GROUPS, False
        try:
            groups, is_complete = self._ask_for_states(broker, WITH_MEMBERS)
        except LinkError as error:
            _log.debug("%s", error)  # the gateway reports that brokers are away
        listed = self._with_members[broker] = _Listed(asked_us, groups, is_complete)
        return listed

    def _show(self, text: str) -> None:
        now_us, line = clock.steady_us(), text[:MAX_LINE]
        if now_us - self._shown_us.get(line, -SHOWN_EVERY_US) < SHOWN_EVERY_US:
            return
        if (shown := self._lines.text(line, now_us / 1e6)) is None:
            return
        if len(self._shown_us) >= MAX_KNOWN_COORDINATORS:
            self._shown_us.clear()
        self._shown_us[line] = now_us
        _log.warning("%s", shown)

    def _ask_patiently(
        self,
        group: str,
        name: str,
        fields: Fields,
        allowed: Check | None,
        give_up_us: int,
        may_send: Callable[[], bool] = lambda: True,
    ) -> Outcome:
        """Ask until Kafka's coordinator of the group, which may be moving, answers, but not after `give_up_us`.

        `allowed`: the group's fence when the request was allowed; `may_send` is asked right before it is sent. The
        requests of a group wait in line, and a client that waits for its answer sends no heartbeat. So PATIENCE_S
        counts from the arrival of each request: once one has failed, those behind it that are older than PATIENCE_S
        fail at once, without asking the brokers in turn. What is logged is why the first try has failed.
        """
        why = ""
        while clock.steady_us() <= give_up_us or group in self._coordinators:
            answer: Outcome
            try:
                answer = self._find(group)
                if not answer:
                    link = self._links.to(self._coordinators[group], bucket_of(group))
                    if allowed is None or self._fence(group) != allowed:  # it may have waited since
                        return ErrorCode.NOT_COORDINATOR
                    if not may_send():
                        return ErrorCode.REBALANCE_IN_PROGRESS
                    answer = link.ask(name, fields, HIGHEST.get(name), ANSWER_TIMEOUT_S).fields()
            except LinkError as error:
                self._failed(group, error)
                answer, why = ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)
            except FrameError as error:  # the brokers' version cannot express it
                _log.warning("group %s: %.300s", group, error)
                answer = ErrorCode.INVALID_REQUEST
            errors = {answer} if isinstance(answer, ErrorCode) else _errors(answer)
            if MOVING.isdisjoint(errors):
                return answer
            why = why or ", ".join(one.name for one in MOVING if one in errors)
            self._coordinators.pop(group, None)
            gevent.sleep(PAUSE_S)
        if why:
            self._complain(group, why)
        # With another error, clients would look for a coordinator, maybe on a connection that a hanging broker holds,
        # and send no heartbeat until they have found it.
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def _complain(self, group: str, why: str) -> None:
        """Log why a request has failed, for one of the groups that it concerns."""
        text = self._complaints.text(why, why, clock.steady_us() / 1e6, self._lines)
        if text is not None:
            _log.warning("group %.300s: the brokers do not answer about offsets: %s", group, text)

    def _failed(self, group: str, error: LinkError) -> None:
        self._metrics.errors["upstream"] += 1
        _log.debug("group %s: %s", group, error)  # it is retried

    def _find(self, group: str, oldest_us: int | None = None) -> ErrorCode:
        """Look up Kafka's coordinator of the group, unless it is known for less than `oldest_us`; raises LinkError.

        All who want to know it at the same time share one question: a thousand clients may start at once.
        """
        age_us = clock.steady_us() - self._looked_up_us.get(group, 0)
        if group in self._coordinators and (oldest_us is None or age_us < oldest_us):
            return ErrorCode.NONE
        found = _once(self._looking_up, group, partial(self._look_up, group))
        is_forgotten = not found and group not in self._coordinators  # meanwhile, for others
        return ErrorCode.COORDINATOR_NOT_AVAILABLE if is_forgotten else found

    def _look_up(self, group: str) -> ErrorCode:
        asked_us = clock.steady_us()
        asked = {"key": group, "key_type": GROUP, "coordinator_keys": [group]}
        answer = self._links.ask_any("FindCoordinator", asked).fields()
        found = answer["coordinators"][0] if answer["coordinators"] else answer
        if found["error_code"]:
            code = found["error_code"]
            return ErrorCode(code) if code in KNOWN_ERRORS else ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._known_names += 0 if group in self._looked_up_us else len(group)
        if len(self._looked_up_us) >= MAX_KNOWN_COORDINATORS or self._known_names > MAX_KNOWN_NAMES:
            self._coordinators.clear()
            self._looked_up_us.clear()
            self._known_names = len(group)
        self._coordinators[group], self._looked_up_us[group] = (found["host"], found["port"]), asked_us
        self._has_coordinators = True
        return ErrorCode.NONE


def _once(under_way: dict[K, AsyncResult[V]], key: K, ask: Callable[[], V]) -> V:
    """Return what `ask` returns, or raise its LinkError; if the question is under way, wait for its answer instead."""
    found = under_way.get(key)
    if found is None:
        found = under_way[key] = AsyncResult()
        try:
            found.set(ask())
        except LinkError as error:
            found.set_exception(error)
        except BaseException:
            found.set_exception(LinkError("the question was given up"))
            raise
        finally:
            del under_way[key]
    return cast("V", found.get())


def _errors(value: Any) -> set[int]:  # noqa: ANN401  # fields of any answer
    """Return all error codes of an answer; others run in between."""
    found: set[int] = set()
    _note_errors(value, found)
    return found


def _note_errors(value: Any, found: set[int]) -> None:  # noqa: ANN401  # as above
    if isinstance(value, dict):
        code = value.get("error_code")
        if isinstance(code, int):
            found.add(code)
        for one in value.values():
            if isinstance(one, dict | list):
                _note_errors(one, found)
    else:
        for one in in_turns(value):
            if isinstance(one, dict):
                _note_errors(one, found)
