"""Wildcard subscriptions: white and black lists as RE2 regular expressions.

RE2 matches in linear time. But that time grows with the compiled expression, and 20 characters can stand for 80,000
instructions. So that no consumer's pattern stalls the coordinator, which serves every group, its size is limited, and
`looks` says what one match may cost.
"""

from __future__ import annotations

import re2

from zkrebalancer.protocol.errors import PatternError
from zkrebalancer.protocol.registration import BLACK_LIST, WHITE_LIST

INTERNAL_TOPIC_PREFIX = "__"
MAX_PATTERN_LENGTH = 10_000
MAX_INSTRUCTIONS = 12_000  # enough for the names of all topics that fit into MAX_PATTERN_LENGTH
INSTRUCTIONS_PER_LOOK = 10  # in the worst case, they need 30 us for a name of 249 characters
MAX_MEMORY = 1 << 20  # bytes that RE2 uses for one expression; by default 8 MB


class TopicFilter:
    """The topics of a wildcard subscription, with search semantics: `^pay` matches `payments`."""

    def __init__(self, kind: str, expression: str) -> None:
        """Compile `expression` for `kind`, `white_list` or `black_list`.

        Raises:
            PatternError: the kind is unknown, or RE2 rejects the expression.

        """
        if kind not in {WHITE_LIST, BLACK_LIST}:
            raise PatternError(f"pattern type {kind!r:.80} is not {WHITE_LIST} or {BLACK_LIST}")
        if len(expression) > MAX_PATTERN_LENGTH:
            raise PatternError(f"pattern of {len(expression)} characters, at most {MAX_PATTERN_LENGTH} are allowed")
        self._wanted = kind == WHITE_LIST
        options = re2.Options()
        options.log_errors = False
        options.max_mem = MAX_MEMORY
        try:
            self._expression = re2.compile(expression, options)
        except (re2.error, UnicodeEncodeError) as error:
            raise PatternError(f"pattern {expression!r:.80} does not compile: {_reason(error)}") from None
        size = self._expression.programsize
        if size > MAX_INSTRUCTIONS:
            raise PatternError(
                f"pattern {expression!r:.80} stands for {size} instructions, at most {MAX_INSTRUCTIONS} are allowed"
            )
        self.looks = max(1, size // INSTRUCTIONS_PER_LOOK)

    def matches(self, topic: str) -> bool:
        """Whether the subscription includes `topic`; internal topics never match."""
        return not topic.startswith(INTERNAL_TOPIC_PREFIX) and self.matches_internal(topic)

    def matches_internal(self, topic: str) -> bool:
        """Whether the expression alone includes `topic`, an internal one too."""
        return (self._expression.search(topic) is not None) == self._wanted


def _reason(error: Exception) -> str:
    reason = error.args[0] if error.args else error
    text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)  # RE2's reason is bytes
    return f"{text:.200}" if text.isprintable() else f"{text!r:.200}"  # RE2 quotes the expression
