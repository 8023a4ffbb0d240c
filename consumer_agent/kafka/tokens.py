"""Tokens for SASL/OAUTHBEARER, from the application's `oauth_cb`.

librdkafka calls it in a thread of its own: for the first token, and when four fifths of a token's life are over. It
asks again ten seconds after a failure, whose reason confluent-kafka drops.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from zkrebalancer.runtime import logs

SHAPE = "(token, time of its end in seconds since the epoch[, principal[, extensions]])"

_log = logs.named(__name__)


class Tokens:
    """An `oauth_cb` that logs why there is no token. `trouble` is the last reason, "" after a token."""

    def __init__(self, callback: Callable[[str], Any]) -> None:
        """Wrap the application's function."""
        self._callback = callback
        self.trouble = ""

    def __call__(self, config: str) -> tuple[Any, ...]:
        """Return the application's token; what it raises, confluent-kafka reports to librdkafka as a failure."""
        try:
            token = _checked(self._callback(config))
        except BaseException as error:
            self.trouble = f"oauth_cb: {type(error).__name__}: {error}"
            _log.warning("there is no token for Kafka: %s", self.trouble)
            raise
        self.trouble = ""
        return token


def _checked(answer: object) -> tuple[Any, ...]:
    is_token = isinstance(answer, tuple) and 2 <= len(answer) <= 4 and isinstance(answer[0], str)
    if not is_token or isinstance(answer[1], bool) or not isinstance(answer[1], int | float):  # type: ignore[index]
        raise TypeError(f"it must return {SHAPE}")  # the answer may be a secret
    found: tuple[Any, ...] = answer  # type: ignore[assignment]  # as checked
    left_s = found[1] - time.time()
    if left_s <= 0:
        raise ValueError(f"the token ended {-left_s:.0f} s ago")
    return found
