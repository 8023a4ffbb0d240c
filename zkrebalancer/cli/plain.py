"""Text that other programs wrote, for a terminal."""

from __future__ import annotations

import unicodedata

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # control and format characters, line separators, unassigned


def plain(text: str) -> str:
    """Return a text in which every character is shown: others could hide lines, or command the terminal."""
    if text.isprintable():
        return text
    return "".join("?" if unicodedata.category(character) in _HIDDEN else character for character in text)
