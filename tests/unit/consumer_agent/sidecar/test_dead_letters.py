"""Where dead letters go: what is in the way of writing them."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from unittest import mock

import pytest
from confluent_kafka import KafkaError

from consumer_agent.config import ConsumerConfig
from consumer_agent.records import Record
from consumer_agent.sidecar.dead_letters import DeadLetterError, LetterFile, LetterTopic, open_dead_letters
from consumer_agent.sidecar.ledger import Letter
from zkrebalancer.protocol.errors import ConfigurationError

LETTER = Letter(Record("t", 0, 3, b"k", None, (("h", b"\xff"),), 7, 2), 3, "out of milk")


@pytest.mark.parametrize("before", ["", '{"whole": 1}\n', '{"whole": 1}\n{"torn'])
def test_a_letter_stands_in_a_line_of_its_own_also_behind_half_a_line(tmp_path: Path, before: str) -> None:
    """A disk that was full has cut the last one off; glued to that, the next one could not be read either."""
    path = tmp_path / "dead.jsonl"
    path.write_text(before)
    letters = LetterFile(path, "g")
    letters.write(LETTER)
    assert letters.written() == [(("t", 0), 3)]
    assert letters.written() == []
    letters.close()
    *earlier, last = path.read_text().splitlines()
    assert "\n".join(earlier) == before.strip("\n")
    letter = json.loads(last)
    assert letter.pop("failed_at_ms") > 0
    assert letter == {
        "record": {
            "topic": "t",
            "partition": 0,
            "offset": 3,
            "timestamp_ms": 7,
            "generation": 2,
            "key_base64": "aw==",
            "value_base64": None,
            "headers": [["h", "/w=="]],
        },
        "group": "g",
        "failures": 3,
        "reason": "out of milk",
    }


def test_settings_that_a_producer_cannot_have_are_not_taken_for_a_broker_that_is_away() -> None:
    config = ConsumerConfig(zookeeper="z:1", bootstrap="b:1", group="g", kafka_config={"acks": "1"})
    with pytest.raises(ConfigurationError, match=r"^kafka_config: for dead letters in a topic: .*`acks`"):
        LetterTopic("dead", config)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    config = ConsumerConfig(zookeeper="z:1", bootstrap="b:1", group="g")
    with pytest.raises(ConfigurationError, match=f"^dead_letter: {tmp_path} cannot be written: Is a directory"):
        open_dead_letters(f"file:{tmp_path}", config)


def test_a_letter_is_whole_though_another_agent_has_written_half_of_its_own(tmp_path: Path) -> None:
    """Agents may share the file. The disk was full for one, and then has room for another."""
    path = tmp_path / "dead.jsonl"
    one, other = LetterFile(path, "g"), LetterFile(path, "g")
    write = os.write
    with (
        mock.patch("os.write", side_effect=lambda file, line: write(file, line[:20])),
        pytest.raises(DeadLetterError, match="only in part"),
    ):
        one.write(LETTER)
    for _ in range(2):
        other.write(LETTER)
    assert other.written() == [(("t", 0), 3)] * 2
    one.close()
    other.close()
    _torn, *whole = path.read_text().splitlines()
    assert [json.loads(line)["record"]["offset"] for line in whole] == [3, 3]


def test_a_letter_is_not_lost_with_a_file_that_was_moved(tmp_path: Path) -> None:
    """By logrotate, which then compresses and deletes it, or by a person who works on its letters."""
    path, moved = tmp_path / "dead.jsonl", tmp_path / "dead.jsonl.1"
    letters = LetterFile(path, "g")
    letters.write(LETTER)
    path.rename(moved)
    letters.write(LETTER)
    assert path.read_text()
    assert moved.read_text()
    path.unlink()
    letters.write(LETTER)
    sync = os.fsync

    def move_then_sync(file: int) -> None:
        if not moved.exists():
            path.rename(moved)
        sync(file)

    moved.unlink()
    with mock.patch("os.fsync", side_effect=move_then_sync):
        letters.write(LETTER)
    assert letters.written() == [(("t", 0), 3)] * 4
    letters.close()
    assert [len(one.read_text().splitlines()) for one in (path, moved)] == [1, 2]


def held_open(folder: Path) -> list[str]:
    """Return what this process has open of a folder."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the listing's own, or another thread's
            found.append(str(link.readlink()))
    return [path for path in found if path.startswith(str(folder))]


def test_of_files_that_were_moved_none_stays_open(tmp_path: Path) -> None:
    """In `LetterFile._follow`, or `_opened`, do not close: an agent whose file is rotated runs out of descriptors."""
    path = tmp_path / "dead.jsonl"
    letters = LetterFile(path, "g")
    for number in range(3):
        letters.write(LETTER)
        path.rename(f"{path}.{number}")
    letters.write(LETTER)
    assert held_open(tmp_path) == [str(path)]
    letters.close()
    assert held_open(tmp_path) == []


def test_a_letter_in_a_topic_is_written_when_kafka_says_so_and_an_error_is_told() -> None:
    """In `LetterTopic.written`, do not look for an error: its record would never be finished, without a word."""
    config = ConsumerConfig(zookeeper="z:1", bootstrap="b:1", group="g")
    producer = mock.Mock()
    producer.list_topics.return_value.topics = {"dead": mock.Mock(error=None)}
    with mock.patch("consumer_agent.sidecar.dead_letters.Producer", mock.Mock(return_value=producer)):
        letters = LetterTopic("dead", config)
    letters.write(LETTER)
    (given,) = producer.produce.call_args_list
    assert (given.args, given.kwargs["timestamp"]) == (("dead", None, b"k"), 7)
    own = {"topic": b"t", "partition": b"0", "offset": b"3", "group": b"g", "failures": b"3", "reason": b"out of milk"}
    assert given.kwargs["headers"] == [("h", b"\xff"), *((f"dead_letter.{key}", value) for key, value in own.items())]
    assert letters.written() == []
    given.kwargs["on_delivery"](None, mock.Mock())
    assert letters.written() == [(("t", 0), 3)]
    given.kwargs["on_delivery"](KafkaError(KafkaError._MSG_TIMED_OUT), mock.Mock())
    with pytest.raises(DeadLetterError, match="topic dead: a dead letter cannot be written: "):
        letters.written()
