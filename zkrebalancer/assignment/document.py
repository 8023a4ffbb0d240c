"""The JSON of `zkrebalancer assign`: strictly decodes the input to a `Problem`, encodes an `Assignment`.

Each value carries its path, so that an error names the place: `members.c1.owned.orders[2]`.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zkrebalancer.assignment.model import Assignment, Member, Problem, Racks, to_racks
from zkrebalancer.assignment.result import Summary
from zkrebalancer.protocol.errors import PatternError, RebalancerError
from zkrebalancer.protocol.fields import MAX_PARTITION, TopicPartition
from zkrebalancer.protocol.patterns import TopicFilter
from zkrebalancer.protocol.registration import MAX_THREADS, WHITE_LIST

MAX_PARTITIONS = 1_000_000  # over all topics of one input
MAX_CONSUMER_THREADS = 20_000_000  # over all members and topics of one input
MAX_GENERATION = 2**63 - 1
MEMBER_KEYS = frozenset(
    ("topics", "pattern", "pattern_type", "threads", "owned", "generation", "instance_id", "rack", "capacity")
)
NO_GENERATION = -1  # Kafka's clients before their first rebalance


class InputError(RebalancerError, ValueError):
    """The input document is invalid; the message names the path of the wrong value."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class _Value:
    """A value of the document, with its path."""

    path: str
    content: Any

    def error(self, expected: str) -> InputError:
        if isinstance(self.content, dict):
            shown = "an object"
        elif isinstance(self.content, list):
            shown = "a list"
        else:
            shown = json.dumps(self.content)
        return InputError(f"{self.path or 'input'}: must be {expected}, not {shown:.60}")

    def entries(self) -> dict[str, _Value]:
        if not isinstance(self.content, dict):
            raise self.error("an object")
        prefix = f"{self.path}." if self.path else ""
        if isinstance(self.content, _Repetitive):
            raise InputError(f"{prefix}{printable(self.content.repeated)}: occurs twice in one object")
        return {key: _Value(prefix + printable(key), value) for key, value in self.content.items()}

    def items(self) -> Iterator[_Value]:
        if not isinstance(self.content, list):
            raise self.error("a list")
        return (_Value(f"{self.path}[{index}]", value) for index, value in enumerate(self.content))

    def integer(self, minimum: int, maximum: int) -> int:
        if type(self.content) is not int or not minimum <= self.content <= maximum:  # a boolean is not a number
            raise self.error(f"an integer from {minimum} to {maximum}")
        return self.content

    def number(self) -> float:
        if type(self.content) not in {int, float} or not 0 <= self.content <= sys.float_info.max:
            raise self.error("a number of at least 0")
        return float(self.content)

    def text(self) -> str:
        if not isinstance(self.content, str):
            raise self.error("a string")
        return self.content

    def optional_text(self) -> str | None:
        return None if self.content is None else self.text()


class _Repetitive(dict[str, object]):
    """An object of the document with a duplicate key."""

    repeated: str


def read_problem(content: bytes) -> Problem:
    """Decode the input of `zkrebalancer assign`.

    Unknown top-level keys, and owned partitions that do not exist, are ignored.

    Raises:
        InputError: the message is one line with the path of the wrong value.

    """
    document = _Value("", _parse(content)).entries()
    for key in ("topics", "members"):
        if key not in document:
            raise InputError(f"{key}: is missing")
    topics = {topic: count.integer(0, MAX_PARTITION) for topic, count in document["topics"].entries().items()}
    if sum(topics.values()) > MAX_PARTITIONS:
        raise InputError(f"topics: {sum(topics.values())} partitions in all, at most {MAX_PARTITIONS} are allowed")
    members = {name: _member(value, topics) for name, value in document["members"].entries().items()}
    thread_count = sum(sum(member.threads.values()) for member in members.values())
    if thread_count > MAX_CONSUMER_THREADS:
        raise InputError(f"members: {thread_count} consumer threads in all, at most {MAX_CONSUMER_THREADS} are allowed")
    return Problem(
        topics,
        members,
        lag=_lag(document["lag"]) if "lag" in document else {},
        rate=_rate(document["rate"]) if "rate" in document else {},
        racks=_racks(document["racks"]) if "racks" in document else Racks(),
        options=_options(document["options"]) if "options" in document else {},
    )


def write_result(strategy_name: str, assignment: Assignment, summary: Summary, elapsed_ms: float) -> dict[str, object]:
    """Return the output of `zkrebalancer assign`, without consumer threads."""
    return {
        "strategy": strategy_name,
        "assignment": {consumer: partitions_of_member(threads) for consumer, threads in assignment.items()},
        "kept": summary.kept,
        "moved": summary.moved,
        "unassigned": {
            topic: [{"partition": partition, "reason": reason} for partition, reason in missing]
            for topic, missing in summary.unassigned.items()
        },
        "elapsed_ms": round(elapsed_ms, 3),
    }


