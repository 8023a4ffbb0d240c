"""Answers that callers wait for, by token. A callback or a signal's handler may wait while another call waits. Pure."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class AwaitedAnswers(Generic[T]):
    """Answers to requests whose callers still wait."""

    def __init__(self) -> None:
        """Begin with nothing awaited."""
        self._expected: set[int] = set()
        self._answers: dict[int, T] = {}

    def expect(self, token: int) -> None:
        """Keep the answer to this request until `take`."""
        self._expected.add(token)

    def answer(self, token: int, answer: T) -> bool:
        """Note an answer; return whether it is awaited."""
        is_expected = token in self._expected
        if is_expected:
            self._answers[token] = answer
        return is_expected

    def has(self, token: int) -> bool:
        """Whether there is an answer."""
        return token in self._answers

    def take(self, token: int, otherwise: T) -> T:
        """Return the answer, or `otherwise` if there is none. From now on it is not awaited."""
        self._expected.discard(token)
        return self._answers.pop(token, otherwise)
