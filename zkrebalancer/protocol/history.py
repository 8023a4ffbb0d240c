"""The last rebalances of a group, as its leader keeps them in `…/history` (JSON).

A rebalance that is missing was not recorded, for example because its leader died. What a recorded one lacks is null.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from zkrebalancer.protocol import fields
from zkrebalancer.protocol.errors import NodeContentError

VERSION = 1
MAX_REBALANCES = 16  # in a node; older ones are dropped
MAX_HISTORY_BYTES = 8_000  # of a node: 80 MB for 10,000 groups, which ZooKeeper keeps in memory
MAX_READ_BYTES = 64_000  # a longer node was not written by a coordinator
MAX_REASONS = 3  # that are named
MAX_LATE = 5  # late members that are named
MAX_NAME = 260  # characters of a member, a topic or other subject
_WHAT = "history"
Key = tuple[int, str]  # epoch, and the id of the cause


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a rebalance was requested.

    `subject`: the member, topic or settings that changed, or what an operator asked for; `by`: that operator. None:
    there is none, or it is not known.
    """

    kind: str
    subject: str | None = None
    by: str | None = None

    @property
    def text(self) -> str:
        """The reason for people."""
        named = self.kind if self.subject is None else f"{self.kind} {self.subject}"
        return named if self.by is None else f"{named} (by {self.by})"


@dataclass(frozen=True, slots=True)
class Slowest:
    """The member that took longest to acknowledge a command."""

    member: str
    ms: float


@dataclass(frozen=True, slots=True)
class Phases:
    """How long the parts of a rebalance took, in milliseconds; None: there was none, or it did not end.

    `wait`: from the request to the beginning of the plan; `plan`: until the plan was made; `stop` and `start`: from the
    first command of this kind to the last acknowledgement of one. In incremental mode, the last two overlap.
    """

    wait: float
    plan: float
    stop: float | None
    start: float | None


@dataclass(frozen=True, slots=True)
class Rebalanced:
    """One rebalance that has ended.

    `reasons`: at most MAX_REASONS of `reason_count`. `moved`: partitions that had another owner before. `settled_ms`:
    from the request to the end; `pause_ms_max`: longest time that a partition had no owner, None if that is unknown.
    `late`: at most MAX_LATE of `late_count` members that did not acknowledge a command in time.
    """

    id: str
    epoch: int
    generation: int
    mode: str
    requested_at_ms: int
    reasons: tuple[Reason, ...]
    reason_count: int
    members: int
    partitions: int
    moved: int
    outcome: str
    settled_ms: float
    pause_ms_max: float | None
    phases_ms: Phases
    late: tuple[str, ...] = ()
    late_count: int = 0
    slowest: Slowest | None = None

    @property
    def key(self) -> Key:
        """What no other rebalance of the group has."""
        return self.epoch, self.id


@dataclass(frozen=True, slots=True)
class History:
    """The rebalances in a node, oldest first, and why others in it cannot be read."""

    rebalances: tuple[Rebalanced, ...] = ()
    problems: tuple[str, ...] = ()


# ---- the leader's side: entries of other versions stay as they are


def entries(content: bytes) -> list[dict[str, Any]]:
    """Return the entries in a node, undecoded; raises NodeContentError."""
    if not content:
        return []
    document = fields.read_document(_WHAT, content, MAX_READ_BYTES)
    fields.require_version(_WHAT, document, VERSION)
    found = document.get("rebalances")
    if not isinstance(found, list):
        raise NodeContentError(f"{_WHAT}: rebalances must be a list")
    return [entry for entry in found if isinstance(entry, dict)]


def is_newer(content: bytes) -> bool:
    """Whether a node has a version that this program does not know."""
    try:
        version = fields.read_document(_WHAT, content, MAX_READ_BYTES).get("version")
    except NodeContentError:
        return False
    return isinstance(version, int) and not isinstance(version, bool) and version > VERSION


