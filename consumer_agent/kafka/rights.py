"""Names the right that is missing when brokers refuse a request, and tells of it once."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import KafkaError

from zkrebalancer.runtime import logs

MAX_TOLD = 1_000  # topics or groups; if there are more, the first are told again

_GUARDED = {KafkaError.TOPIC_AUTHORIZATION_FAILED: "topic", KafkaError.GROUP_AUTHORIZATION_FAILED: "group"}
_log = logs.named(__name__)


def explained(error: KafkaError, right: str) -> str:
    """Return an error's text; `right`: which right the request needs."""
    guarded = _GUARDED.get(error.code())
    return str(error.str()) if guarded is None else f"the right to {right} the {guarded} is missing ({error.str()})"


class MissingRights:
    """What is refused now. Each refusal is logged once until the right is back; two threads at once may repeat it."""

    def __init__(self, right: str, consequence: str) -> None:
        """Begin with nothing refused; `consequence` ends the line in the log."""
        self._right = right
        self._consequence = consequence
        self._told: set[str] = set()

    def note(self, name: str, error: KafkaError) -> None:
        """Log that a topic's or a group's right is missing, if that is the error."""
        guarded = _GUARDED.get(error.code())
        if guarded is not None and name not in self._told:
            if len(self._told) >= MAX_TOLD:
                self._told.clear()
            self._told.add(name)
            _log.warning("%s %s: %s; %s", guarded, name, explained(error, self._right), self._consequence)

    def answered(self, names: Iterable[str]) -> None:
        """Note that Kafka has answered about these."""
        if self._told:
            self._told.difference_update(names)
