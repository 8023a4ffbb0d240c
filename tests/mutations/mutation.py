"""What a deliberate bug is."""

from __future__ import annotations

from dataclasses import dataclass

from tests.mutations.editing import Edit


@dataclass(frozen=True, slots=True)
class Mutation:
    """One bug."""

    name: str
    rule: int | None  # of `docs/reference/protocol.md`, None: of the code
    edits: tuple[Edit, ...]
    seeds: int = 3  # within which it has to be found
    hostile: str = ""  # the kind of hostile fault that shows it, "": the friendly profile does
    redundant: str = ""  # why nothing breaks: then no seed may find it
