"""Reads a file of settings."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from zkrebalancer.protocol.errors import ConfigurationError

MAX_FILE_BYTES = 1_000_000


def read_toml(path: str) -> dict[str, Any]:
    """Return what a TOML file has; raises ConfigurationError, whose text quotes none of its values."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError:  # NUL in the name
        raise ConfigurationError(f"{path!r}: is not a file's name") from None
    if len(content) > MAX_FILE_BYTES:
        raise ConfigurationError(f"{path}: is too large: more than {MAX_FILE_BYTES:,} bytes")
    try:
        document = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path}: is not TOML: {error}") from None
    for key, value in document.items():
        # Neither variables nor arguments can have it; Python refuses it in names of files and programs by a traceback.
        if any("\0" in text for text in _texts(value)):
            raise ConfigurationError(f"{path}: {key}: must not contain the character NUL")
    return document


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from (str(key), *_texts(one))
    elif isinstance(value, Sequence):
        for one in value:
            yield from _texts(one)
