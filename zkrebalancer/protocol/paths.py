"""Paths of the ZooKeeper tree, relative to the chroot, and the names allowed in them."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from functools import lru_cache

from zkrebalancer.protocol.errors import InvalidNameError

BROKER_IDS = "/brokers/ids"
BROKER_TOPICS = "/brokers/topics"
CONSUMERS = "/consumers"
COORDINATOR = "/consumers/coordinator"
RESTORE = "/consumers/coordinator/restore"
COORDINATOR_EPOCH = "/consumers/coordinator_epoch"
COORDINATOR_OBSTACLES = "/consumers/coordinator_obstacles"
GROUPS = "/consumers/groups"
SERVED = "/consumers/served"
GATEWAYS = "/consumers/gateways"
LIVE_GATEWAYS = "/consumers/gateways/alive"
BUCKET_OWNERS = "/consumers/gateways/owners"
SECURITY = "/consumers/security"
SHARDS = "/consumers/shards"
SHARD_HOSTS = "/consumers/shards/hosts"

OWN = frozenset(
    path.removeprefix(CONSUMERS + "/")
    for path in (COORDINATOR, COORDINATOR_EPOCH, COORDINATOR_OBSTACLES, GROUPS, SERVED, GATEWAYS, SECURITY, SHARDS)
)  # names below `/consumers` that are no groups of Kafka's old consumers

COMMAND_PREFIX = "command-"
PROBE = "~probe"  # in a channel, for any command: created and deleted in one transaction, so that nobody sees it
GROUP_CHILDREN = ("ids", "owners", "channel", "offsets", "static", "evicted", "quarantine")
REGION_CHILDREN = ("members", "requests", "contributions", "merged", "initial")
MAX_NAME_LENGTH = 200
MAX_TOPIC_LENGTH = 249  # Kafka's
MAX_CACHED_NAMES = 100_000
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_LEGAL_BYTES = f"{string.ascii_letters}{string.digits}._-".encode()


def validate_name(kind: str, name: str, max_length: int = MAX_NAME_LENGTH) -> str:
    """Return `name` if it is legal (letters, digits, `.`, `_`, `-`, as in Kafka) and not too long.

    Raises:
        InvalidNameError: the message names the kind (`group`, `client id`, …) and the fault.

    """
    if not name or name in {".", ".."}:
        raise InvalidNameError(f"{kind} name {name!r} is not allowed")
    if len(name) > max_length:
        raise InvalidNameError(f"{kind} name is {len(name)} characters long, at most {max_length} are allowed")
    if not _LEGAL_NAME.fullmatch(name):
        raise InvalidNameError(f"{kind} name {name!r:.80} may contain only letters, digits, '.', '_' and '-'")
    return name


def is_legal_name(name: str, max_length: int = MAX_NAME_LENGTH) -> bool:
    """Whether `validate_name` would return it."""
    return len(name) <= max_length and name not in {".", ".."} and _LEGAL_NAME.fullmatch(name) is not None


@lru_cache(MAX_CACHED_NAMES)  # every ownership record and command repeats the names of its topics
def is_legal_topic(name: str) -> bool:
    """Whether Kafka allows a topic of this name."""
    return is_legal_name(name, MAX_TOPIC_LENGTH)


def are_legal_topics(names: Mapping[str, object]) -> bool:
    """Whether Kafka allows topics of all these names: a look at all of their characters, because names are many."""
    text = "".join(names)
    has_legal_characters = text.isascii() and not text.encode().translate(None, _LEGAL_BYTES)
    longest = max(map(len, names), default=0)
    return has_legal_characters and longest <= MAX_TOPIC_LENGTH and names.keys().isdisjoint({"", ".", ".."})


def topic(name: str) -> str:
    """Kafka's node of one topic."""
    return f"{BROKER_TOPICS}/{name}"


def group(name: str) -> str:
    """The settings node of a group."""
    return f"{GROUPS}/{name}"


def old_group(name: str) -> str:
    """The node of a group of Kafka 0.8's consumers; raises InvalidNameError, also for the name of a node of ours."""
    if name in OWN:
        raise InvalidNameError(f"group name {name!r}: {CONSUMERS}/{name} is no group of Kafka's old consumers")
    return f"{CONSUMERS}/{validate_name('group', name)}"


def shard(number: int) -> str:
    """The node above those of one shard's leader."""
    return f"{SHARDS}/{number}"


def served(name: str) -> str:
    """The node that exists if a group of this name was ever served."""
    return f"{SERVED}/{name}"


def generation(name: str) -> str:
    """The generation counter of a group."""
    return f"{GROUPS}/{name}/generation"


def ids(group_name: str, consumer: str | None = None) -> str:
    """The registrations of a group, or that of one consumer."""
    return _child(group_name, "ids", consumer)


def owners(group_name: str, consumer: str | None = None) -> str:
    """The ownership records of a group, or that of one consumer."""
    return _child(group_name, "owners", consumer)


def channel(group_name: str, consumer: str | None = None) -> str:
    """The command channels of a group, or that of one consumer."""
    return _child(group_name, "channel", consumer)


def evicted(group_name: str, consumer: str | None = None) -> str:
    """The eviction records of a group, or that of one consumer."""
    return _child(group_name, "evicted", consumer)


def given(group_name: str, consumer: str | None = None) -> str:
    """The records of what the coordinator gave the consumers of a group, or that of one consumer."""
    return _child(group_name, "given", consumer)


def static(group_name: str, instance: str | None = None) -> str:
    """The static members of a group, or one of them."""
    return _child(group_name, "static", instance)


def weights(name: str) -> str:
    """The node with the expected rates of a group's partitions; optional."""
    return f"{GROUPS}/{name}/weights"


def history(name: str) -> str:
    """The node with the last rebalances of a group."""
    return f"{GROUPS}/{name}/history"


def quarantine(group_name: str, digest: str | None = None) -> str:
    """The quarantined commands of a group, or one of them."""
    return _child(group_name, "quarantine", digest)


def offsets(group_name: str, topic_name: str | None = None, partition: int | None = None) -> str:
    """The offsets of a group, of one topic, or of one partition."""
    path = _child(group_name, "offsets", topic_name)
    return path if partition is None else f"{path}/{partition}"


def incarnations(group_name: str, topic_name: str | None = None) -> str:
    """The records of the topics that a group's offsets belong to, or that of one topic."""
    return _child(group_name, "incarnations", topic_name)


def lives(group_name: str, topic_name: str | None = None) -> str:
    """How often an operator has set the offsets of a group, or those of one topic."""
    return _child(group_name, "lives", topic_name)


def deleted_offsets(group_name: str, copy: str | None = None) -> str:
    """The copies of a group's deleted offsets, or one of them."""
    return _child(group_name, "deleted_offsets", copy)


def _child(group_name: str, kind: str, name: str | None) -> str:
    path = f"{GROUPS}/{group_name}/{kind}"
    return path if name is None else f"{path}/{name}"


def region(group_name: str, kind: str | None = None, name: str | None = None) -> str:
    """The consistent region of a group, one of its nodes (`order`) or containers (`members`), or a node in that."""
    path = f"{GROUPS}/{group_name}/region"
    if kind is not None:
        path = f"{path}/{kind}"
    return path if name is None else f"{path}/{name}"
