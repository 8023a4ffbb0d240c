"""Offset files round-trip; anything else in a file is refused with its position."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as draw

from zkrebalancer.operations import offset_file
from zkrebalancer.operations.offset_file import OffsetFileError
from zkrebalancer.protocol.cluster_nodes import MAX_COUNTER

OFFSETS = {("b", 10): 7, ("b", 2): 0, ("a.b_c-d", 0): MAX_COUNTER}
TOPICS = draw.text("abcXYZ019._-", min_size=1, max_size=249).filter(lambda name: name not in {".", ".."})
PARTITIONS = draw.tuples(TOPICS, draw.integers(0, 2**31 - 1))


@given(draw.dictionaries(PARTITIONS, draw.integers(0, MAX_COUNTER), max_size=20))
def test_what_is_written_is_read_again(offsets: dict[tuple[str, int], int]) -> None:
    assert offset_file.read(offset_file.to_csv(offsets)) == offsets
    assert offset_file.read(offset_file.to_json("g", offsets)) == offsets


def test_the_lines_are_sorted_by_topic_and_number() -> None:
    assert offset_file.to_csv(OFFSETS).splitlines()[1:] == [f"a.b_c-d,0,{MAX_COUNTER}", "b,2,0", "b,10,7"]


def test_files_of_other_programs_are_read() -> None:
    """Without names of columns, as Kafka's tool writes; from a spreadsheet, with its mark, quotes and empty lines."""
    assert offset_file.read("t,0,5\nt,1,6\n") == {("t", 0): 5, ("t", 1): 6}
    assert offset_file.read('\ufefftopic,partition,offset\r\n"t", 0 ,5\r\n\r\n') == {("t", 0): 5}
    assert offset_file.read("") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("t,0,5\nt,0,6\n", "line 2: partition t/0 is named twice"),
        ("t,0\n", "line 1: 2 values; topic, partition and offset are expected"),
        ("t,0,5\ntopic,partition,offset\n", "line 2: partition 'partition' is not a number"),
        ("t,0,-1\n", "line 1: offset '-1' is not a number"),
        (f"t,{2**31},1\n", "line 1: partition '2147483648' is not a number"),
        (f"t,0,{MAX_COUNTER + 1}\n", "line 1: offset '1000000000000000000' is not a number"),
        ("a/b,0,1\n", "line 1: topic: 'a/b' is not a topic name"),
        ("{", "not JSON"),
        ('{"version":2,"offsets":[]}', "version 2 is newer"),
        ('{"version":1}', "offsets must be a list"),
        ('{"version":1,"offsets":[3]}', "offset 0: 3 is not an object"),
        ('{"version":1,"offsets":[{"topic":"t","partition":0}]}', "offset 0: offset '' is not a number"),
        ('{"version":1,"offsets":[{"topic":"t","partition":true,"offset":1}]}', "offset 0: partition 'True'"),
        ("x" * 200_000 + "\0,1,1\n", "line 1: "),
    ],
)
def test_what_is_no_list_of_offsets_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(OffsetFileError) as caught:
        offset_file.read(text)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 400
