"""What a child is given, and what counts as finished, whatever it answers and whenever it dies."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from consumer_agent.records import Record
from consumer_agent.sidecar.ledger import BACKOFF_MS, MAX_BACKOFF_MS, Ledger, Letter, backoff_ms
from zkrebalancer.protocol.fields import TopicPartition

T0, T1 = ("t", 0), ("t", 1)
LATER_MS = 1_000_000


def record(partition: int, offset: int, size: int = 0) -> Record:
    return Record("t", partition, offset, None, b"x" * size, (), None, 1)


def ledger(max_records: int = 100, max_bytes: int = 1_000_000, max_failures: int = 3) -> Ledger:
    return Ledger(max_records, max_bytes, max_failures)


def offsets(records: list[Record]) -> list[tuple[int, int]]:
    return [(record.partition, record.offset) for record in records]


def test_an_acknowledgement_finishes_all_up_to_it() -> None:
    book = ledger()
    book.take([record(0, 5), record(0, 6), record(0, 9)])
    assert offsets(book.give(0)) == [(0, 5), (0, 6), (0, 9)]
    assert book.finished() == {T0: 5}
    assert book.ack(T0, 7) == 2
    assert book.finished() == {T0: 9}  # offsets in between do not exist
    assert book.ack(T0, 9) == 1
    assert book.finished() == {T0: 10}
    assert book.finished() == {}
    assert (book.open_count, book.given_count, book.room) == (0, 0, 100)


def test_an_acknowledgement_of_what_was_never_given_means_nothing() -> None:
    book = ledger(max_records=2)
    book.take([record(0, 0)])
    assert book.ack(T0, 5) == 0
    assert book.ack(T1, 5) == 0
    assert offsets(book.give(0)) == [(0, 0)]


def test_what_is_given_is_bounded_in_records_and_bytes() -> None:
    book = ledger(max_records=3, max_bytes=2_000)
    book.take([record(0, n) for n in range(2)])
    assert book.room == 1
    assert len(book.give(0)) == 2
    large = ledger(max_bytes=2_000)
    large.take([record(0, n, size=1_500) for n in range(4)])
    assert len(large.give(0)) == 2  # the second one passes the limit; the third has to wait
    assert large.give(0) == []
    large.ack(T0, 0)
    assert offsets(large.give(0)) == [(0, 2)]


def test_no_more_is_taken_while_open_records_have_the_limit_of_bytes() -> None:
    """In `Ledger.room`, count records only: 500 large ones that wait for a slow child fill the memory."""
    book = ledger(max_bytes=2_000)
    book.take([record(0, 0, size=1_500)])
    assert book.room == 99
    book.take([record(0, 1, size=1_500)])
    assert book.room == 0
    book.give(0)
    book.ack(T0, 0)
    assert book.room == 99


def test_what_kafka_has_lost_is_answered_before_others_at_its_offsets_are_given() -> None:
    """In `Ledger.give`, give both, or in `take`, keep both: new records were finished that the child never had."""
    book = ledger(max_bytes=300)
    book.take([record(0, offset) for offset in range(95, 100)])
    assert offsets(book.give(0)) == [(0, 95), (0, 96)]
    book.take([record(0, offset) for offset in range(90, 93)])
    assert book.finished() == {T0: 90}
    assert book.ack(T0, 95) == 1
    assert book.give(0) == []  # though there is room for one
    assert book.ack(T0, 99) == 1
    assert offsets(book.give(0)) == [(0, 90), (0, 91)]
    assert book.finished() == {}
    assert_accounts_are_right(book)


def test_partitions_take_turns_when_there_is_room_for_one_of_them_only() -> None:
    book = ledger(max_bytes=1)
    book.take([record(0, 0), record(0, 1), record(1, 0), record(1, 1)])
    order = []
    for _ in range(4):
        (given,) = book.give(0)
        order.append(given.partition)
        book.ack(("t", given.partition), given.offset)
    assert order == [0, 1, 0, 1]


def test_a_failed_record_is_given_again_alone_when_the_others_are_answered() -> None:
    book = ledger()
    book.take([record(0, n) for n in range(5)])
    assert len(book.give(0)) == 5
    book.ack(T0, 0)
    assert book.fail(T0, 1, "no milk", now_ms=0) == 1
    book.take([record(0, 5)])
    assert book.give(LATER_MS) == []  # 2 to 4 are not answered
    book.ack(T0, 4)
    assert book.finished() == {T0: 1}  # 1 is not done, although 4 is acknowledged
    assert book.give(BACKOFF_MS - 1) == []
    assert offsets(book.give(BACKOFF_MS)) == [(0, 1)]
    assert book.give(LATER_MS) == []
    book.ack(T0, 1)
    assert offsets(book.give(LATER_MS)) == [(0, 5)]
    assert book.finished() == {T0: 5}


def test_a_record_that_fails_too_often_becomes_a_letter_and_is_finished_when_that_is_safe() -> None:
    book = ledger(max_failures=2)
    book.take([record(0, 0), record(0, 1)])
    book.give(0)
    book.fail(T0, 0, "first", now_ms=0)
    book.ack(T0, 1)
    book.give(LATER_MS)
    book.fail(T0, 0, "second", now_ms=0)
    assert book.letters() == [Letter(record(0, 0), 2, "second")]
    assert book.letters() == []
    assert book.finished() == {T0: 0}
    assert book.is_burying([T0])
    assert not book.is_burying([T1])
    book.take([record(0, 2)])
    assert book.give(LATER_MS) == []
    book.buried(T0, 0)
    assert book.finished() == {T0: 2}
    assert offsets(book.give(LATER_MS)) == [(0, 2)]


def test_a_fail_of_what_the_child_does_not_have_means_nothing() -> None:
    book = ledger()
    assert book.fail(T0, 0, "?", now_ms=0) == 0


def test_a_child_that_dies_alone_with_one_record_is_its_fault() -> None:
    book = ledger(max_failures=1)
    book.take([record(0, 0)])
    book.give(0)
    assert book.child_ended("killed") == 1
    assert book.letters() == [Letter(record(0, 0), 1, "killed")]


def test_after_a_death_with_several_records_they_are_given_one_by_one_in_order() -> None:
    book = ledger(max_failures=1)
    book.take([record(0, 0), record(0, 1), record(1, 0), record(0, 2)])
    assert len(book.give(0)) == 4
    book.ack(T0, 0)
    assert book.child_ended("killed") == 3
    assert book.letters() == []  # nobody knows which of them it was
    seen = []
    while given := book.give(0):
        assert len(given) == 1
        (one,) = given
        seen.append((one.partition, one.offset))
        if one == record(0, 2):
            break
        book.ack(("t", one.partition), one.offset)
    assert [place for place in seen if place[0] == 0] == [(0, 1), (0, 2)]
    assert (1, 0) in seen
    assert book.child_ended("killed again") == 1
    assert book.letters() == [Letter(record(0, 2), 1, "killed again")]
    book.buried(T0, 2)
    book.take([record(0, 3), record(1, 1)])
    assert len(book.give(0)) == 2  # nobody is suspected any more


def test_what_is_withheld_is_not_given_and_not_finished() -> None:
    book = ledger(max_records=2)
    book.take([record(0, 0), record(0, 1)])
    book.give(0)
    book.take([record(0, 2), record(1, 7)])
    book.withhold([T0])
    assert offsets(book.give(0)) == []
    book.ack(T0, 1)
    assert book.finished() == {T0: 2, T1: 7}
    assert offsets(book.give(0)) == [(1, 7)]


def test_what_failed_is_not_finished_by_withholding_it() -> None:
    book = ledger()
    book.take([record(0, 0), record(0, 1), record(0, 2)])
    book.give(0)
    book.fail(T0, 1, "no", now_ms=0)
    book.withhold([T0])
    book.ack(T0, 2)
    assert book.finished() == {T0: 1}


def test_what_failed_is_not_finished_while_the_child_works_on_later_records_of_its_partition() -> None:
    """In `_Partition.finished`, look at `end` only if nothing is open: the next owner begins behind the failed one."""
    book = ledger()
    book.take([record(0, 3), record(0, 4), record(0, 5)])
    book.give(0)
    book.fail(T0, 3, "no", now_ms=0)
    assert book.finished() == {T0: 3}
    book.withhold([T0])
    assert book.finished() == {}
    for answered in (4, 5):
        book.ack(T0, answered)
        assert book.finished() == {}


def test_what_the_next_child_would_get_is_not_finished_while_a_later_dead_letter_is_written() -> None:
    book = ledger(max_failures=1)
    book.take([record(0, 7), record(0, 8), record(0, 9)])
    book.give(0)
    book.fail(T0, 9, "no", now_ms=0)
    book.child_ended("killed")
    assert book.finished() == {T0: 7}
    book.withhold([T0])
    assert book.is_burying([T0])
    assert book.finished() == {}
    book.buried(T0, 9)
    assert book.finished() == {}


def test_what_fails_after_its_partition_was_withheld_is_not_given_again() -> None:
    """In `Ledger.give`, do not look at that: the child gets it behind the revoke, and the next owner has it, too."""
    book = ledger()
    book.take([record(0, 4), record(0, 5), record(1, 0)])
    book.give(0)
    book.withhold([T0])
    book.fail(T0, 4, "no", now_ms=0)
    assert book.give(LATER_MS) == []
    book.child_ended("killed")
    assert offsets(book.give(LATER_MS)) == [(1, 0)]
    assert book.finished() == {T0: 4, T1: 0}


def test_dropped_partitions_leave_nothing_behind() -> None:
    book = ledger(max_failures=1)
    book.take([record(0, n) for n in range(4)] + [record(1, 0)])
    book.give(0)
    book.child_ended("killed")
    book.give(0)
    book.drop([T0, T1])
    assert (book.open_count, book.given_count) == (0, 0)
    book.take([record(0, 10), record(0, 11)])
    assert len(book.give(0)) == 2


def test_a_letter_that_is_not_written_goes_with_its_partition() -> None:
    """In `Ledger.drop`, keep it: the record became a dead letter although the next owner reads it again."""
    book = ledger(max_failures=1)
    book.take([record(0, 0), record(1, 0)])
    book.give(0)
    for partition in (T0, T1):
        assert book.fail(partition, 0, "bad", 0) == 1
    book.drop([T0])
    assert [letter.record.partition for letter in book.letters()] == [1]


def test_waits_grow_and_are_bounded() -> None:
    waits = [backoff_ms(failures) for failures in (1, 2, 3, 50, 10_000)]
    assert waits == [BACKOFF_MS, 2 * BACKOFF_MS, 4 * BACKOFF_MS, MAX_BACKOFF_MS, MAX_BACKOFF_MS]


def test_a_record_that_fails_again_waits_longer() -> None:
    """In `Ledger._blame`, count no failures: a child that starts slowly gets it as often as at first."""
    book, now_ms = ledger(), 0
    book.take([record(0, 0)])
    for failures in (1, 2):
        assert offsets(book.give(now_ms)) == [(0, 0)]
        book.fail(T0, 0, "no", now_ms)
        now_ms += failures * BACKOFF_MS
        assert book.give(now_ms - 1) == []
    assert offsets(book.give(now_ms)) == [(0, 0)]


def assert_accounts_are_right(book: Ledger) -> None:
    """Count anew what the ledger counts step by step."""
    partitions = book._partitions.values()
    given = [entry for held in partitions for entry in held.given]
    others = [entry for held in partitions for entry in (*held.waiting, *held.failed, *held.dead)]
    assert book.given_count == len(given)
    assert book._given_bytes == sum(entry.size_bytes for entry in given)
    assert book.open_count == len(given) + len(others)
    assert book._open_bytes == sum(entry.size_bytes for entry in (*given, *others))
    assert book._suspect_count == sum(entry.is_suspect for entry in (*given, *others))


@given(st.data())
def test_the_accounts_are_right_whatever_happens(data: st.DataObject) -> None:
    """In `Ledger.drop`, forget the bytes that were given; in `_close`, the suspects, or the bytes."""
    book, next_offset = ledger(max_records=8, max_bytes=1_500, max_failures=2), {T0: 0, T1: 0}
    for _ in range(data.draw(st.integers(1, 40))):
        step = data.draw(st.sampled_from(["take", "give", "ack", "fail", "die", "bury", "look", "withhold", "drop"]))
        partition = data.draw(st.sampled_from([T0, T1]))
        offset = data.draw(st.integers(0, next_offset[partition]))
        if step == "take":
            count = min(book.room, data.draw(st.integers(1, 4)))
            first, next_offset[partition] = next_offset[partition], next_offset[partition] + count
            book.take([record(partition[1], first + n, size=100 * n) for n in range(count)])
        elif step == "give":
            book.give(LATER_MS)
        elif step == "ack":
            book.ack(partition, offset)
        elif step == "fail":
            book.fail(partition, offset, "no", 0)
        elif step == "die":
            book.child_ended("died")
        elif step == "bury":
            for letter in book.letters():
                book.buried((letter.record.topic, letter.record.partition), letter.record.offset)
        elif step == "look":
            book.finished()
        else:
            (book.withhold if step == "withhold" else book.drop)([partition])
        assert_accounts_are_right(book)


class Play:
    """A ledger with a child that has what it was given, and a note of what was answered."""

    def __init__(self, limit: int) -> None:
        self.book = ledger(max_records=limit, max_failures=2)
        self.limit = limit
        self.next_offset = dict.fromkeys(range(3), 0)
        self.done: set[tuple[int, int]] = set()
        self.held: dict[int, list[int]] = {number: [] for number in range(3)}
        self.last_given = dict.fromkeys(range(3), -1)
        self.finished: dict[TopicPartition, int] = {}
        self.withheld: set[int] = set()

    def take(self, number: int, count: int) -> None:
        if number in self.withheld:
            return  # the consumer returns nothing of a partition that it gives up
        count = min(count, self.book.room)
        self.book.take([record(number, self.next_offset[number] + n) for n in range(count)])
        self.next_offset[number] += count

    def give(self, _number: int, _count: int) -> None:
        for one in self.book.give(LATER_MS):
            assert (one.partition, one.offset) not in self.done
            assert one.partition not in self.withheld
            assert one.offset not in self.held[one.partition]
            assert one.offset <= self.last_given[one.partition] + 1, "an offset was passed over"
            self.last_given[one.partition] = max(self.last_given[one.partition], one.offset)
            self.held[one.partition].append(one.offset)
        assert sum(map(len, self.held.values())) == self.book.given_count <= self.limit

    def ack(self, number: int, count: int) -> None:
        answered, self.held[number] = self.held[number][:count], self.held[number][count:]
        if answered:
            assert self.book.ack(("t", number), answered[-1]) == len(answered)
            self.done.update((number, offset) for offset in answered)

    def fail(self, number: int, count: int) -> None:
        if self.held[number]:
            failed = self.held[number].pop(count % len(self.held[number]))
            assert self.book.fail(("t", number), failed, "no", 0) == 1

    def die(self, _number: int, _count: int) -> None:
        assert self.book.child_ended("died") == sum(map(len, self.held.values()))
        self.held = {number: [] for number in range(3)}

    def bury(self, _number: int, _count: int) -> None:
        for letter in self.book.letters():
            place = (letter.record.partition, letter.record.offset)
            assert place not in self.done
            assert letter.failures == 2
            self.book.buried(("t", place[0]), place[1])
            self.done.add(place)

    def withhold(self, number: int, _count: int) -> None:
        self.book.withhold([("t", number)])
        self.withheld.add(number)

    def withhold_at_work(self, number: int, count: int) -> None:
        """Withhold a partition while the child works on some records of it, and fails at others before and after."""
        for step, size in ((self.take, 4), (self.give, 0), (self.fail, 0), (self.withhold, 0), (self.fail, count)):
            step(number, size)
            self.look()

    def drop(self, number: int, _count: int) -> None:
        """Begin again behind what is finished, as the next owner does."""
        self.bury(number, 0)
        self.book.drop([("t", number)])
        self.withheld.discard(number)
        begin = self.next_offset[number] = self.finished.get(("t", number), 0)
        self.last_given[number], self.held[number] = begin - 1, []
        self.done = {place for place in self.done if place[0] != number or place[1] < begin}

    def look(self) -> None:
        for partition, offset in self.book.finished().items():
            assert offset >= self.finished.get(partition, 0)
            self.finished[partition] = offset
            assert all((partition[1], below) in self.done for below in range(offset))


SINGLE = [Play.take, Play.give, Play.ack, Play.fail, Play.die, Play.bury, Play.withhold, Play.drop]
STEPS = st.lists(
    st.tuples(
        st.sampled_from([*SINGLE, Play.withhold_at_work]),
        st.integers(0, 2),
        st.integers(1, 4),
    ),
    max_size=60,
)


@given(STEPS, st.integers(1, 6))
def test_whatever_happens_nothing_is_lost_or_passed_over(
    steps: list[tuple[Callable[[Play, int, int], None], int, int]], limit: int
) -> None:
    """What is finished was answered for; what waits is given in order; and in the end everything is done."""
    play = Play(limit)
    for step, number, count in steps:
        step(play, number, count)
        play.look()
    for number in sorted(play.withheld):
        play.drop(number, 0)
    while play.book.open_count:
        play.bury(0, 0)
        play.give(0, 0)
        for number in range(3):
            play.ack(number, len(play.held[number]))
        play.look()
    assert play.done == {(number, offset) for number in range(3) for offset in range(play.next_offset[number])}
    assert all(play.finished.get(("t", number), 0) == play.next_offset[number] for number in range(3))
