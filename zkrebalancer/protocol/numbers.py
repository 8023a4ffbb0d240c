"""Decimal integers in nodes and in the names of nodes: one strict reader for every program. Pure."""

from __future__ import annotations

from zkrebalancer.protocol.errors import ConfigurationError

MAX_INTEGER = 2**63 - 1  # offsets, epochs and generations are signed 64-bit integers wherever they are stored
MAX_DIGITS = 19  # of MAX_INTEGER; Python itself refuses to convert more than 4,300


def decimal(text: str | bytes, maximum: int = MAX_INTEGER) -> int | None:
    """Return the integer that these ASCII digits spell; None for anything else, and above `maximum`."""
    if not (text.isascii() and text.isdigit()) or len(text) > MAX_DIGITS:
        return None
    number = int(text)
    return number if number <= maximum else None


def number_setting(name: str, text: str | None, default: int, minimum: int, maximum: int = MAX_INTEGER) -> int:
    """Return the integer that a setting was given as `text`, its default if it was not given.

    Raises:
        ConfigurationError: it is no integer, or out of its range.

    """
    if text is None:
        return default
    number = decimal(text, maximum)
    if number is None or number < minimum:
        raise ConfigurationError(f"{name}={text:.80}: an integer from {minimum} to {maximum} is expected")
    return number
