"""Strict decoding of decimal integers in nodes, names of nodes, and settings. Pure."""

from __future__ import annotations

from zkrebalancer.protocol.errors import ConfigurationError

MAX_INTEGER = 2**63 - 1  # offsets, epochs and generations are signed 64-bit integers
MAX_DIGITS = 19  # of MAX_INTEGER; Python itself converts at most 4,300 digits


def decimal(text: str | bytes, maximum: int = MAX_INTEGER) -> int | None:
    """Return the integer in these ASCII digits, None for any other text or above `maximum`."""
    if not (text.isascii() and text.isdigit()) or len(text) > MAX_DIGITS:
        return None
    number = int(text)
    return number if number <= maximum else None


def number_setting(name: str, text: str | None, default: int, minimum: int, maximum: int = MAX_INTEGER) -> int:
    """Return the integer value of a setting; `text` is None if it is not set.

    Raises:
        ConfigurationError: the text is not an integer, or out of range.

    """
    if text is None:
        return default
    number = decimal(text, maximum)
    if number is None or number < minimum:
        raise ConfigurationError(f"{name}={text:.80}: must be an integer from {minimum} to {maximum}")
    return number
