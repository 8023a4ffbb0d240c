"""Reads the cluster's topics for KIP-848 groups, whose partitions the gateway assigns itself.

It reads nothing until topics are wanted. From then on it reads all topics periodically, because brokers announce no
changes; an answer equal to the last one is not decoded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import gevent
from gevent.event import Event

from zkrebalancer.gateway.dialing import LinkError
from zkrebalancer.gateway.links import Links
from zkrebalancer.gateway.rights import TOPIC_AUTHORIZATION_FAILED
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.topics import Topic
from zkrebalancer.protocol.complaints import Complaints, undescribed

INTERVAL_S = 2.0  # the longest time for which a new topic or partition goes unnoticed
MISSING_S = 10.0  # how long a topic has to be missing: a broker that has just started may not know any yet
_log = logging.getLogger(__name__)


class TopicReader:
    """Calls `when_read` with all topics, initially and after each change; `when_read` must not block."""

    def __init__(self, links: Links, when_read: Callable[[Mapping[str, Topic]], None]) -> None:
        """Read nothing yet."""
        self._links = links
        self._when_read = when_read
        self._is_wanted = Event()
        self._last_answer = b""
        self._topics: dict[str, Topic] | None = None
        self._memory = Memory()
        self._complaints = Complaints()
        self.undescribed = 0  # topics that stay, because brokers neither describe them nor say that they do not exist

    def want(self) -> None:
        """Start reading topics."""
        self._is_wanted.set()

    def remember(self, topics: Mapping[str, Topic]) -> None:
        """Look for these topics by name, which a group had when it was stored: see `_look_for`."""
        self._memory.remember(topics, time.monotonic())

    def run(self) -> None:
        """Read topics, for ever; runs in a separate greenlet."""
        self._is_wanted.wait()
        while True:
            try:
                self._read()
            except LinkError as error:
                if (said := self._complaints.text("all", str(error), time.monotonic())) is not None:
                    _log.warning("the topics cannot be read: %s", said)
            gevent.sleep(INTERVAL_S)

    def _read(self) -> None:
        answer = self._links.ask_any("Metadata", {"topics": None})
        if answer.content == self._last_answer and not self._memory.misses:
            return
        found, now_s = topics_of(answer.fields()), time.monotonic()
        codes = self._look_for(self._memory.missing(found))
        self._last_answer = answer.content
        topics = self._memory.update(found, now_s, codes)
        self._complain({name: code for name, code in codes.items() if code}, now_s)
        if topics != self._topics:
            self._topics = topics
            self._when_read(topics)

    def _look_for(self, names: Collection[str]) -> dict[str, int]:
        """Ask for topics by name; return the error codes of those that exist, or may exist.

        Brokers list no topic that this login may not describe.
        """
        if not names:
            return {}
        codes = {topic["name"]: int(topic["error_code"]) for topic in _ask_for(self._links, names)["topics"]}
        found = {name: codes.get(name, int(ErrorCode.UNKNOWN_SERVER_ERROR)) for name in names}
        return {name: code for name, code in found.items() if code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}

    def _complain(self, refused: Mapping[str, int], now_s: float) -> None:
        self.undescribed = len(refused)
        why = {TOPIC_AUTHORIZATION_FAILED: "the right to DESCRIBE them is missing"}
        for text in undescribed({name: why.get(code, f"error {code}") for name, code in refused.items()}):
            if (said := self._complaints.text("", text, now_s)) is not None:
                _log.warning("%s", said)


class Memory:
    """The topics as last read; one that is missing, or has fewer partitions than before, stays for MISSING_S.

    After a broker's start its answer may have no topics, and all members of all groups would lose everything.
    """

    def __init__(self) -> None:
        """Start without topics."""
        self._topics: dict[str, Topic] = {}
        self._missing_since_s: dict[str, float] = {}

    @property
    def misses(self) -> bool:
        """Whether a topic stays although the last answer did not have it whole."""
        return bool(self._missing_since_s)

    def missing(self, found: Mapping[str, Topic]) -> frozenset[str]:
        """Return the known topics that an answer does not have."""
        return frozenset(self._topics.keys() - found.keys())

    def remember(self, topics: Mapping[str, Topic], now_s: float) -> None:
        """Keep topics that were not described here; those that are unknown here are missing from now on."""
        for name in topics.keys() - self._topics.keys():
            self._topics[name], self._missing_since_s[name] = topics[name], now_s

    def update(self, found: Mapping[str, Topic], now_s: float, others: Collection[str] = ()) -> dict[str, Topic]:
        """Return the topics after an answer; `now_s`: of a clock that never jumps.

        `others`: topics that the answer does not have, but that may exist; they stay as they are.
        """
        found = {name: _with_known_id(topic, self._topics.get(name)) for name, topic in found.items()}
        missing = {name: topic for name, topic in self._topics.items() if _is_less(found.get(name), topic)}
        since_s = {name: now_s if name in others else self._missing_since_s.get(name, now_s) for name in missing}
        self._missing_since_s = {name: at_s for name, at_s in since_s.items() if now_s - at_s < MISSING_S}
        self._topics = {**found, **{name: missing[name] for name in self._missing_since_s}}
        return dict(self._topics)


def _with_known_id(found: Topic, known: Topic | None) -> Topic:
    """Return the topic with its id if this broker, but not the one before, is too old to show it."""
    if found.has_id or known is None or not known.has_id:
        return found
    return Topic(known.topic_id, found.partition_count)


def _is_less(found: Topic | None, known: Topic) -> bool:
    return found is None or (found.topic_id == known.topic_id and found.partition_count < known.partition_count)


def topics_of(metadata: Mapping[str, Any]) -> dict[str, Topic]:
    """Return name -> topic of a Metadata answer, without topics with an error."""
    return {
        topic["name"]: Topic.of(topic["name"], topic["topic_id"], len(topic["partitions"]))
        for topic in metadata["topics"]
        if not topic["error_code"] and topic["name"] is not None
    }


def partition_counts(links: Links, topics: Iterable[str]) -> dict[str, int | None]:
    """Return how many partitions topics have, without those that do not exist; raises LinkError.

    None: brokers neither describe the topic nor say that it does not exist.
    """
    return {
        topic["name"]: None if topic["error_code"] else len(topic["partitions"])
        for topic in _ask_for(links, topics)["topics"]
        if topic["error_code"] != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }


def _ask_for(links: Links, names: Iterable[str]) -> dict[str, Any]:
    asked = {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": False}
    return links.ask_any("Metadata", asked).fields()
