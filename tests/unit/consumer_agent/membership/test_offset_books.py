"""What a consumer knows of stored offsets, and how it cuts them into transactions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer_agent.membership import offset_books
from consumer_agent.membership.command_channel import quarantine
from consumer_agent.membership.offset_books import MARK_PREFIX, KafkaBook, OffsetBook
from tests.unit.consumer_agent.membership.driver import GROUP, T0, T1
from zkrebalancer.protocol import fields, paths
from zkrebalancer.protocol.calls import Check, Create
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.requests import RequestLimit

FENCE = [Check(paths.owners(GROUP, "c-1"), 3)]
TOPICS = ["t", "u", "v" * 40]
PARTITIONS = st.dictionaries(st.tuples(st.sampled_from(TOPICS), st.integers(0, 5)), st.integers(0, 10**6), min_size=1)


@given(
    PARTITIONS,
    st.sets(st.sampled_from(TOPICS)),
    st.sets(st.sampled_from(TOPICS)),
    st.integers(1, 8),
    st.sampled_from([260, 10_000]),
)
def test_chunks_are_within_both_limits_and_end_with_everything(
    offsets: dict[TopicPartition, int], missing: set[str], known: set[str], most: int, max_bytes: int
) -> None:
    book = OffsetBook(GROUP)
    book.missing_topics |= missing
    book.nodes |= {partition for partition in offsets if partition[0] in known - missing}
    limit = RequestLimit(max_bytes)
    left, written = dict(offsets), dict[TopicPartition, int]()
    while left:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(offset_books, "MAX_OPERATIONS", most)
            chunk = book.first_chunk(left, limit, FENCE)
        operations = book.operations(chunk)
        assert list(chunk) == sorted(left)[: len(chunk)]
        assert chunk
        parents = {topic for topic, _number in chunk} & book.missing_topics
        assert len(operations) == len(chunk) + len(parents)
        assert len(chunk) == 1 or len(operations) <= most
        assert len(chunk) == 1 or limit.fits([*FENCE, *operations])
        rest = sorted(left)[len(chunk) :]
        if rest:  # one more would have been too much
            more = book.operations({**chunk, rest[0]: left[rest[0]]})
            assert len(more) > most or not limit.fits([*FENCE, *more])
        written |= chunk
        book.note_written(chunk)
        for partition in chunk:
            del left[partition]
    assert written == offsets
    assert not any(isinstance(one, Create) for one in book.operations(offsets))
    assert book.changed(offsets) == {}
    assert book.changed({T0: 10**7}) == {T0: 10**7}


@pytest.mark.parametrize(
    ("mark", "text", "is_known"),
    [
        ("id-1 czxid-5", f"{MARK_PREFIX}id-1", True),
        ("id-1", f"{MARK_PREFIX}id-2", False),
        ("id-1", "somebody else's text", True),
        (None, f"{MARK_PREFIX}id-2", True),
        ("", f"{MARK_PREFIX}id-2", True),
    ],
)
def test_an_offset_of_another_topic_of_that_name_is_forgotten(mark: str | None, text: str, is_known: bool) -> None:
    book = KafkaBook(marks={} if mark is None else {"t": mark})
    assert book.note_read([T0], {T0: (7, text)}) == ({T0: 7} if is_known else {})
    assert book.changed({T0: 7}) == ({} if is_known else {T0: 7})


@pytest.mark.parametrize("found", [{}, {T0: (7, f"{MARK_PREFIX}id-0")}], ids=["nothing", "of the topic before"])
def test_an_offset_that_a_start_does_not_find_again_is_not_taken_for_stored(
    found: dict[TopicPartition, tuple[int, str]],
) -> None:
    book = KafkaBook(marks={"t": "id-1"})
    book.stored = {T0: 7, T1: 8}
    assert book.note_read([T0], found) == {}
    assert book.changed({T0: 7, T1: 8}) == {T0: 7}


def test_only_partitions_that_are_owned_stay_in_the_books() -> None:
    """Topics come and go for a year."""
    book, kafka_book = OffsetBook(GROUP), KafkaBook(marks={"t": "id-1", "u": "id-2"})
    book.missing_topics |= {"u"}
    for one in (book, kafka_book):
        one.note_written({T0: 7, T1: 8, ("u", 0): 9})
        one.stale.update({T0, T1})
        one.keep({T0: 0})
        assert (one.stored, one.stale) == ({T0: 7}, {T0})
    assert (book.nodes, book.missing_topics, kafka_book.marks) == ({T0}, set(), {"t": "id-1"})


def test_each_offset_is_stored_with_the_mark_of_its_topic() -> None:
    book = KafkaBook(marks={"t": "id-1"})
    assert book.marked({T0: 7, T1: 8, ("u", 0): 9}) == {
        T0: (7, f"{MARK_PREFIX}id-1"),
        T1: (8, f"{MARK_PREFIX}id-1"),
        ("u", 0): (9, MARK_PREFIX),
    }


def test_a_command_in_quarantine_says_what_it_was_and_why() -> None:
    (create,) = quarantine(GROUP, "command-7", b"abc", "no reason", (), RequestLimit(10_000)).operations
    assert isinstance(create, Create)
    assert fields.read_document("quarantine", create.content) == {
        "version": 1,
        "command": "command-7",
        "reason": "no reason",
        "content_base64": "YWJj",
    }


def test_what_kafka_might_forget_is_written_once_each_time() -> None:
    """In `KafkaBook.note_written`, keep it as stale: each automatic commit writes all offsets again, for ever."""
    book = KafkaBook()
    offsets = {T0: 5, T1: 7}
    book.note_written(offsets)
    for _ in range(2):
        book.stale.update(book.stored)
        assert book.changed(offsets) == offsets
        book.note_written({T0: 5})
        assert book.changed(offsets) == {T1: 7}
        book.note_written({T1: 7})
        assert book.changed(offsets) == {}
