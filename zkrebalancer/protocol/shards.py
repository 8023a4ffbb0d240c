"""Shards of groups: the nodes of each shard's leader, and the contents of the nodes that describe the shards.

With one shard, its leader has the nodes directly below `/consumers`, and `/consumers/shards` may be missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from zkrebalancer.protocol import fields, paths
from zkrebalancer.protocol.calls import Check, Operation
from zkrebalancer.protocol.errors import NewerVersionError, NodeContentError
from zkrebalancer.protocol.places import place_of

VERSION = 1
BARRIER = f"{paths.COORDINATOR}/shards"  # exists while there are several shards: its parent cannot be removed
MAX_SHARDS = 200
MAX_CAPACITY = 1_000
MAX_CACHED_GROUPS = 100_000
_WHAT = "shards"

shard_of = lru_cache(MAX_CACHED_GROUPS)(place_of)  # every list of groups repeats all names


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard of `count`. `version`: of `/consumers/shards`, -1 if it is missing; `first_epoch`: as in that node."""

    number: int = 0
    count: int = 1
    version: int = -1
    first_epoch: int = 0
    coordinator: str = field(init=False)  # paths
    epoch: str = field(init=False)
    obstacles: str = field(init=False)

    def __post_init__(self) -> None:
        """Compute the paths once, because every watch event is compared with them."""
        parent = paths.CONSUMERS if self.count == 1 else paths.shard(self.number)
        for name in ("coordinator", "epoch", "obstacles"):
            node = "coordinator" if name == "coordinator" else f"coordinator_{name}"
            object.__setattr__(self, name, f"{parent}/{node}")

    @property
    def guards(self) -> tuple[Operation, ...]:
        """What an election has to check, so that a host that still has a former number of shards cannot win.

        With one shard, a persistent node in place of the leader's prevents that.
        """
        return () if self.count == 1 else (Check(paths.SHARDS, self.version),)

    @property
    def seed(self) -> str:
        """What makes the ids of two shards' leaders differ who have the same session and epoch."""
        return "" if self.count == 1 else f"{self.number}/"

    @property
    def event_fields(self) -> dict[str, int]:
        """The fields of an event that name the shard: none if it is the only one."""
        return {} if self.count == 1 else {"shard": self.number, "shards": self.count}

    def has(self, group: str) -> bool:
        """Whether a group belongs to this shard."""
        return self.count == 1 or shard_of(group, self.count) == self.number

    def of(self, groups: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of the groups that belong to this shard."""
        return groups if self.count == 1 else tuple(filter(self.has, groups))


WHOLE = Shard()


def concerns(event_fields: Mapping[str, object], group: str) -> bool:
    """Whether an event with `Shard.event_fields` concerns a group."""
    count = event_fields.get("shards")
    return not isinstance(count, int) or shard_of(group, count) == event_fields["shard"]


@dataclass(frozen=True, slots=True)
class Number:
    """Content of `/consumers/shards`. `first_epoch`: no leader of a former number of shards had a higher epoch."""

    shards: int = 1
    first_epoch: int = 0

    def all(self, version: int) -> tuple[Shard, ...]:
        """Return the shards; `version`: that of the node, -1 if it is missing."""
        return tuple(Shard(number, self.shards, version, self.first_epoch) for number in range(self.shards))


def damaged(error: NodeContentError) -> str:
    """Return what to tell people about a number that cannot be read."""
    if isinstance(error, NewerVersionError):
        return f"{paths.SHARDS} is of a newer release ({error}): upgrade"
    return (
        f"{paths.SHARDS} is damaged ({error}): those who lead go on, and nobody else is elected until"
        " `zkrebalancer shards set COUNT` has mended it"
    )


def encode_number(number: Number) -> bytes:
    """Encode the content of `/consumers/shards`."""
    return fields.write_document({"version": VERSION, "shards": number.shards, "first_epoch": number.first_epoch})


def decode_number(content: bytes) -> Number:
    """Decode `/consumers/shards`; without content it is a group of Kafka's oldest consumers, and there is one shard.

    Raises:
        NodeContentError: the message names the fault.

    """
    if not content:
        return Number()
    document = fields.read_document(_WHAT, content)
    fields.require_version(_WHAT, document, VERSION)
    shards = fields.integer(_WHAT, document, "shards")
    if not 1 <= shards <= MAX_SHARDS:
        raise NodeContentError(f"{_WHAT}: shards must be 1 to {MAX_SHARDS}, not {shards}")
    return Number(shards, fields.integer(_WHAT, document, "first_epoch"))


@dataclass(frozen=True, slots=True)
class ShardHost:
    """A coordinator that can lead shards; `capacity`: its share, in proportion to those of the others."""

    brokerid: int
    host: str
    capacity: int


def encode_host(host: ShardHost) -> bytes:
    """Encode the content of `/consumers/shards/hosts/<broker id>-<session>`."""
    return fields.write_document(
        {"version": VERSION, "brokerid": host.brokerid, "host": host.host, "capacity": host.capacity}
    )


def decode_host(content: bytes) -> ShardHost:
    """Decode `/consumers/shards/hosts/<broker id>-<session>`; raises NodeContentError."""
    what = "host of shards"
    document = fields.read_document(what, content)
    fields.require_version(what, document, VERSION)
    capacity = fields.integer(what, document, "capacity")
    if not 1 <= capacity <= MAX_CAPACITY:
        raise NodeContentError(f"{what}: capacity must be 1 to {MAX_CAPACITY}, not {capacity}")
    return ShardHost(fields.integer(what, document, "brokerid"), fields.text(what, document, "host"), capacity)
