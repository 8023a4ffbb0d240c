"""Finds out a client's rights at its broker, by harmless requests over the client's own connection.

Brokers check rights before anything else, even if they do not coordinate the group. So any broker's refusal is valid,
and any other error means that the client has the right.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from zkrebalancer.runtime import clock

RIGHTS_S = 30.0  # how long a right that the client has is not checked again
MAX_KEPT_BYTES = 128 << 10  # for the rights of one connection: five hundred, with names of usual length
RIGHT_BYTES = 200  # that a right uses, besides the characters of its name
TOPICS_AT_ONCE = 100  # the answer about each has all of its partitions
NOBODY = "zkrebalancer-asks-for-rights"  # no member has this id, so the requests have no effect
TOPIC_AUTHORIZATION_FAILED, TRANSACTION_AUTHORIZATION_FAILED = 29, 53
GROUP_AUTHORIZATION_FAILED = 30
LATEST_GENERATION = 0x7FFFFFFF
Ask = Callable[[str, int, dict[str, Any]], dict[str, Any]]  # name, version and fields of a request -> its answer


class Right(Enum):
    """An operation on a kind of resource in Kafka."""

    READ_GROUP = "read a group"
    DESCRIBE_GROUP = "describe a group"
    DELETE_GROUP = "delete a group"
    READ_TOPIC = "read a topic"
    DESCRIBE_TOPIC = "describe a topic"
    WRITE_TRANSACTION = "write a transaction"


class Rights:
    """The rights of one connection's client."""

    def __init__(self, ask: Ask) -> None:
        """Know no right yet; `ask` sends a request over the client's connection, in a version that all brokers know."""
        self._ask = ask
        self._until_us: dict[tuple[Right, str], int] = {}
        self._kept_bytes = 0

    def require_login(self) -> None:
        """Send a request that a broker answers only after a login, any one; raises what `ask` raises."""
        self._ask("Metadata", 9, {"topics": [], "allow_auto_topic_creation": False})

    def groups(self, right: Right, names: Iterable[str]) -> set[str]:
        """Return the groups for which the client has the right."""
        probe = {
            Right.READ_GROUP: self._may_read,
            Right.DESCRIBE_GROUP: self._describable,
            Right.DELETE_GROUP: self._may_delete,
        }[right]
        return self._allowed(right, names, probe)

    def topics(self, right: Right, names: Iterable[str], group: str) -> set[str]:
        """Return the topics for which the client has the right; `group` is a group that it may read."""
        if right is Right.DESCRIBE_TOPIC:
            return self._allowed(right, names, self._describable_topics)
        return self._allowed(right, names, lambda missing: self._readable_topics(missing, group))

    def may_write(self, transaction: str, group: str) -> bool:
        """Whether the client may use this transactional id; `group` is a group that it may read."""

        def probe(missing: Collection[str]) -> set[str]:
            fields = {"transactional_id": transaction, "producer_id": -1, "producer_epoch": -1, "group_id": group}
            answer = self._ask("AddOffsetsToTxn", 3, fields)
            return set() if answer["error_code"] == TRANSACTION_AUTHORIZATION_FAILED else set(missing)

        return bool(self._allowed(Right.WRITE_TRANSACTION, [transaction], probe))

    def _allowed(self, right: Right, names: Iterable[str], probe: Callable[[Collection[str]], set[str]]) -> set[str]:
        now_us = clock.steady_us()
        wanted = set(names)
        known = {name for name in wanted if self._until_us.get((right, name), 0) > now_us}
        found = probe(sorted(wanted - known)) if wanted - known else set()
        self._remember(right, found, now_us + int(RIGHTS_S * 1e6))
        return known | found

    def _remember(self, right: Right, names: Collection[str], until_us: int) -> None:
        """Remember rights, as far as there is room; older ones give way, unless these alone need more."""
        size = sum(map(_size, names))
        if size <= MAX_KEPT_BYTES < self._kept_bytes + size:
            self._until_us.clear()
            self._kept_bytes = 0
        for name in names:
            if self._until_us.pop((right, name), None) is not None:  # it is over
                self._kept_bytes -= _size(name)
            if self._kept_bytes + _size(name) <= MAX_KEPT_BYTES:
                self._until_us[right, name] = until_us
                self._kept_bytes += _size(name)

    def _may_read(self, groups: Collection[str]) -> set[str]:
        fields = {"generation_id": LATEST_GENERATION, "member_id": NOBODY}
        return {one for one in groups if _is_allowed(self._ask("Heartbeat", 4, {"group_id": one, **fields}))}

    def _describable(self, groups: Collection[str]) -> set[str]:
        answer = self._ask("DescribeGroups", 5, {"groups": list(groups)})
        return {one["group_id"] for one in answer["groups"] if _is_allowed(one)}

    def _may_delete(self, groups: Collection[str]) -> set[str]:
        return {one for one in groups if _is_allowed(self._ask("OffsetDelete", 0, {"group_id": one, "topics": []}))}

    def _describable_topics(self, topics: Collection[str]) -> set[str]:
        names, found = list(topics), set[str]()
        for at in range(0, len(names), TOPICS_AT_ONCE):
            asked = [{"name": one} for one in names[at : at + TOPICS_AT_ONCE]]
            answer = self._ask("Metadata", 9, {"topics": asked, "allow_auto_topic_creation": False})
            found |= {one["name"] for one in answer["topics"] if one["error_code"] != TOPIC_AUTHORIZATION_FAILED}
        return found

    def _readable_topics(self, topics: Collection[str], group: str) -> set[str]:
        """Commit offsets as a member that does not exist."""
        nobody = {"group_id": group, "generation_id_or_member_epoch": LATEST_GENERATION, "member_id": NOBODY}
        partition = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
        answer = self._ask(
            "OffsetCommit", 8, {**nobody, "topics": [{"name": one, "partitions": [partition]} for one in topics]}
        )
        refused = {TOPIC_AUTHORIZATION_FAILED, GROUP_AUTHORIZATION_FAILED}
        return {
            topic["name"]
            for topic in answer["topics"]
            if not any(one["error_code"] in refused for one in topic["partitions"])
        }


@dataclass(frozen=True, slots=True)
class Client:
    """The sender of a request, and the port that it uses."""

    host: str
    is_at_gateway: bool  # at the port of the gateway itself, not at that of a broker
    since_us: int  # the request has not arrived before
    rights: Rights | None  # None: brokers require no login, so every client has all rights


def _is_allowed(answer: dict[str, Any]) -> bool:
    return bool(answer["error_code"] != GROUP_AUTHORIZATION_FAILED)


def _size(name: str) -> int:
    return RIGHT_BYTES + len(name)
