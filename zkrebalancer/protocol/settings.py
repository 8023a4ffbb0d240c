"""A group's settings, in the node `/consumers/groups/<group>`: empty for all defaults, or one JSON object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from zkrebalancer.protocol import fields
from zkrebalancer.protocol.errors import NodeContentError

VERSION = 1
EAGER = "eager"
INCREMENTAL = "incremental"


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """How a group is rebalanced; times in milliseconds."""

    strategy: str = "sticky"
    mode: str = INCREMENTAL
    frozen: bool = False
    starts_paused: bool = False  # nobody is started, while offsets are being reset
    rebalance_timeout_ms: int = 30_000  # for one command to be acknowledged
    max_rebalance_retries: int = 4
    rebalance_debounce_ms: int = 50  # changes that follow the first one are gathered for this long
    rebalance_debounce_cap_ms: int = 500  # and never longer than this
    static_grace_ms: int = 30_000  # how long the partitions of a static member wait for it
    options: Mapping[str, object] = field(default_factory=dict)  # of the strategy, which looks at what is in it


_LIMITS = {
    "rebalance_timeout_ms": (10, 3_600_000),
    "max_rebalance_retries": (0, 1_000),
    "rebalance_debounce_ms": (0, 60_000),
    "rebalance_debounce_cap_ms": (0, 600_000),
    "static_grace_ms": (0, 86_400_000),
}


def encode(settings: GroupSettings) -> bytes:
    """Encode settings as the node's content."""
    return fields.write_document({"version": VERSION, **asdict(settings)})


def decode(content: bytes) -> GroupSettings:
    """Decode settings; absent keys keep their defaults, unknown keys are ignored.

    Raises:
        NodeContentError: naming the key and what is wrong with it.

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
    for key, read in (("strategy", fields.text), ("mode", fields.text), ("options", fields.mapping)):
        if key in document:
            values[key] = read(what, document, key)
    if values.get("mode", EAGER) not in {EAGER, INCREMENTAL}:
        raise NodeContentError(f"{what}: mode {values['mode']!r:.80} is not {EAGER} or {INCREMENTAL}")
    for key in ("frozen", "starts_paused"):
        if key in document:
            if not isinstance(document[key], bool):
                raise NodeContentError(f"{what}: {key} must be true or false, not {document[key]!r:.80}")
            values[key] = document[key]
    return GroupSettings(**values)  # type: ignore[arg-type]  # each value was checked above
