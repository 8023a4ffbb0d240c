"""Another id of a topic counts once it is certain enough: a broker that lags must not bring back the former topic."""

from __future__ import annotations

from collections.abc import Iterable

from zkrebalancer.topic_mirror.topic_ids import FORMER_ROUNDS, NEW_ROUNDS, TopicIds


def rounds(ids: TopicIds, known: str, answers: Iterable[str]) -> str:
    """Return the id in ZooKeeper after Kafka has given these answers."""
    for answer in answers:
        if answer != known and not ids.doubtful({"t": answer}, {"t": known}):
            known = answer
        elif answer == known:
            assert not ids.doubtful({"t": answer}, {"t": known})
    return known


def test_another_id_counts_after_two_rounds() -> None:
    """In `NEW_ROUNDS`, 1."""
    ids = TopicIds()
    assert rounds(ids, "a", ["a", "b"]) == "a"
    assert rounds(ids, "a", ["a", "b", "b"]) == "b"
    assert NEW_ROUNDS == 2


def test_answers_of_a_broker_that_lags_do_not_bring_back_the_former_topic() -> None:
    """In `TopicIds._needed`, return NEW_ROUNDS always."""
    ids = TopicIds()
    assert rounds(ids, "a", ["a", "b", "b", *(["a"] * 5 + ["b"]) * 10]) == "b"


def test_what_kafka_says_all_the_time_counts_in_the_end() -> None:
    ids = TopicIds()
    assert rounds(ids, "a", ["a", "b", "b", *["a"] * (FORMER_ROUNDS - 1)]) == "b"
    assert rounds(ids, "b", ["a"]) == "a"


def test_an_id_that_another_mirror_has_replaced_is_a_former_one() -> None:
    """In `TopicIds.doubtful`, do not look at the ids in ZooKeeper."""
    ids = TopicIds()
    ids.doubtful({"t": "a"}, {"t": "a"})
    assert rounds(ids, "b", ["a"] * 10) == "b"


def test_nothing_is_kept_of_topics_that_are_gone() -> None:
    ids = TopicIds()
    rounds(ids, "a", ["a", "b", "b"])
    ids.doubtful({}, {"t": "b"})
    ids.doubtful({}, {})
    ids.doubtful({"t": "b"}, {"t": "b"})
    assert ids.doubtful({"t": "a"}, {"t": "b"}) == {"t"}
    assert not ids.doubtful({"t": "a"}, {"t": "b"})


def test_topics_without_an_id_or_in_one_place_only_are_certain() -> None:
    assert TopicIds().doubtful({"t": "a", "u": "b"}, {"v": "c"}) == frozenset()


def test_a_mirror_that_begins_cannot_tell_a_former_id_from_a_new_one() -> None:
    """In `TopicIds._needed`, look only whether it is a known former one: a restart makes the mirror believe any other.

    Or keep in `_agreed` what is gone from ZooKeeper.
    """
    ids = TopicIds()
    assert rounds(ids, "b", ["a"] * (FORMER_ROUNDS - 1)) == "b"
    assert rounds(ids, "b", ["b", "c", "c"]) == "c"
    ids.doubtful({"u": "x"}, {})
    assert ids.doubtful({"t": "b"}, {"t": "c"}) == {"t"}
    assert ids.doubtful({"t": "b"}, {"t": "c"}) == {"t"}
