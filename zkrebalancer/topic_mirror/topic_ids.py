"""Decides when the topic mirror believes that a topic has another id.

A topic that is deleted and created again gets another id, and then the coordinator deletes its offsets. A broker that
lags still names the former id. So another id counts once it was seen in two rounds in a row; one that the topic had
before only after many rounds, because ids never come back. So does one that it may have had before: after a restart,
the mirror knows no former ids of a topic until both sides have named the same one.
"""

from __future__ import annotations

from collections.abc import Mapping

NEW_ROUNDS = 2
FORMER_ROUNDS = 60


class TopicIds:
    """What the rounds of one mirror have shown."""

    def __init__(self) -> None:
        """Begin without a round."""
        self._in_zookeeper: Mapping[str, str] = {}
        self._agreed: set[str] = set()  # topics whose id was the same in both places in some round
        self._former: dict[str, str] = {}  # topic -> the id that it had before
        self._seen: dict[str, tuple[str, int]] = {}  # topic -> another id, and how many rounds in a row had it

    def doubtful(self, in_kafka: Mapping[str, str], in_zookeeper: Mapping[str, str]) -> frozenset[str]:
        """Note a round (topic -> id, in both places); return the topics whose other id does not count yet."""
        for topic, known in in_zookeeper.items():
            before = self._in_zookeeper.get(topic, known)
            if before != known:
                self._former[topic] = before
        self._in_zookeeper = in_zookeeper
        self._former = {topic: known for topic, known in self._former.items() if topic in in_zookeeper}
        self._agreed &= in_zookeeper.keys()
        seen, self._seen = self._seen, {}
        for topic, found in in_kafka.items():
            if topic not in in_zookeeper:
                continue
            if in_zookeeper[topic] == found:
                self._agreed.add(topic)
            else:
                known, rounds = seen.get(topic, (found, 0))
                self._seen[topic] = found, rounds + 1 if known == found else 1
        return frozenset(topic for topic, (found, rounds) in self._seen.items() if rounds < self._needed(topic, found))

    def _needed(self, topic: str, found: str) -> int:
        is_new = topic in self._agreed and self._former.get(topic) != found
        return NEW_ROUNDS if is_new else FORMER_ROUNDS
