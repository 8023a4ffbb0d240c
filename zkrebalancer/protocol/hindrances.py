"""Why groups are stuck, as the leader publishes it in `/consumers/coordinator_hindrances` (JSON)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from zkrebalancer.protocol import fields
from zkrebalancer.protocol.errors import NodeContentError

VERSION = 1
REFUSED, QUARANTINED, BACKING_OFF = "refused", "quarantined", "backing-off"
MAX_HINDRANCES = 100  # in the node
MAX_REASON = 300  # characters


@dataclass(frozen=True, slots=True)
class Hindrance:
    """One reason; `group`: None for all. `path` and `right`: of a call that ZooKeeper refuses."""

    group: str | None
    kind: str
    reason: str
    path: str | None = None
    right: str | None = None


def encode(epoch: int, hindrances: Sequence[Hindrance], more: int = 0) -> bytes:
    """Encode what the leader of this epoch publishes: at most MAX_HINDRANCES, and how many more there are."""
    if len(hindrances) > MAX_HINDRANCES:
        raise ValueError(f"{len(hindrances)} hindrances, at most {MAX_HINDRANCES} fit")
    shown = [asdict(each) for each in hindrances]
    return fields.write_document({"version": VERSION, "epoch": epoch, "hindrances": shown, "more": more})


def decode(content: bytes) -> tuple[int, list[Hindrance], int]:
    """Return the epoch of the publishing leader, its hindrances, and how many more it has.

    Raises:
        NodeContentError: the message names the key and the fault.

    """
    what = "hindrances"
    document = fields.read_document(what, content)
    fields.require_version(what, document, VERSION)
    found = document.get("hindrances")
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise NodeContentError(f"{what}: hindrances must be a list of objects")
    shown = [
        Hindrance(
            group=fields.optional_text(what, each, "group"),
            kind=fields.text(what, each, "kind"),
            reason=fields.text(what, each, "reason"),
            path=fields.optional_text(what, each, "path"),
            right=fields.optional_text(what, each, "right"),
        )
        for each in found
    ]
    more = fields.integer(what, document, "more") if "more" in document else 0
    return fields.integer(what, document, "epoch"), shown, more
