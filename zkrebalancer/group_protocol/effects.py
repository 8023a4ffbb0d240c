"""The machine's events (inputs) and effects (outputs), as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zkrebalancer.group_protocol.answers import Answer
from zkrebalancer.group_protocol.assignors import NamedPartition
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.requests import Request
from zkrebalancer.group_protocol.stored import StoredContent
from zkrebalancer.group_protocol.topics import Topic

MAX_NAME_IN_ID = 8_000  # characters, of up to four bytes: an answer, also one about several groups, has 32 kB for an id


@dataclass(frozen=True, slots=True)
class Received:
    """A request came in; exactly one `Reply` with its `ticket` follows, at once or later.

    `fresh_id`: random text, different for each request of a kind with which a member may begin; its id is made of that.
    """

    ticket: int
    request: Request
    api_version: int
    client_id: str
    client_host: str
    fresh_id: str

    def new_member_id(self, instance_id: str | None) -> str:
        """Return the id of a classic member that has none yet; it begins with the name of its instance or client."""
        return f"{(instance_id or self.client_id)[:MAX_NAME_IN_ID]}-{self.fresh_id}"


@dataclass(frozen=True, slots=True)
class Stored:
    """The answer to a `Store`. Its error is one for clients, such as NOT_COORDINATOR if the write was fenced."""

    write_id: int
    error_code: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class BucketLoading:
    """This gateway is about to serve a bucket of groups (`placement.bucket_of`), once they are read."""

    bucket: int


@dataclass(frozen=True, slots=True)
class BucketLoaded:
    """The stored groups of a bucket; from now on this gateway serves them."""

    bucket: int
    groups: Mapping[str, StoredContent]


@dataclass(frozen=True, slots=True)
class GroupLoaded:
    """The stored form of a group that had failed (None: nothing is stored); from now on it is served again."""

    group_id: str
    content: StoredContent | None


@dataclass(frozen=True, slots=True)
class BucketRefused:
    """The groups of a bucket that is being read cannot be, for as long as a node may not be used: lists omit them."""

    bucket: int


@dataclass(frozen=True, slots=True)
class BucketLost:
    """Another gateway serves this bucket now, or may; this one no longer answers for its groups."""

    bucket: int


@dataclass(frozen=True, slots=True)
class TopicsRead:
    """All topics of the cluster; sent once before KIP-848 groups are served, then after each change."""

    topics: Mapping[str, Topic]


@dataclass(frozen=True, slots=True)
class Targeted:
    """All that a member of a central group shall have from now on; ignored if the member is gone.

    `number` returns in the first `Standing` that takes this target into account; earlier reports do not reflect it.
    """

    group_id: str
    member_id: str
    number: int
    partitions: frozenset[NamedPartition]


@dataclass(frozen=True, slots=True)
class Fenced:
    """A member of a central group has to be removed; ignored if the member is gone.

    `for_good`: because another consumer has its instance id. Otherwise the coordinator has evicted it, and its client
    may join again.
    """

    group_id: str
    member_id: str
    for_good: bool = True


@dataclass(frozen=True, slots=True)
class Tick:
    """A timer may be due (`Machine.next_deadline_ms`)."""


OfBucket = BucketLoading | BucketLoaded | BucketRefused | BucketLost
Event = Received | Stored | OfBucket | GroupLoaded | TopicsRead | Targeted | Fenced | Tick


@dataclass(frozen=True, slots=True)
class Reply:
    """Send an answer."""

    ticket: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class Store:
    """Write a group (None: delete it); the result comes back as `Stored`. Writes of a group keep their order."""

    write_id: int
    group_id: str
    content: StoredContent | None


@dataclass(frozen=True, slots=True)
class Standing:
    """A member of a central group: its identity, its subscription, and what no other client may have.

    `topic_regex`: an expression that has to match a topic's whole name; empty if there is none. `number`: of the last
    `Targeted` that this takes into account; 0 if there was none since the group was read.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rack_id: str | None
    topic_names: tuple[str, ...]
    topic_regex: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    number: int
    held: frozenset[NamedPartition]


@dataclass(frozen=True, slots=True)
class Reported:
    """All members of a central group as they are stored now; sent after each write and each read of the group."""

    group_id: str
    members: tuple[Standing, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """One log line for a person; `client_host`: of the client whose request was refused, empty if there is none."""

    group_id: str
    text: str
    client_host: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """An exception ended this one group. `GroupLoaded` has to follow, after a pause.

    `text`: what is needed to reproduce the error: where it was raised, the event, and the group's state. `is_stored`:
    whether its stored form was being read, so that it fails again for as long as that stays as it is.
    """

    group_id: str
    error: str
    text: str
    is_stored: bool = False


Effect = Reply | Store | Reported | Report | Failed
