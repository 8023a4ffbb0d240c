"""Requests about groups if brokers authenticate clients: what a client may not do is refused as Kafka refuses it.

The rest of a request is answered as usual, and the refusals are added to that answer.
"""

from __future__ import annotations

from collections.abc import Callable

from zkrebalancer.gateway.offset_answers import BATCHED_FETCH_FROM, refused_topics, topics_without_offsets
from zkrebalancer.gateway.rights import (
    GROUP_AUTHORIZATION_FAILED,
    TOPIC_AUTHORIZATION_FAILED,
    TRANSACTION_AUTHORIZATION_FAILED,
    Right,
    Rights,
)
from zkrebalancer.kafka_protocol.codec import Fields

GoOn = Callable[[Fields], Fields]
# Requests that name groups in a list: the list's field, the answer's list, and the right that each group needs.
LISTS = {
    "DescribeGroups": ("groups", "groups", Right.DESCRIBE_GROUP),
    "ConsumerGroupDescribe": ("group_ids", "groups", Right.DESCRIBE_GROUP),
    "DeleteGroups": ("groups_names", "results", Right.DELETE_GROUP),
}
OFFSETS = {"OffsetCommit": Right.READ_GROUP, "TxnOffsetCommit": Right.READ_GROUP, "OffsetDelete": Right.DELETE_GROUP}


def answer(name: str, version: int, fields: Fields, rights: Rights, go_on: GoOn) -> Fields:
    """Return the answer to a request; `go_on` answers the part that the client has rights for.

    Raises what `rights` and `go_on` raise.
    """
    if name == "ListGroups":
        return _listed(fields, rights, go_on)
    if name in LISTS:
        return _listing(name, fields, rights, go_on)
    if name in OFFSETS:
        return _with_offsets(name, fields, rights, go_on)
    if name == "OffsetFetch":
        return _fetched(version, fields, rights, go_on)
    error = _member_error(name, fields, rights)
    return {"error_code": error} if error else go_on(fields)


def _member_error(name: str, fields: Fields, rights: Rights) -> int:
    group = fields["group_id"]
    if not rights.groups(Right.READ_GROUP, [group]):
        return GROUP_AUTHORIZATION_FAILED
    subscribed = set(fields["subscribed_topic_names"] or ()) if name == "ConsumerGroupHeartbeat" else set()
    if subscribed - rights.topics(Right.DESCRIBE_TOPIC, subscribed, group):
        return TOPIC_AUTHORIZATION_FAILED
    return 0


def _listed(fields: Fields, rights: Rights, go_on: GoOn) -> Fields:
    rights.require_login()  # only the groups that are found say which rights are needed
    found = go_on(fields)
    allowed = rights.groups(Right.DESCRIBE_GROUP, [one["group_id"] for one in found["groups"]])
    return {**found, "groups": [one for one in found["groups"] if one["group_id"] in allowed]}


def _listing(name: str, fields: Fields, rights: Rights, go_on: GoOn) -> Fields:
    asked, answered, right = LISTS[name]
    allowed = rights.groups(right, fields[asked])
    refused = [one for one in fields[asked] if one not in allowed]
    some = {**fields, asked: [one for one in fields[asked] if one in allowed]}
    found = go_on(some if refused else fields) if some[asked] or not refused else {}
    more = [{"group_id": one, "error_code": GROUP_AUTHORIZATION_FAILED} for one in refused]
    return {**found, answered: [*found.get(answered, ()), *more]}


def _with_offsets(name: str, fields: Fields, rights: Rights, go_on: GoOn) -> Fields:
    group, topics = fields["group_id"], fields["topics"]
    error = 0 if rights.groups(OFFSETS[name], [group]) else GROUP_AUTHORIZATION_FAILED
    if not error and name == "TxnOffsetCommit" and not rights.may_write(fields["transactional_id"], group):
        error = TRANSACTION_AUTHORIZATION_FAILED
    if error:
        return {"error_code": error} if name == "OffsetDelete" else {"topics": refused_topics(topics, error)}
    allowed = rights.topics(Right.READ_TOPIC, [topic["name"] for topic in topics], group)
    refused = [topic for topic in topics if topic["name"] not in allowed]
    if not refused:
        return go_on(fields)
    found = go_on({**fields, "topics": [topic for topic in topics if topic["name"] in allowed]})
    return {**found, "topics": [*found["topics"], *refused_topics(refused, TOPIC_AUTHORIZATION_FAILED)]}


def _fetched(version: int, fields: Fields, rights: Rights, go_on: GoOn) -> Fields:
    if version < BATCHED_FETCH_FROM:
        if not rights.groups(Right.DESCRIBE_GROUP, [fields["group_id"]]):
            topics = topics_without_offsets(fields["topics"] or (), GROUP_AUTHORIZATION_FAILED)
            return {"topics": topics, "error_code": GROUP_AUTHORIZATION_FAILED}
        allowed, refused = _topics(fields, rights)
        found = go_on({**fields, "topics": allowed} if refused else fields)
        return {**found, "topics": _shown(fields, found, refused, rights)}
    may = rights.groups(Right.DESCRIBE_GROUP, [one["group_id"] for one in fields["groups"]])
    asked = [one for one in fields["groups"] if one["group_id"] in may]
    parts = [_topics(one, rights) for one in asked]
    narrowed = [{**one, "topics": allowed} for one, (allowed, _refused_ones) in zip(asked, parts, strict=True)]
    found = go_on({**fields, "groups": narrowed}) if narrowed else {"groups": []}
    groups = [
        {**answered, "topics": _shown(one, answered, refused, rights)}
        for one, answered, (_allowed, refused) in zip(asked, found["groups"], parts, strict=True)
    ]
    others = [one["group_id"] for one in fields["groups"] if one["group_id"] not in may]
    groups += [{"group_id": one, "topics": [], "error_code": GROUP_AUTHORIZATION_FAILED} for one in others]
    return {**found, "groups": groups}


def _topics(asked: Fields, rights: Rights) -> tuple[list[Fields] | None, list[Fields]]:
    """Return the topics that the client may ask for (None: all), and those that it may not."""
    if asked["topics"] is None:
        return None, []
    allowed = rights.topics(Right.DESCRIBE_TOPIC, [one["name"] for one in asked["topics"]], asked["group_id"])
    may = [one for one in asked["topics"] if one["name"] in allowed]
    return may, [one for one in asked["topics"] if one["name"] not in allowed]


def _shown(asked: Fields, answered: Fields, refused: list[Fields], rights: Rights) -> list[Fields]:
    """Return an answer's topics; if the request asked for all, those that the client may see."""
    if asked["topics"] is not None:
        return [*answered["topics"], *topics_without_offsets(refused, TOPIC_AUTHORIZATION_FAILED)]
    names = [one["name"] for one in answered["topics"]]
    allowed = rights.topics(Right.DESCRIBE_TOPIC, names, asked["group_id"])
    return [one for one in answered["topics"] if one["name"] in allowed]