def partitions_of_member(threads: Mapping[int, Mapping[str, tuple[int, ...]]]) -> dict[str, list[int]]:
    """Merge the partitions of a consumer's threads: topic -> sorted partitions."""
    joined: dict[str, list[int]] = {}
    for topics in threads.values():
        for topic, partitions in topics.items():
            joined.setdefault(topic, []).extend(partitions)
    return {topic: sorted(joined[topic]) for topic in sorted(joined)}


def printable(name: str) -> str:
    """Return a name that is safe to print on one line: names with control characters are quoted."""
    return name if name.isprintable() else json.dumps(name)


def _parse(content: bytes) -> object:
    def note_repetition(pairs: list[tuple[str, object]]) -> dict[str, object]:
        entries = dict(pairs)
        if len(entries) == len(pairs):
            return entries
        repetitive = _Repetitive(entries)
        repetitive.repeated = Counter(key for key, _ in pairs).most_common(1)[0][0]
        return repetitive

    try:
        # Encoding finds lone surrogates, which can be parsed but neither matched nor printed.
        # NaN and duplicate keys are rejected later, where their path is known.
        document = json.loads(content, object_pairs_hook=note_repetition)
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InputError("input: a string contains a lone surrogate") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"input: not JSON ({error})") from None
    return document


def _member(value: _Value, topics: Mapping[str, int]) -> Member:
    entries = value.entries()
    for key in entries.keys() - MEMBER_KEYS:
        raise InputError(f"{entries[key].path}: is unknown; known are {', '.join(sorted(MEMBER_KEYS))}")
    if ("topics" in entries) == ("pattern" in entries):
        raise InputError(f"{value.path}: must have either topics or pattern")
    pattern_type = entries["pattern_type"].text() if "pattern_type" in entries else WHITE_LIST
    if "pattern" in entries:
        subscribed = _matching_topics(entries["pattern"], pattern_type, topics)
    else:
        subscribed = _names(entries["topics"])
    threads = entries["threads"].integer(1, MAX_THREADS) if "threads" in entries else 1
    return Member(
        threads=dict.fromkeys(subscribed, threads),
        owned=_owned(entries["owned"], topics) if "owned" in entries else {},
        generation=entries["generation"].integer(NO_GENERATION, MAX_GENERATION) if "generation" in entries else 0,
        instance_id=entries["instance_id"].optional_text() if "instance_id" in entries else None,
        rack=entries["rack"].optional_text() if "rack" in entries else None,
        capacity=entries["capacity"].number() if "capacity" in entries else 1.0,
    )


def _names(value: _Value) -> list[str]:
    names: dict[str, None] = {}
    for name in value.items():
        if name.text() in names:
            raise InputError(f"{name.path}: {printable(name.text())} occurs twice in one list")
        names[name.text()] = None
    return list(names)


def _matching_topics(pattern: _Value, pattern_type: str, topics: Mapping[str, int]) -> list[str]:
    try:
        topic_filter = TopicFilter(pattern_type, pattern.text())
    except PatternError as error:
        raise InputError(f"{pattern.path}: {error}") from None
    return [topic for topic in topics if topic_filter.matches(topic)]


def _owned(value: _Value, topics: Mapping[str, int]) -> dict[TopicPartition, int]:
    """Decode a member's partitions; the document has no threads, so thread 0 owns all of them."""
    owned: dict[TopicPartition, int] = {}
    for topic, partitions in value.entries().items():
        if topic not in topics:
            raise InputError(f"{partitions.path}: the topic is not in `topics`")
        owned.update(((topic, partition.integer(0, MAX_PARTITION)), 0) for partition in partitions.items())
    return owned


def _lag(value: _Value) -> dict[str, list[int]]:
    return {topic: [lag.integer(0, MAX_GENERATION) for lag in lags.items()] for topic, lags in value.entries().items()}


def _rate(value: _Value) -> dict[str, list[float]]:
    return {topic: [rate.number() for rate in rates.items()] for topic, rates in value.entries().items()}


def _options(value: _Value) -> dict[str, object]:
    """Decode options without validating them (the strategy does), except for duplicate keys."""
    options = value.entries()
    for option in options.values():
        if isinstance(option.content, dict):
            option.entries()
    return {key: option.content for key, option in options.items()}


def _racks(value: _Value) -> Racks:
    return to_racks(
        {
            topic: [[rack.text() for rack in racks.items()] for racks in replicas.items()]
            for topic, replicas in value.entries().items()
        }
    )
