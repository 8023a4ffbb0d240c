"""Names that become part of a path, partition sets as ranges, and wildcard subscriptions."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zkrebalancer.protocol import fields, paths
from zkrebalancer.protocol.errors import InvalidNameError, PatternError
from zkrebalancer.protocol.patterns import MAX_PATTERN_LENGTH, TopicFilter

LEGAL = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
ANY_TEXT = st.text(st.characters(), max_size=20)


def is_legal(name: str) -> bool:
    return bool(name) and name not in {".", ".."} and set(name) <= LEGAL


@given(ANY_TEXT | st.text(st.sampled_from(sorted(LEGAL)), max_size=20))
@example("a\n")
@example("ä")
@example("٣")
def test_a_name_is_legal_or_rejected(name: str) -> None:
    assert paths.is_legal_topic(name) == is_legal(name)
    if is_legal(name):
        assert paths.validate_name("group", name) == name
        assert paths.group(name) == f"/consumers/groups/{name}"
    else:
        with pytest.raises(InvalidNameError, match="group name") as raised:
            paths.validate_name("group", name)
        assert str(raised.value).isprintable()


def test_the_longest_names() -> None:
    assert paths.validate_name("group", "g" * paths.MAX_NAME_LENGTH)
    with pytest.raises(InvalidNameError, match="201 characters long, at most 200"):
        paths.validate_name("group", "g" * 201)
    assert paths.validate_name("topic", "t" * 249, paths.MAX_TOPIC_LENGTH)
    assert paths.is_legal_topic("t" * 249)
    assert not paths.is_legal_topic("t" * 250)


def test_paths() -> None:
    assert paths.owners("g", "c") == "/consumers/groups/g/owners/c"
    assert paths.offsets("g", "t", 0) == "/consumers/groups/g/offsets/t/0"
    assert paths.offsets("g") == "/consumers/groups/g/offsets"


@given(st.sets(st.integers(0, 60) | st.integers(0, fields.MAX_PARTITION), max_size=40))
def test_ranges_expand_to_the_same_partitions(partitions: set[int]) -> None:
    ranges = fields.to_ranges(partitions)
    assert fields.topics_from_ranges("test", {"t": ranges}) == [("t", partition) for partition in sorted(partitions)]
    for (_first, last), (next_first, _next_last) in itertools.pairwise(ranges):
        assert last + 1 < next_first, "adjacent ranges must be merged"


@given(ANY_TEXT, st.lists(st.from_regex(r"[a-z._-]{1,10}", fullmatch=True), max_size=5))
@example("(", [])
@example("\ud800", ["t"])
@example("(?=a)", ["a"])
@example("(a)\\1", ["aa"])
@example("((a{1,1000}){1,1000}){1,1000}", ["a"])
@example("\0", ["t"])
@example(")\x1f", ["t"])
@example(".*", ["__consumer_offsets"])
def test_a_pattern_matches_or_is_rejected(expression: str, topics: list[str]) -> None:
    message = ""
    try:
        white, black = TopicFilter("white_list", expression), TopicFilter("black_list", expression)
    except PatternError as error:
        message = str(error)
    assert message.isprintable(), f"not one readable line: {message!r}"
    if message:
        return
    for topic in topics:
        if topic.startswith("__"):
            assert not white.matches(topic)
            assert not black.matches(topic)
        else:
            assert white.matches(topic) != black.matches(topic)


def test_a_pattern_matches_anywhere_in_a_name_but_never_internal_topics() -> None:
    pay = TopicFilter("white_list", "pay")
    assert [topic for topic in ("pay", "repayments", "orders", "__pay") if pay.matches(topic)] == ["pay", "repayments"]
    assert not TopicFilter("white_list", "^pay").matches("repayments")
    not_pay = TopicFilter("black_list", "^pay")
    assert [topic for topic in ("pay", "orders", "__consumer_offsets") if not_pay.matches(topic)] == ["orders"]


def test_invalid_patterns() -> None:
    with pytest.raises(PatternError, match="is not white_list or black_list"):
        TopicFilter("static", "a")
    with pytest.raises(PatternError, match="at most 10000 are allowed"):
        TopicFilter("white_list", "a" * (MAX_PATTERN_LENGTH + 1))


def test_matching_needs_linear_time() -> None:
    """A backtracking engine would not finish this match."""
    assert not TopicFilter("white_list", "(a+)+$").matches("a" * 200 + "b")


def test_a_pattern_that_stands_for_too_much_is_refused() -> None:
    """In `TopicFilter`, do not look at the size: each of thousands of names would take a tenth of a second."""
    with pytest.raises(PatternError, match=r"stands for \d+ instructions, at most 12000 are allowed"):
        TopicFilter("white_list", r"(\w?){1000}" * 8)
    names = "|".join(f"{number:x}-{number:05d}" for number in range(10**5, 10**5 + 700))
    assert TopicFilter("white_list", f"^({names})$").matches("186a0-100000")
    assert TopicFilter("white_list", "^pay").looks == 1
    assert TopicFilter("white_list", r"(\w?){500}").looks > 100
