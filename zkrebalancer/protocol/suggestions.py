"""The error about a setting that does not exist."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def unknown(name: str, known: Iterable[str]) -> str:
    """Return a line that names the nearest setting, or all of them if none is near."""
    names = list(known)
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}"
    return f"{name:.80}: there is no such setting; {hint}"
