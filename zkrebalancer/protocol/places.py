"""Where a group belongs, by Java's hash of its name as in Kafka, and who should serve a place."""

from __future__ import annotations

import hashlib

_SMALLEST = -(1 << 31)


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode`, a signed number of 32 bits over UTF-16 units."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def place_of(group: str, places: int) -> int:
    """Return Kafka's place of a group among `places`; in its `Utils.abs`, the smallest integer becomes 0."""
    value = java_hash(group)
    return 0 if value == _SMALLEST else abs(value) % places


def rank(place: int, name: str) -> tuple[bytes, str]:
    """Return what to compare to find who should serve a place: the highest.

    With rendezvous hashing (Thaler and Ravishankar, 1996), only the places that a newcomer gets or a leaver had move.
    """
    return hashlib.sha256(f"{place}/{name}".encode()).digest(), name
