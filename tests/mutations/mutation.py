"""The description of a deliberate bug."""

from __future__ import annotations

from dataclasses import dataclass

from tests.mutations.editing import Edit


@dataclass(frozen=True, slots=True)
class Mutation:
    """One deliberate bug."""

    name: str
    rule: int | None  # in `docs/reference/protocol.md`; None: not a numbered rule
    edits: tuple[Edit, ...]
    seeds: int = 3  # enough to find it
    hostile: str = ""  # the kinds of hostile faults that find it; "": the usual faults do
    in_regions: bool = False  # restores of consistent regions find it, instead of the whole cluster
    redundant: str = ""  # why nothing breaks without the rule; if set, no seed may find the bug
