"""A group's settings in the node `/consumers/groups/<group>`: one JSON object, or empty for all defaults."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from typing import Any

from zkrebalancer.protocol import fields
from zkrebalancer.protocol.errors import NodeContentError

VERSION = 1
EAGER = "eager"
INCREMENTAL = "incremental"
LAG_S, PAUSE_MS = SLO = ("lag_s", "pause_ms")
MAX_LEVEL = 1e9
MAX_OPTIONS_DEPTH = 20  # real ones have two; what shows settings calls itself for each level


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The settings of a group's rebalances. Times are in milliseconds."""

    strategy: str = "sticky"
    """The assignment strategy: `sticky`, `cooperative_sticky`, `range`, `round_robin` or `balanced`."""
    mode: str = INCREMENTAL
    """`incremental` stops only the partitions that move; `eager` stops all of them first."""
    frozen: bool = False
    """If true, no owned partition moves; partitions without an owner are still assigned."""
    frozen_until_ms: int = 0
    """When the coordinator ends the freeze, in ms since the epoch; 0: not by itself. Set with `groups freeze --for`."""
    approve_moves_above: int | None = None
    """A plan in which more owned partitions would change members waits for `groups resume`. Default: none waits."""
    approved_moves: int = 0
    """How many moves an operator has approved, for the plan after `approved_generation`."""
    approved_generation: int = -1
    """The generation at the last approval, which ends with the next plan that is carried out."""
    starts_paused: bool = False
    """If true, no starts are sent. Set while offsets are being reset."""
    paused_by: str = ""
    """The reset that pauses starts; it keeps changing this, or the coordinator ends the pause."""
    rebalance_timeout_ms: int = 30_000
    """Time for a member to acknowledge one command before it is evicted."""
    max_rebalance_retries: int = 4
    """How often a late start is cancelled and sent again."""
    rebalance_debounce_ms: int = 50
    """Quiet time before a plan if changes follow one another, so that it covers several."""
    rebalance_debounce_cap_ms: int = 500
    """Longest time that further changes can delay a plan."""
    static_grace_ms: int = 30_000
    """How long the partitions of a static member stay reserved after it is gone."""
    drained_members: tuple[str, ...] = ()
    """Members that give away what they have: names or instance ids. Set with `groups drain`."""
    drained_hosts: tuple[str, ...] = ()
    """Hosts whose members give away what they have. Set with `groups drain --host`."""
    slo: Mapping[str, float] = field(default_factory=dict)
    """Levels to measure: `slo.pause_ms`, longest pause of a rebalance; `slo.lag_s`, longest wait of a record."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Options of the strategy, which validates them."""

    def drains(self, consumer: str, instance: str | None, host: str | None) -> bool:
        """Whether a member is drained: by its name, by its instance id, or by its host."""
        names = self.drained_members
        return consumer in names or instance in names or host in self.drained_hosts

    @property
    def thaws(self) -> bool:
        """Whether the group is frozen for a limited time."""
        return self.frozen and self.frozen_until_ms > 0

    def allows(self, moves: int, generation: int) -> bool:
        """Whether a plan with so many moves may be carried out in a group of this generation."""
        approved = self.approved_moves if self.approved_generation == generation else 0
        return self.approve_moves_above is None or moves <= max(self.approve_moves_above, approved)

    def renews_pause_of(self, before: GroupSettings) -> bool:
        """Whether these settings differ at most by a pause of starts that was renewed."""
        return self.starts_paused and self == dataclasses.replace(before, paused_by=self.paused_by)

    def decides_as(self, other: GroupSettings) -> bool:
        """Whether a strategy answers the same under both; everything else counts when the answer is carried out."""
        decisive = attrgetter("strategy", "options", "drained_members", "drained_hosts")
        return bool(decisive(self) == decisive(other))


UNKNOWN = GroupSettings(frozen=True)  # in force while a leader can read none, and knows none

MAX_DRAINED = 1_000  # names in each list
MAX_NAME = 300  # characters of each

MAX_MOVES = 1_000_000_000

_LIMITS = {
    "rebalance_timeout_ms": (10, 3_600_000),
    "max_rebalance_retries": (0, 1_000),
    "rebalance_debounce_ms": (0, 60_000),
    "rebalance_debounce_cap_ms": (0, 600_000),
    "static_grace_ms": (0, 86_400_000),
    "frozen_until_ms": (0, fields.MAX_EPOCH_MS),
    "approved_moves": (0, MAX_MOVES),
    "approved_generation": (-1, 2**63 - 1),
}


def _flag(what: str, document: Mapping[str, Any], key: str) -> bool:
    value = document[key]
    if not isinstance(value, bool):
        raise NodeContentError(f"{what}: {key} must be true or false, not {value!r:.80}")
    return value