def extended(before: Sequence[Mapping[str, Any]], new: Sequence[Rebalanced]) -> bytes:
    """Return the content of a node with further entries, without those that it has already and the oldest."""
    keys = [(entry.get("epoch"), entry.get("id")) for entry in before]
    known = {key for key in keys if type(key[0]) is int and isinstance(key[1], str)}  # others may not be hashable
    added = [asdict(one) for one in new if one.key not in known]
    texts = [fields.write_document(entry) for entry in [*before, *added][-MAX_REBALANCES:]]
    room = MAX_HISTORY_BYTES - len(_document([]))
    kept: list[bytes] = []
    for text in reversed(texts):
        room -= len(text) + 1
        if room < 0:
            break
        kept.append(text)
    return _document(kept[::-1])


def _document(texts: Sequence[bytes]) -> bytes:
    return b'{"version":%d,"rebalances":[%b]}' % (VERSION, b",".join(texts))


# ---- for readers


def decode(content: bytes) -> History:
    """Return what a node has; an entry that cannot be read is a problem. Raises NodeContentError."""
    found: list[Rebalanced] = []
    problems: list[str] = []
    for number, entry in enumerate(entries(content)):
        try:
            found.append(_decoded(entry))
        except NodeContentError as error:
            problems.append(f"entry {number}: {error}")
    return History(tuple(found), tuple(problems))


def _decoded(entry: Mapping[str, Any]) -> Rebalanced:
    slowest = None if entry.get("slowest") is None else fields.mapping(_WHAT, entry, "slowest")
    phases = fields.mapping(_WHAT, entry, "phases_ms")
    return Rebalanced(
        id=_name(entry, "id"),
        epoch=fields.integer(_WHAT, entry, "epoch"),
        generation=fields.integer(_WHAT, entry, "generation"),
        mode=_name(entry, "mode"),
        requested_at_ms=fields.integer(_WHAT, entry, "requested_at_ms", maximum=fields.MAX_EPOCH_MS),
        reasons=tuple(_reason(one) for one in _list(entry, "reasons")),
        reason_count=fields.integer(_WHAT, entry, "reason_count"),
        members=fields.integer(_WHAT, entry, "members"),
        partitions=fields.integer(_WHAT, entry, "partitions"),
        moved=fields.integer(_WHAT, entry, "moved"),
        outcome=_name(entry, "outcome"),
        settled_ms=_ms(entry, "settled_ms"),
        pause_ms_max=_ms_or_none(entry, "pause_ms_max"),
        phases_ms=Phases(
            wait=_ms(phases, "wait"),
            plan=_ms(phases, "plan"),
            stop=_ms_or_none(phases, "stop"),
            start=_ms_or_none(phases, "start"),
        ),
        late=tuple(_name({"late": one}, "late") for one in _list(entry, "late")),
        late_count=fields.integer(_WHAT, entry, "late_count"),
        slowest=None if slowest is None else Slowest(_name(slowest, "member"), _ms(slowest, "ms")),
    )


def _reason(one: object) -> Reason:
    if not isinstance(one, dict):
        raise NodeContentError(f"{_WHAT}: a reason must be an object, not {one!r:.80}")
    subject = None if one.get("subject") is None else _name(one, "subject")
    by = None if one.get("by") is None else _name(one, "by")
    return Reason(_name(one, "kind"), subject, by)


def _list(entry: Mapping[str, Any], key: str) -> list[Any]:
    found = entry.get(key)
    if not isinstance(found, list):
        raise NodeContentError(f"{_WHAT}: {key} must be a list, not {found!r:.80}")
    return found


def _name(entry: Mapping[str, Any], key: str) -> str:
    name = fields.text(_WHAT, entry, key)
    if len(name) > MAX_NAME or not name.isprintable():
        raise NodeContentError(f"{_WHAT}: {key} is not a name: {name!r:.80}")
    return name


def _ms(entry: Mapping[str, Any], key: str) -> float:
    value = entry.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= fields.MAX_EPOCH_MS:
        raise NodeContentError(f"{_WHAT}: {key} must be milliseconds, not {json.dumps(value, default=str):.80}")
    return float(value)


def _ms_or_none(entry: Mapping[str, Any], key: str) -> float | None:
    return None if entry.get(key) is None else _ms(entry, key)
