"""Why groups are stuck, as the leader publishes it in `/consumers/coordinator_obstacles` (JSON)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from zkrebalancer.protocol import fields
from zkrebalancer.protocol.errors import NodeContentError

VERSION = 1
REFUSED, QUARANTINED, BACKING_OFF, UNAPPROVED = "refused", "quarantined", "backing-off", "unapproved"
MAX_OBSTACLES = 100  # in the node
MAX_REASON = 300  # characters


@dataclass(frozen=True, slots=True)
class PublishedObstacle:
    """One reason. `group`: None for all groups; `path` and `right`: those of a call that ZooKeeper refuses.

    `moves`, `generation`: of a plan that waits for an operator, and the group's when it was made.
    """

    group: str | None
    kind: str
    reason: str
    path: str | None = None
    right: str | None = None
    moves: int | None = None
    generation: int | None = None


def encode(epoch: int, obstacles: Sequence[PublishedObstacle], more: int = 0) -> bytes:
    """Encode what the leader of this epoch publishes: at most MAX_OBSTACLES, and how many more there are."""
    if len(obstacles) > MAX_OBSTACLES:
        raise ValueError(f"{len(obstacles)} obstacles, at most {MAX_OBSTACLES} fit")
    shown = [asdict(each) for each in obstacles]
    return fields.write_document({"version": VERSION, "epoch": epoch, "obstacles": shown, "more": more})


def decode(content: bytes) -> tuple[int, list[PublishedObstacle], int]:
    """Return the epoch of the publishing leader, its obstacles, and how many more it has.

    Raises:
        NodeContentError: the message names the key and the fault.

    """
    what = "obstacles"
    document = fields.read_document(what, content)
    fields.require_version(what, document, VERSION)
    found = document.get("obstacles")
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise NodeContentError(f"{what}: obstacles must be a list of objects")
    shown = [
        PublishedObstacle(
            group=fields.optional_text(what, each, "group"),
            kind=fields.text(what, each, "kind"),
            reason=fields.text(what, each, "reason"),
            path=fields.optional_text(what, each, "path"),
            right=fields.optional_text(what, each, "right"),
            moves=fields.optional_integer(what, each, "moves", minimum=0, maximum=2**63 - 1),
            generation=fields.optional_integer(what, each, "generation", minimum=-1, maximum=2**63 - 1),
        )
        for each in found
    ]
    more = fields.integer(what, document, "more") if "more" in document else 0
    return fields.integer(what, document, "epoch"), shown, more