def _moves(what: str, document: Mapping[str, Any], key: str) -> int | None:
    return fields.optional_integer(what, document, key, minimum=0, maximum=MAX_MOVES)


def _names(what: str, document: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = document[key]
    if not isinstance(value, list) or not all(isinstance(name, str) and 0 < len(name) <= MAX_NAME for name in value):
        raise NodeContentError(f"{what}: {key} must be a list of names, not {value!r:.80}")
    if len(value) > MAX_DRAINED:
        raise NodeContentError(f"{what}: {key} has {len(value)} names, at most {MAX_DRAINED} are allowed")
    return tuple(value)


def _levels(what: str, document: Mapping[str, Any], key: str) -> dict[str, float]:
    """Return the levels, also those that only a later version knows: a leader has to see the other settings."""
    found = fields.mapping(what, document, key)
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_LEVEL:
            raise NodeContentError(f"{what}: {key}: {name!r:.80} must be a number above 0, not {value!r:.80}")
    return found


def _options(what: str, document: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = fields.mapping(what, document, key)
    _require_shallow(what, found, key)
    try:
        json.dumps(found, allow_nan=False)
    except ValueError:  # Python reads and writes NaN and Infinity, but other programs, such as browsers, do not
        raise NodeContentError(f"{what}: {key} has a number that is not finite") from None
    return found


def _require_shallow(what: str, found: dict[str, Any], key: str) -> None:
    level: list[dict[str, Any] | list[Any]] = [found]
    for _depth in range(MAX_OPTIONS_DEPTH):
        values = [value for each in level for value in (each.values() if isinstance(each, dict) else each)]
        level = [value for value in values if isinstance(value, dict | list)]
    if level:
        raise NodeContentError(f"{what}: {key} is nested more than {MAX_OPTIONS_DEPTH} levels deep")


_READERS: dict[str, Callable[[str, Mapping[str, Any], str], object]] = {
    "strategy": fields.text,
    "mode": fields.text,
    "slo": _levels,
    "options": _options,
    "paused_by": fields.text,
    "frozen": _flag,
    "starts_paused": _flag,
    "approve_moves_above": _moves,
    "drained_members": _names,
    "drained_hosts": _names,
}


def encode(settings: GroupSettings) -> bytes:
    """Encode settings."""
    return fields.write_document({"version": VERSION, **asdict(settings)})


def changed(content: bytes, values: Mapping[str, object]) -> bytes:
    """Replace some settings in a node's content and keep all others, unknown ones included.

    Raises:
        NodeContentError: `content` is not a JSON object.

    """
    document = fields.read_document("group settings", content) if content else {"version": VERSION}
    return fields.write_document({**document, **values})


def paused(content: bytes, by: str) -> bytes:
    """Pause starts; `by` must differ at every call. Raises as `changed`."""
    return changed(content, {"starts_paused": True, "paused_by": by})


def is_paused_by(content: bytes, prefix: str) -> bool:
    """Whether starts are paused by an operation whose name begins with `prefix`; raises as `changed`."""
    by = fields.read_document("group settings", content).get("paused_by") if content else None
    return isinstance(by, str) and by.startswith(prefix)


def resumed(content: bytes) -> bytes:
    """End the pause of starts; raises as `changed`."""
    return changed(content, {"starts_paused": False, "paused_by": ""})


def thawed(content: bytes) -> bytes:
    """End a freeze; raises as `changed`."""
    return changed(content, {"frozen": False, "frozen_until_ms": 0})


def decode(content: bytes) -> GroupSettings:
    """Decode settings; absent keys keep their defaults, unknown keys are ignored.

    Raises:
        NodeContentError: the message names the key and the fault.

    """
    if not content:
        return GroupSettings()
    what = "group settings"
    document = fields.read_document(what, content)
    fields.require_version(what, document, VERSION)
    values: dict[str, object] = {}
    for key, (minimum, maximum) in _LIMITS.items():
        if key in document:
            values[key] = fields.integer(what, document, key, minimum=minimum, maximum=maximum)
    for key, read in _READERS.items():
        if key in document:
            values[key] = read(what, document, key)
    if values.get("mode", EAGER) not in {EAGER, INCREMENTAL}:
        raise NodeContentError(f"{what}: mode {values['mode']!r:.80} is not {EAGER} or {INCREMENTAL}")
    return GroupSettings(**values)  # type: ignore[arg-type]  # each value was checked above


def differing(before: GroupSettings, new: GroupSettings) -> list[str]:
    """Return the names of the settings that differ."""
    return [each.name for each in dataclasses.fields(new) if getattr(new, each.name) != getattr(before, each.name)]
